"""The learner machine with two steps in flight: what waits for the end of a step, and what is chosen before it."""

from __future__ import annotations

from typing import Any

import pytest

from learners.protocol.events_effects import (
    Boundary,
    Emit,
    Exit,
    Hold,
    Resume,
    RunStep,
    Stage,
    Staged,
    StepDone,
)
from learners.protocol.facts import StepFinished
from learners.protocol.learner import AHEAD, COMPLETION
from outer.protocol.messages import FragmentCounters, Grant, Notice, Stop
from tests.golden.loop import TOKENS, Loop, answers, joined, only


def ahead(**sync: Any) -> Loop:
    """Two steps are in flight: 1 and 2."""
    loop = joined(**sync)
    loop.reach()
    return loop


def facts(effects: list[Any]) -> list[Any]:
    return [effect.fact for effect in effects if isinstance(effect, Emit)]


def waits_for_completion(effects: list[Any]) -> bool:
    return only(Hold, effects) == [Hold(0.0, COMPLETION)] and only(RunStep, effects) == []


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


def test_a_read_that_waited_is_answered_from_before_the_adoption_at_the_same_boundary() -> None:
    loop = ahead()
    loop.done()
    assert loop.read(4, 0) == []
    loop.deliver(2, 0)
    assert answers(loop.reach()) == []
    [answer] = answers(loop.done())
    assert (answer.step, answer.counters) == (2, FragmentCounters(0, 0, 2, 2 * TOKENS))
    assert loop.read(8, 0) == [], "no copy of the new version has a step on it"


# ------------------------------------------------------------------ what needs a completed step


def test_a_stop_completes_what_is_in_flight_and_starts_no_more() -> None:
    loop = ahead()
    loop.do(Stop(1, "enough"))
    loop.done()
    assert waits_for_completion(loop.reach()), "step 2 is in flight"
    loop.done()
    assert only(Exit, loop.do(Resume())) == [Exit("enough")]
    assert loop.machine.step == 2 and loop.reports[-1].step == 2


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
