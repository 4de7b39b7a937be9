"""Studies of fleets on the production machines, held against what the paper printed (sections 6 and 8)."""

from __future__ import annotations

import json

import pytest

from benchmarks.studies import heterogeneous, scavenging, upsize


def test_waiting_for_all_costs_the_fast_and_a_grace_window_costs_nobody():
    """Section 8: goodput 84, 100 and 100 %; participation with grace at least three times that without."""
    course = heterogeneous.study(heterogeneous.Speeds(), 60, 0)
    everybody, literal, grace = (course[rule] for rule in heterogeneous.RULES)
    assert everybody.goodput == pytest.approx(0.84, abs=0.03)
    assert min(literal.goodput, grace.goodput) > 0.97
    assert grace.participation >= 3.0 * literal.participation
    assert grace.merges_per_step < 1.1 < 5.0 < literal.merges_per_step, "one merge a step, not one a learner"


def test_newcomers_for_half_of_the_tokens_save_the_time_that_they_should():
    """Section 8: 0.90 and 0.75 of the time with 25 and 100 % more learners."""
    setting = scavenging.Scavenging(learners=4, step_s=20.0, steps=300)
    quarter, double = scavenging.study(setting, (0.25, 1.0))
    assert (quarter.time, double.time) == (pytest.approx(0.90, abs=0.02), pytest.approx(0.75, abs=0.02))
    assert quarter.time > quarter.ideal and double.time > double.ideal, "starting takes time"
    assert double.joined_s > setting.start_s + setting.state_s


def test_a_copy_of_the_model_in_less_than_six_steps_brings_a_newcomer_in_within_a_round_and_stops_nobody():
    """Section 6, upsizing: no overhead until one copy takes more than 6 steps at H = 24; then the state is older."""
    below, above = upsize.study(upsize.Upsize(learners=3), (5.5, 6.5))
    assert (below.source, above.source) == ("peer", "peer")
    assert below.joined_steps < 24 < above.joined_steps
    assert below.downtime_steps == above.downtime_steps == 0.0
    assert min(below.participation, above.participation) > 0.97
    assert below.elastic_downtime_steps == 3 * 5.5


@pytest.mark.parametrize(
    ("script", "words", "found", "plotted"),
    [
        (heterogeneous, ("--learners", "2", "--steps", "24", "--seeds", "2"), {"rule": "K=M"}, False),
        (scavenging, ("--learners", "2", "--steps", "100", "--extra", "50"), {"extra": 0.5}, True),
        (upsize, ("--learners", "2", "--copy-steps", "1"), {"source": "peer"}, True),
    ],
)
def test_the_scripts_answer_in_json_in_words_and_as_a_figure(
    script, words, found, plotted, tmp_path, monkeypatch, capsys
):
    figure = tmp_path / "figure.svg"
    monkeypatch.setattr("sys.argv", ["study.py", *words, "--json", *(["--plot", str(figure)] if plotted else [])])
    script.main()
    [(key, value)] = found.items()
    assert json.loads(capsys.readouterr().out)[0][key] == value
    assert not plotted or "<svg" in figure.read_text()
    monkeypatch.setattr("sys.argv", ["study.py", *words])
    script.main()
    assert str(value) in capsys.readouterr().out
