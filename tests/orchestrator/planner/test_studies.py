"""Studies of fleets on the production machines, held against what the paper printed (sections 6 and 8)."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from orchestrator.cli.simulate import app
from orchestrator.planner.fleet import heterogeneous, scavenging, upsize


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
    """Section 6, upsizing: no overhead until one copy takes more than 6 steps at H = 24."""
    below, above = upsize.study(upsize.Upsize(learners=3), (5.5, 6.5))
    assert (below.source, above.source) == ("peer", "syncer")
    assert below.joined_steps < 24 < above.joined_steps
    assert below.downtime_steps == above.downtime_steps == 0.0
    assert min(below.participation, above.participation) > 0.97
    assert below.elastic_downtime_steps == 3 * 5.5


def test_the_commands_answer_in_json_and_in_words(tmp_path):
    def said(*words):
        result = CliRunner().invoke(app, list(words))
        assert result.exit_code == 0, result.output
        return result.stdout

    two = ("heterogeneous", "--learners", "2", "--steps", "24", "--seeds", "2")
    rows = json.loads(said(*two, "--json", "--csv", str(tmp_path / "rows.csv")))
    assert [row["rule"] for row in rows] == list(heterogeneous.RULES)
    assert (tmp_path / "rows.csv").read_text().startswith("rule,goodput,goodput_half,")
    assert "K=1 with grace" in said(*two)
    few = ("scavenging", "--learners", "2", "--steps", "100", "--extra", "50")
    assert json.loads(said(*few, "--json"))[0]["extra"] == 0.5
    assert "+50 %" in said(*few, "--plot", str(tmp_path / "time.svg"))
    assert "<svg" in (tmp_path / "time.svg").read_text()
    one = ("upsize", "--learners", "2", "--copy-steps", "1")
    assert json.loads(said(*one, "--json"))[0]["source"] == "peer"
    assert "peer" in said(*one, "--plot", str(tmp_path / "upsize.svg"))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["scavenging", "--extra", "25,-1"], "--extra"),
        (["upsize", "--copy-steps", "x"], "--copy-steps"),
        (["upsize", "--plot", "figure.png"], "--plot"),
        (["heterogeneous", "--csv", "/nowhere/rows.csv"], "--csv"),
        (["heterogeneous", "--steps", "10000000"], "--steps"),
        (["heterogeneous", "--step-seconds", "inf"], "--step-seconds"),
        (["heterogeneous", "--step-seconds", "30", "--gap", "0.9"], "--step-seconds"),
        (["heterogeneous", "--noise", "nan"], "--noise"),
        (["heterogeneous", "--spell-gap", "inf"], "--spell-gap"),
        (["scavenging", "--start-seconds", "inf"], "--start-seconds"),
        (["scavenging", "--state-seconds", "nan"], "--state-seconds"),
        (["scavenging", "--step-seconds", "101"], "--step-seconds"),
        (["upsize", "--step-seconds", "nan"], "--step-seconds"),
        (["upsize", "--parameters", "nan"], "--parameters"),
        (["upsize", "--copy-steps", "1000"], "--copy-steps"),
    ],
)
def test_bad_input_is_named_before_anything_is_simulated(words, named):
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2 and named in result.output
