"""The learner machine with two steps in flight: what waits for the end of a step, and what is chosen before it."""

from __future__ import annotations

from typing import Any

import pytest

from learners.protocol.events_effects import (
    Boundary,
    Emit,
    RunStep,
    Stage,
    Staged,
    StepDone,
)
from learners.protocol.facts import StepFinished
from learners.protocol.learner import AHEAD
from outer.protocol.messages import Grant, Notice
from tests.golden.loop import TOKENS, Loop, joined, only


def ahead(**sync: Any) -> Loop:
    """Two steps are in flight: 1 and 2."""
    loop = joined(**sync)
    loop.reach()
    return loop


def facts(effects: list[Any]) -> list[Any]:
    return [effect.fact for effect in effects if isinstance(effect, Emit)]


def test_the_next_step_is_chosen_once_a_step_is_dispatched() -> None:
    loop = joined()
    assert [run.step for run in only(RunStep, loop.reach())] == [2]
    assert loop.machine.step == 0 and loop.facts(StepFinished) == [], "no step is completed yet"
    loop.done()
    assert loop.machine.step == 1
    assert [run.step for run in only(RunStep, loop.reach())] == [3]


def test_at_most_two_steps_are_in_flight() -> None:
    loop = ahead()
    with pytest.raises((AssertionError, ValueError)):
        loop.do(Boundary(TOKENS))


def test_samples_are_used_when_a_step_is_dispatched_and_the_next_batches_are_told() -> None:
    loop = Loop(span_steps=4)
    loop.join(samples=7)  # 3 batches of 2, and a rest
    loop.do(Grant(1, 3, 5, 40, 48))
    runs = only(RunStep, loop.log) + only(RunStep, loop.reach())
    loop.done()
    runs += only(RunStep, loop.reach())
    assert [(run.start, run.ahead) for run in runs] == [(0, (2, 4)), (2, (4, 40)), (4, (40, 42))]
    assert all(len(run.ahead) == AHEAD for run in runs)
    loop.done()
    assert [(fact.span, fact.position) for fact in loop.facts(StepFinished)] == [(0, 0), (0, 2)]


# ------------------------------------------------------------------ what needs a completed step


def test_a_pause_for_a_snapshot_is_no_part_of_the_step() -> None:
    loop = ahead()
    loop.now += 1.5
    loop.do(StepDone(2.0, TOKENS, paused_s=0.5))
    [fact] = loop.facts(StepFinished)
    assert (fact.seconds, fact.waited_for, fact.waited_s) == (1.0, "snapshot", 0.5)


# ------------------------------------------------------------------ how much is copied


def test_what_is_copied_follows_the_syncers_pace() -> None:
    """Every second syncer step has a fragment, and this learner steps as often as the syncer."""
    loop = ahead(tau=3)
    copied = []
    for step in range(1, 9):
        loop.done()
        loop.do(Notice(1, step, 0, 0, "digest", 0.0))
        [stage] = only(Stage, loop.do(Boundary(TOKENS)))
        loop.do(Staged(dict.fromkeys(stage.fragments)))
        copied.append(stage.fragments)
    assert copied == [(1,), (0,), (0,), (1,), (1,), (0,), (0,), (1,)], "due within two syncer steps"
