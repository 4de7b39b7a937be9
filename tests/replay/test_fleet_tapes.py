"""Tapes of fleets that fail: their logs keep every promise, and real training follows them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from typer.testing import CliRunner

from learners.protocol.facts import StateReceived
from learners.training.tree import deal
from orchestrator.checkers.suite import check_run
from orchestrator.cli.app import build
from orchestrator.eventlog.facts import LearnerLost
from orchestrator.eventlog.reader import read_run
from orchestrator.planner.fleet.recipes import absences, comings
from orchestrator.planner.fleet.tape import record
from orchestrator.planner.sizing.model_sizes import Shapes
from orchestrator.recipe.config import Recipe
from orchestrator.replay.replayer import Replayer
from orchestrator.replay.tape import record as tape_of
from outer.protocol.facts import DrainStarted
from tests.replay.shaken import Points, recipe


def failing(**told) -> Recipe:
    fleet = {"mtbf_hours": 40.0 / 3600.0, "detect_s": 1.0, "replace_s": 2.0, "start_s": 3.0} | told
    return Recipe.model_validate(recipe().canonical() | {"fleet": fleet})


def shapes(made: Recipe) -> Shapes:
    task = Points(made.data, made.seed)
    dealt = deal(task, made.sync)
    size = 4 * sum(fragment.size for fragment in dealt)
    steps = {pool.name: task.tokens(pool.batch_size) for pool in made.pools}
    return Shapes(dealt, size, 2 * size, tuple(4 * fragment.size for fragment in dealt), steps)


def test_real_training_follows_units_that_die_and_come_back_from_a_peer():
    made = failing()
    simulated = record(made, shapes(made), 1.0, seed=3)
    kinds = Counter(type(event.fact) for event in simulated.events)
    assert kinds[LearnerLost] >= 3
    assert {event.fact.source for event in simulated.events if isinstance(event.fact, StateReceived)} == {
        "peer",
        "syncer",
    }
    assert [each for each in simulated.verdicts if each.status == "violated"] == []
    assert 0.5 < simulated.outcome.goodput < 0.97
    replayer = Replayer(tape_of(simulated.events), made, Points(made.data, made.seed))
    for _ in replayer.play():
        pass
    assert replayer.finish() and replayer.tally.computed["state"] >= 1


def test_spot_capacity_goes_by_draining_and_comes_back():
    """Half of the day, and the run begins some minutes before it goes."""
    away = [(one.kind, one.learner, one.at_s) for one in comings({"a": absences(0.5, 600.0, 50_000.0)})]
    assert away == [("leave", "a", 600.0), ("join", "a", 600.0 + 43_200.0)]
    assert absences(0.5, 86_000.0, 1000.0) == [(0.0, 1000.0)] and absences(1.0, 0.0, 1e6) == []
    made = failing(mtbf_hours=8766.0, pools=[{"name": "a", "spot": 0.02}])
    simulated = record(made, shapes(made), 1.0, seed=5)
    left = [event.fact.learner for event in simulated.events if isinstance(event.fact, DrainStarted)]
    assert left and all(name.startswith("learner-a-") for name in left)


def test_the_command_writes_a_sealed_folder_and_overwrites_none(tmp_path: Path):
    text = """
        name = "told"
        [model]
        layers = 1
        width = 16
        heads = 2
        [data]
        sequence_length = 16
        [sync]
        H = 8
        P = 4
        [[pools]]
        name = "a"
        learners = 2
        batch_size = 2
        [budget]
        syncer_steps = 40
        [chaos]
        mtbf_s = 1.0
        [fleet]
        mtbf_hours = 0.02
        replace_s = 2.0
        start_s = 2.0
    """
    (tmp_path / "told.toml").write_text(text)
    words = ["tape", str(tmp_path / "told.toml"), str(tmp_path / "run"), "--json"]
    result = CliRunner().invoke(build(), words)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert "--profile calm" in result.stderr, "its faults are not in this one"
    assert told["syncer_steps"] == 40 and 0.5 < told["goodput"] <= 1.0
    assert [each.name for each in check_run(tmp_path / "run") if each.status == "violated"] == []
    assert read_run(tmp_path / "run")
    again = CliRunner().invoke(build(), words)
    assert again.exit_code == 2 and "not empty" in again.output
    for wrong in ("inf", "nan", "1e6"):
        refused = CliRunner().invoke(build(), [*words, "--chips", "1000", "--step-seconds", wrong])
        assert refused.exit_code == 2 and "--step-seconds" in refused.output
