"""Simulated runs and scripts make every move in the machines' transition tables, and no other is made."""

from __future__ import annotations

from typing import Any

import pytest

from chaos.simulation.cluster import simulate
from learners.protocol import learner
from learners.protocol.learner import Learner
from orchestrator.lifecycle import controller
from outer.protocol import open_step
from outer.protocol.events_effects import Fence, StopRequested, Tick
from outer.protocol.open_step import OpenStep
from tests.golden.bench import ALL, bench, merged, reading

Moves = set[tuple[Any, Any]]


def written(table: Any) -> Moves:
    return {(state, other) for state, ways in table.items() for other in ways}


def test_open_steps_and_learners_make_every_move_of_their_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    stages, phases = Moves(), Moves()
    move, enter = OpenStep.move, Learner._enter
    monkeypatch.setattr(OpenStep, "move", lambda step, to: stages.add((step.stage, to)) or move(step, to))
    monkeypatch.setattr(Learner, "_enter", lambda one, now, to: phases.add((one.phase, to)) or enter(one, now, to))
    for seed, profile in ((2, "ended"), (2, "membership"), (3, "mixed")):
        assert simulate(seed, profile).violations == ()
    unsound = reading("a", "b", merges_itself=False, sync=ALL)
    unsound.answer("a", "b")
    unsound.do(merged(1, finite=False))
    quorum_lost_in_grace()
    dropped()
    merged_and_dropped()
    assert stages == written(open_step.TRANSITIONS)
    assert phases == written(learner.TRANSITIONS)


def quorum_lost_in_grace() -> None:
    one = bench("a", "b", "c", sync={"grace": 5.0})
    one.now = 1.0
    one.step("a", "b")
    one.do(Fence("b", 1, "killed"))
    one.now = 6.0
    one.do(Tick())
    one.step("c")  # a and c are a quorum, and all that live
    assert one.asked(1) == ["a", "c"]


def dropped() -> None:
    """At every stage up to merging."""
    collecting, grace = bench("a", "b", sync=ALL), bench("a", "b", quorum=1, sync=ALL)
    for one in (collecting, grace):
        one.now = 1.0
        one.step("a")
    read, merging = reading("a", "b"), reading("a", "b", merges_itself=False, sync=ALL)
    merging.answer("a", "b")
    for one in (collecting, grace, read, merging):
        one.do(StopRequested("enough"))


def merged_and_dropped() -> None:
    """Step 2 is merged and waits for step 1 to commit."""
    one = bench("a", "b", sync={"P": 4, "H": 4, "tau": 2} | ALL)
    for second in (1, 2):
        one.now = float(second)
        one.step("a", "b")
    one.answer("a", "b")  # the newest reads: those of step 2
    one.do(StopRequested("enough"))


def test_a_move_that_is_not_in_the_table_is_an_assertion() -> None:
    step = OpenStep(1, 0, 0.0)
    with pytest.raises(AssertionError, match="COLLECTING"):
        step.move(open_step.Stage.MERGED)
    with pytest.raises(AssertionError, match="WAITING"):
        controller.Unit().move(controller.State.RUNNING)
