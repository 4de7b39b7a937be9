"""The learner machine with two steps in flight: what waits for the end of a step, and what is chosen before it."""

from __future__ import annotations

from typing import Any

import pytest

from learners.protocol.events_effects import (
    Apply,
    Boundary,
    Donate,
    Emit,
    Exit,
    Hold,
    Resume,
    RunStep,
    Save,
    Stage,
    Staged,
    StepDone,
)
from learners.protocol.facts import Adopted, AdoptionRefused, StepFinished
from learners.protocol.learner import AHEAD, COMPLETION
from outer.protocol.messages import FragmentCounters, Grant, Notice, Stop
from tests.golden.loop import TOKENS, Loop, answers, joined, notice, only
from tests.learners.protocol.test_joining import request


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


def test_what_is_adopted_after_a_step_is_logged_after_it_and_counted_from_it() -> None:
    loop = joined()
    loop.deliver(2, 1)
    effects = loop.reach()
    assert only(Apply, effects) == [Apply(1, 2, "v2", "overwrite")], "after step 1, which is in flight"
    assert facts(effects) == []
    refused = loop.do(notice(1, 1))
    assert refused == [], "its turn in the log is after the adoption that makes it old"
    effects = loop.done()
    assert [type(fact) for fact in facts(effects)] == [StepFinished, Adopted, AdoptionRefused]
    assert loop.facts(Adopted)[-1] == Adopted(1, 2, 1, "overwrite", None)
    assert loop.counters(1) == FragmentCounters(0, 0, 1, TOKENS), "as of the boundary, before adopting"
    loop.reach()
    loop.done()
    assert loop.counters(1) == FragmentCounters(2, 1, 1, TOKENS)


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


def test_a_state_is_given_and_saved_only_where_no_step_is_in_flight() -> None:
    loop = ahead()
    loop.do(request(), Notice(1, 2, 1, 2, "digest", 0.0, snapshot=1))
    loop.done()
    assert waits_for_completion(loop.reach())
    assert only(Donate, loop.log) == only(Save, loop.log) == []
    loop.done()
    effects = loop.do(Resume())
    [save], [given] = only(Save, effects), only(Donate, effects)
    assert (save.state.step, given.step) == (2, 2)
    assert [run.step for run in only(RunStep, effects)] == [3], "and it steps on"


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
