"""The learner machine: joining, answering, spans, reports and the end, each claim against a scripted syncer."""

from __future__ import annotations

from math import inf, nan

import pytest

from learners.protocol.events_effects import (
    Answer,
    Apply,
    Boundary,
    Decline,
    Enter,
    Exit,
    Fetch,
    Fetched,
    Hold,
    Reattach,
    Resume,
    RunStep,
    Send,
    Stage,
    Staged,
    StateMissed,
    StepDone,
    Waiting,
)
from learners.protocol.facts import PhaseEntered, StepFinished
from learners.protocol.learner import HOLD_S
from learners.protocol.step_timer import StepTime, StepTimer
from outer.protocol.messages import (
    COMPILING,
    IMPORTING,
    JOINING,
    STEPPING,
    STOPPED,
    Attach,
    Drain,
    FragmentCounters,
    Grant,
    Notice,
    StateRequest,
    Stop,
    Welcome,
)
from tests.golden.loop import TOKENS, Loop, answers, joined, notice, only

# ------------------------------------------------------------------ joining


def test_it_steps_only_after_every_fragment_was_adopted_from_the_syncer() -> None:
    loop = Loop()
    loop.compile()
    assert [e.message for e in only(Send, loop.log) if isinstance(e.message, Attach)] == [Attach("a", 3, {"seed": 0})]
    effects = loop.do(Welcome(1, 4, 0.25, (4, 2)))
    assert [(fetch.fragment, fetch.version) for fetch in only(Fetch, effects)] == [(0, 4), (1, 2)]
    loop.do(Grant(1, 3, 0, 0, 200), Fetched(1, 2, "v2"))
    assert only(Hold, loop.do(Resume())) == [Hold(HOLD_S, "bootstrap")] and loop.machine.phase == JOINING
    loop.do(Fetched(0, 4, "v4"))
    effects = loop.do(Resume())
    assert [(apply.fragment, apply.version, apply.mode) for apply in only(Apply, effects)] == [(0, 4, "bootstrap")]
    assert [(run.step, run.start, run.progress) for run in only(RunStep, effects)] == [(1, 0, 0.25)]
    assert [fact.phase for fact in loop.facts(PhaseEntered)] == [IMPORTING, COMPILING, JOINING, STEPPING]


def test_phases_never_go_back() -> None:
    with pytest.raises(AssertionError):
        joined().do(Enter(COMPILING))


# ------------------------------------------------------------------ losses that are not finite, data that is late


def test_it_ends_itself_after_losses_in_a_row_that_are_not_finite_and_names_the_first_batch() -> None:
    loop = joined()
    for loss in (2.0, nan, nan, 2.0, inf, nan):
        assert only(RunStep, loop.step(loss=loss))
    assert [report.non_finite for report in loop.reports[-6:]] == [0, 1, 2, 0, 1, 2]
    [end] = only(Exit, loop.step(loss=nan))
    assert end.reason == "failed: the loss was not finite in 3 steps in a row, from the batch at sample 8 on"
    assert (loop.reports[-1].phase, loop.reports[-1].non_finite) == (STOPPED, 3)


def test_a_learner_whose_loss_is_not_finite_gives_nobody_its_state() -> None:
    loop = joined()
    for loss, reasons in ((2.0, []), (nan, ["non_finite"])):
        loop.step(loss=loss)
        effects = loop.do(StateRequest(1, "b", 1, "a", 3, 0, 5.0))
        assert [decline.reason for decline in only(Decline, effects)] == reasons


def test_a_loop_that_waits_for_data_is_alive_for_as_long_as_a_start_may_take() -> None:
    loop = joined()
    loop.steps(3)
    lease_s = loop.reports[-1].lease_s
    for _ in range(2 * 60 + 1):  # start_s is 60 s, and a loop says twice a second that it waits
        loop.do(Waiting())
        assert loop.reports[-1].waits and loop.machine.is_alive(loop.now + 0.5 * lease_s)
        loop.now += HOLD_S
    said = len(loop.reports)
    loop.do(Waiting())
    assert len(loop.reports) == said and not loop.machine.is_alive(loop.now + lease_s), "now it hangs"
    loop.reach()
    loop.done()
    step = loop.facts(StepFinished)[-1]
    assert (step.waited_for, step.waited_s, step.seconds) == ("data", 60.5, 1.0)
    assert not loop.reports[-1].waits


# ------------------------------------------------------------------ reads


def test_a_read_is_answered_at_once_from_the_last_completed_step_with_its_counters() -> None:
    loop = joined()
    loop.read(1, 0)
    loop.step()  # its answer shows that syncer step 1 is here: fragment 1 is due next
    loop.step()
    [answer] = loop.read(2, 1)
    assert (answer.step, answer.processed, answer.payload) == (2, 20, "copy of 1 at 2")
    assert answer.counters == FragmentCounters(base_version=0, base_step=0, steps=2, tokens=20)
    assert (answer.learner, answer.incarnation, answer.epoch, answer.syncer_step) == ("a", 3, 1, 2)
    assert (answer.attempt, answer.digest, answer.defect) == (1, "", ""), "the digest is the shell's to add"


def test_what_is_not_on_the_host_is_answered_at_the_next_boundary() -> None:
    loop = joined()
    loop.steps(2)
    assert loop.read(4, 0) == []
    loop.now += 1.0
    [stage] = only(Stage, loop.do(StepDone(2.0, TOKENS), Boundary(TOKENS)))
    assert 0 in stage.fragments
    [answer] = answers(loop.do(Staged({0: "copy of 0 at 3"})))
    assert (answer.step, answer.counters.steps, answer.payload) == (3, 3, "copy of 0 at 3")
    assert answers(loop.step()) == [], "a request is answered once"


@pytest.mark.parametrize(("deadline_s", "times"), [(0.9, 0), (1.0, 0), (1.1, 1)])
def test_a_request_that_expired_is_forgotten(deadline_s: float, times: int) -> None:
    loop = joined()
    loop.steps(2)
    assert loop.read(4, 0, deadline_s=deadline_s) == []
    assert len(answers(loop.step())) == times, "at its deadline it is over"
    assert answers(loop.step()) == []


@pytest.mark.parametrize("deadline_s", [0.9, 1.0])
def test_what_was_asked_for_in_vain_is_on_the_host_whenever_it_is_asked_for_again(deadline_s: float) -> None:
    """A learner whose steps last longer than a read may would else never answer for a step that opens again."""
    loop = joined()
    loop.steps(2)
    assert loop.read(4, 0, deadline_s=deadline_s) == []
    loop.steps(2)
    for attempt, step in ((2, 4), (3, 5)):  # somebody else may let the second one pass
        [again] = loop.read(4, 0, attempt=attempt, deadline_s=deadline_s)
        assert (again.attempt, again.step) == (attempt, step)
        loop.step()


def test_only_what_may_be_asked_for_before_the_next_boundary_is_copied() -> None:
    loop = joined()
    loop.do(notice(1, 0))
    loop.now += 1.0
    assert only(Stage, loop.do(StepDone(2.0, TOKENS), Boundary(TOKENS))) == [Stage((1,))], "0 is due at 4"


@pytest.mark.parametrize(("read_timeout_s", "copied"), [(1.6, ()), (1.5, (1,))])
def test_where_a_read_may_not_last_until_the_next_boundary_the_next_fragment_is_copied_however_far_ahead(
    read_timeout_s: float, copied: tuple[int, ...]
) -> None:
    loop = joined(H=12, read_timeout_s=read_timeout_s)
    loop.step(0.8)
    loop.now += 0.8
    assert only(Stage, loop.do(StepDone(2.0, TOKENS), Boundary(TOKENS))) == [Stage(copied)], "1 is due at 6"


# ------------------------------------------------------------------ epochs


@pytest.mark.parametrize(("epoch", "incarnation"), [(0, 3), (2, 3), (1, 2), (1, 4)])
def test_what_another_epoch_says_or_another_incarnation_is_told_is_ignored(epoch: int, incarnation: int) -> None:
    loop = joined()
    loop.step()
    loop.do(Grant(epoch, incarnation, 9, 900, 1000), Drain(epoch, incarnation, "scaled down", 60.0))
    assert loop.read(2, 1, epoch=epoch, incarnation=incarnation) == []
    if epoch != 1:
        assert loop.do(Stop(epoch, "enough"), notice(2, 1, epoch=epoch)) == []
    effects = loop.step()
    assert answers(effects) == [] and len(only(RunStep, effects)) == 1
    assert (loop.machine.phase, loop.reports[-1].newest_span) == (STEPPING, 0)


def test_a_read_that_the_epoch_before_has_asked_for_is_not_answered_to_the_next() -> None:
    loop = joined()
    assert loop.read(2, 1) == [], "no copy is there yet"
    loop.do(Reattach(), Welcome(2, 0, 0.0, (0, 0)))
    loop.step()
    assert only(Answer, loop.log) == []
    assert len(loop.read(4, 0, epoch=2)) == 1


def test_one_that_was_joining_goes_on_with_what_it_has() -> None:
    loop = Loop(recover="peer")
    loop.compile()
    loop.do(Welcome(1, 8, 0.0, (8, 6)), Reattach(), Welcome(2, 8, 0.0, (8, 6)))
    fetches = only(Fetch, loop.do(StateMissed("", 0, "the syncer died")))
    assert [(fetch.fragment, fetch.version) for fetch in fetches] == [(0, 8), (1, 6)]
    loop.do(Grant(2, 3, 0, 0, 200), *(Fetched(fetch.fragment, fetch.version, "v") for fetch in fetches), Resume())
    assert loop.machine.phase == STEPPING


# ------------------------------------------------------------------ spans


def test_the_next_span_is_asked_for_at_half_of_the_last_and_samples_are_used_in_order() -> None:
    loop = Loop(span_steps=4)
    loop.join(samples=8)
    wants = []
    for _ in range(3):
        loop.step()
        wants.append(loop.reports[-1].wants_span)
    assert wants == [False, True, True]
    loop.do(Grant(1, 3, 5, 40, 48))
    loop.steps(2)
    facts = loop.facts(StepFinished)
    assert [(fact.span, fact.position) for fact in facts] == [(0, 0), (0, 2), (0, 4), (0, 6), (5, 40)]
    assert loop.reports[-1].newest_span == 5


def test_without_samples_it_holds_and_the_wait_is_booked_apart_from_the_step() -> None:
    loop = Loop(span_steps=2)
    loop.join(samples=4)
    loop.step()
    effects = loop.step()
    assert [hold.reason for hold in only(Hold, effects)] == ["span"] and only(RunStep, effects) == []
    reported = len(loop.reports)
    loop.now += HOLD_S / 2
    loop.do(Resume())
    assert len(loop.reports) == reported
    loop.now += HOLD_S / 2
    effects = loop.do(Resume())
    assert [hold.reason for hold in only(Hold, effects)] == ["span"]
    assert len(loop.reports) == reported + 1 and loop.reports[-1].wants_span, "holding renews the lease"
    assert loop.reports[-1].phase == STEPPING
    loop.now += 4.0 - HOLD_S
    loop.do(Grant(1, 3, 1, 4, 8))
    [run] = only(RunStep, loop.do(Resume()))
    assert run.start == 4
    loop.step()
    loop.step()
    waited = [(fact.waited_for, fact.waited_s, fact.seconds) for fact in loop.facts(StepFinished)]
    assert waited == [("", 0.0, 1.0), ("", 0.0, 1.0), ("span", 4.0, 1.0), ("", 0.0, 1.0)]


def test_all_waits_of_a_lap_are_taken_off_the_step_and_the_next_lap_starts_without_them() -> None:
    watch = StepTimer(0.5)
    watch.start(0.0)
    watch.hold(0.0, "span")
    watch.hold(1.0, "span")
    watch.release(2.0)
    watch.hold(3.0, "span")
    watch.release(3.5)
    assert watch.record_step(5.0) == StepTime(2.5, 2.5, "span")
    assert watch.record_step(6.5) == StepTime(1.5, 0.0, "")
    assert watch.step_s.value == 2.0


def test_of_a_wait_that_began_before_the_start_only_the_rest_counts_and_for_what_came_last() -> None:
    watch = StepTimer(0.5)
    watch.hold(1.0, "")
    watch.start(5.0)
    watch.hold(5.0, "span")
    watch.hold(6.0, "")
    watch.release(8.0)
    assert watch.record_step(9.0) == StepTime(1.0, 3.0, "span")


# ------------------------------------------------------------------ the end


def test_a_stop_takes_effect_at_the_next_boundary_and_a_second_changes_nothing() -> None:
    loop = joined()
    loop.do(Stop(1, "enough"), Stop(1, "more"))
    assert loop.machine.phase == STEPPING, "the step that runs is finished"
    effects = loop.step()
    assert only(RunStep, effects) == [] and only(Exit, effects) == [Exit("enough")]
    assert loop.reports[-1].phase == STOPPED and loop.reports[-1].step == 1
    loop.do(Stop(1, "more"))
    assert loop.do(Resume()) == [Exit("enough")]


# ------------------------------------------------------------------ reports


def test_reports_are_numbered_without_a_gap_and_say_what_is_so() -> None:
    loop = joined()
    loop.steps(3)
    assert [report.sequence for report in loop.reports] == list(range(1, len(loop.reports) + 1))
    last = loop.reports[-1]
    assert (last.step, last.tokens, last.loss, last.step_s, last.epoch) == (3, 30, 2.0, 1.0, 1)
    assert last.counters == (FragmentCounters(0, 0, 3, 30),) * 2
    first = loop.reports[0]
    assert (first.epoch, first.syncer_step, first.step, first.tokens) == (None, 0, 0, 0)


def test_leases_are_long_until_the_first_step_is_done_and_then_five_steps_or_the_shortest() -> None:
    loop = joined(lease_s=3.0, lease_steps=5.0)
    before = {report.phase: report.lease_s for report in loop.reports}
    assert before == {IMPORTING: 60.0, COMPILING: 60.0, JOINING: 60.0, STEPPING: 60.0}, "no step has been timed yet"
    loop.step(seconds=2.0)
    assert loop.reports[-1].lease_s == 10.0
    quick = joined(lease_s=3.0)
    quick.step(seconds=0.1)
    assert quick.reports[-1].lease_s == 3.0


def test_progress_and_the_syncers_clock_only_move_forward() -> None:
    loop = joined()
    loop.do(Notice(1, 8, 0, 8, "digest", 0.5), Notice(1, 4, 0, 4, "digest", 0.25))
    [run] = only(RunStep, loop.step())
    assert run.progress == 0.5
    assert loop.reports[-1].syncer_step == 8
