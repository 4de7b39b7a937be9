"""The learner machine with two steps in flight: what waits for the end of a step, and what is chosen before it."""

from __future__ import annotations

import math
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
    Send,
    Stage,
    Staged,
    StepDone,
)
from learners.protocol.facts import Adopted, AdoptionRefused, StepFinished
from learners.protocol.learner import AHEAD, COMPLETION
from outer.protocol.messages import FragmentCounters, Grant, Notice, Stop, Welcome
from tests.golden.loop import TOKENS, Loop, answers, joined, notice, only
from tests.learners.protocol.test_state_transfer import request


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


def test_nothing_is_told_of_a_step_in_flight() -> None:
    loop = ahead()
    loop.done()
    assert (loop.reports[-1].step, loop.reports[-1].tokens) == (1, TOKENS)
    loop.reach()
    loop.do(Welcome(2, 0, 0.0, (0, 0)))
    assert (loop.reports[-1].step, loop.reports[-1].counters[0].steps) == (1, 1)


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


def test_a_report_between_the_adoption_and_the_end_of_its_step_counts_from_the_base_before() -> None:
    loop = ahead()
    loop.done()
    loop.deliver(2, 1)
    loop.reach()  # adopts after step 2, which is in flight
    loop.do(Welcome(2, 0, 0.0, (0, 0)))
    assert loop.counters(1) == FragmentCounters(0, 0, 1, TOKENS)


def test_a_read_that_a_copy_of_the_step_in_flight_answers_is_answered_once_that_is_done() -> None:
    loop = ahead()
    assert loop.read(2, 1) == [], "step 1 is in flight"
    assert [(answer.step, answer.payload) for answer in answers(loop.done())] == [(1, "copy of 1 at 1")]


def test_a_read_that_waited_is_answered_from_before_the_adoption_at_the_same_boundary() -> None:
    loop = ahead()
    loop.done()
    assert loop.read(4, 0) == []
    loop.deliver(2, 0)
    assert answers(loop.reach()) == []
    [answer] = answers(loop.done())
    assert (answer.step, answer.counters) == (2, FragmentCounters(0, 0, 2, 2 * TOKENS))
    assert loop.read(8, 0) == [], "no copy of the new version has a step on it"


def test_an_answer_comes_after_the_facts_of_its_step() -> None:
    loop = ahead()
    loop.done()
    loop.read(4, 0)
    loop.reach()
    kinds = [type(effect).__name__ for effect in loop.done()]
    assert kinds == ["Emit", "Send", "Answer"]


def test_a_read_that_expires_while_its_step_is_in_flight_is_not_answered_but_copied_again() -> None:
    loop = ahead()
    loop.done()
    loop.read(4, 0, deadline_s=0.5)
    loop.reach()
    assert answers(loop.done()) == []
    loop.reach()
    loop.done()
    assert [answer.step for answer in loop.read(4, 0, attempt=2)] == [3]


def test_a_rebase_finds_the_read_that_was_answered_late() -> None:
    loop = ahead(adopt="rebase")
    loop.done()
    loop.read(2, 0)
    loop.reach()
    [answer] = answers(loop.done())
    loop.deliver(4, 0, merged_step=answer.step)
    assert only(Apply, loop.reach()) == [Apply(0, 4, "v4", "rebase", read_at=2)]


def test_a_new_epoch_forgets_reads_that_wait_for_a_step() -> None:
    loop = ahead()
    loop.done()
    loop.read(4, 0)
    loop.reach()
    loop.do(Welcome(2, 0, 0.0, (0, 0)))
    assert answers(loop.done()) == []


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


def test_a_donor_is_judged_by_the_loss_of_its_completed_steps() -> None:
    loop = ahead()
    loop.do(request())
    loop.done()
    loop.reach()
    loop.done(loss=math.nan)
    assert only(Donate, loop.do(Resume())) == []


def test_without_samples_it_completes_what_is_in_flight_and_only_then_waits() -> None:
    loop = Loop(span_steps=2)
    loop.join(samples=4)
    loop.reach()
    loop.done()
    assert waits_for_completion(loop.reach()), "the device does not wait yet"
    loop.done()
    assert [hold.reason for hold in only(Hold, loop.do(Resume()))] == ["span"]
    loop.now += 3.0
    loop.do(Grant(1, 3, 1, 4, 8), Resume())
    loop.reach()
    loop.done()
    waited = [(fact.seconds, fact.waited_for, fact.waited_s) for fact in loop.facts(StepFinished)]
    assert waited == [(1.0, "", 0.0), (1.0, "", 0.0), (1.0, "span", 3.0)]


def test_a_pause_for_a_snapshot_is_no_part_of_the_step() -> None:
    loop = ahead()
    loop.now += 1.5
    loop.do(StepDone(2.0, TOKENS, paused_s=0.5))
    [fact] = loop.facts(StepFinished)
    assert (fact.seconds, fact.waited_for, fact.waited_s) == (1.0, "snapshot", 0.5)


def test_strict_overlap_waits_for_its_version_with_nothing_in_flight() -> None:
    loop = Loop(overlap="strict", tau=1)
    loop.join()
    for _ in range(2):
        loop.reach()
        loop.done()
    assert waits_for_completion(loop.reach()), "fragment 1, read at 2, is adopted after step 3"
    loop.done()
    assert [hold.reason for hold in only(Hold, loop.do(Resume()))] == ["adoption"]
    loop.deliver(2, 1)
    assert [run.step for run in only(RunStep, loop.do(Resume()))] == [4]


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


def test_reports_still_come_once_a_step() -> None:
    loop = ahead()
    before = len(loop.reports)
    for _ in range(5):
        loop.done()
        loop.reach()
    assert len(loop.reports) == before + 5
    assert [type(e).__name__ for e in loop.log if isinstance(e, Send)]
