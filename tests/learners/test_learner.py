"""The learner machine: joining, answering, adopting, spans and reports, each claim against a scripted syncer."""

from __future__ import annotations

from typing import Any

import pytest

from learners.facts import Adopted, AdoptionRefused, PhaseEntered, StepFinished
from learners.learner import FETCH_ATTEMPTS_MAX
from learners.signals import (
    Apply,
    Enter,
    Exit,
    Fetch,
    Fetched,
    FetchFailed,
    Hold,
    Resume,
    RunStep,
    Send,
    Stage,
    Staged,
    StepDone,
)
from outer.messages import (
    COMPILING,
    IMPORTING,
    JOINING,
    STEPPING,
    STOPPED,
    Attach,
    FragmentCounters,
    Grant,
    Notice,
    ReadRequest,
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
    assert only(RunStep, loop.do(Resume())) == [] and loop.machine.phase == JOINING
    loop.do(Fetched(0, 4, "v4"))
    effects = loop.do(Resume())
    assert [(apply.fragment, apply.version, apply.mode) for apply in only(Apply, effects)] == [(0, 4, "bootstrap")]
    assert [(run.step, run.start, run.progress) for run in only(RunStep, effects)] == [(1, 0, 0.25)]
    assert [fact.phase for fact in loop.facts(PhaseEntered)] == [IMPORTING, COMPILING, JOINING, STEPPING]


def test_fresh_weights_are_never_answered() -> None:
    loop = Loop()
    loop.compile()
    loop.do(Welcome(1, 0, 0.0, (0, 0)))
    assert loop.read(4, 0) == []
    loop.do(Fetched(0, 0, "v0"), Fetched(1, 0, "v0"), Grant(1, 3, 0, 0, 200), Resume())
    assert loop.machine.phase == STEPPING
    assert answers(loop.log) == [], "a value without a step is nobody's contribution"
    [answer] = answers(loop.step())
    assert (answer.step, answer.counters) == (1, FragmentCounters(0, 0, 1, TOKENS))


def test_a_joiner_adopts_the_newest_of_what_arrived_meanwhile() -> None:
    loop = Loop()
    loop.compile()
    loop.do(Welcome(1, 0, 0.0, (0, 0)), notice(4, 0), Fetched(0, 4, "v4"), Fetched(0, 0, "v0"), Fetched(1, 0, "v0"))
    loop.do(Resume())
    assert [(a.fragment, a.version) for a in only(Apply, loop.log)] == [(0, 4), (1, 0)]


def test_a_fetch_that_fails_while_joining_is_tried_again_and_given_up_in_the_end() -> None:
    loop = Loop()
    loop.compile()
    loop.do(Welcome(1, 0, 0.0, (0, 0)))
    for _ in range(FETCH_ATTEMPTS_MAX - 1):
        assert [f.fragment for f in only(Fetch, loop.do(FetchFailed(0, 0, "fetch_failed")))] == [0]
    assert only(Fetch, loop.do(FetchFailed(0, 0, "fetch_failed"))) == []
    [leave] = only(Exit, loop.do(Resume()))
    assert leave.reason.startswith("failed: fragment 0")
    assert {fact.reason for fact in loop.facts(AdoptionRefused)} == {"fetch_failed"}


def test_a_doubled_welcome_changes_nothing() -> None:
    loop = joined()
    loop.step()
    assert loop.do(Welcome(1, 40, 0.9, (40, 38)), Welcome(2, 0, 0.0, (0, 0))) == []
    assert loop.machine.step == 1


def test_phases_never_go_back() -> None:
    with pytest.raises(AssertionError):
        joined().do(Enter(COMPILING))


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


def test_what_is_not_on_the_host_is_answered_at_the_next_boundary() -> None:
    loop = joined()
    loop.steps(2)
    assert loop.read(4, 0) == []
    loop.now += 1.0
    [stage] = only(Stage, loop.do(StepDone(2.0, TOKENS)))
    assert 0 in stage.fragments
    [answer] = answers(loop.do(Staged({0: "copy of 0 at 3"})))
    assert (answer.step, answer.counters.steps, answer.payload) == (3, 3, "copy of 0 at 3")
    assert answers(loop.step()) == [], "a request is answered once"


def test_a_request_that_expired_is_forgotten() -> None:
    loop = joined()
    loop.steps(2)
    assert loop.read(4, 0, deadline_s=0.9) == []
    assert answers(loop.step()) == []
    assert loop.read(4, 0, deadline_s=1.0) == []
    assert answers(loop.step()) == [], "at its deadline it is over"
    assert loop.read(4, 0, deadline_s=1.1) == []
    assert len(answers(loop.step())) == 1


@pytest.mark.parametrize("change", [{"epoch": 0}, {"epoch": 2}, {"incarnation": 2}, {"incarnation": 4}])
def test_a_read_from_another_epoch_or_for_another_incarnation_is_ignored(change: dict[str, Any]) -> None:
    loop = joined()
    loop.steps(1)
    assert loop.read(2, 1, **change) == []
    assert answers(loop.step()) == []


def test_a_copy_from_before_an_adoption_is_never_answered_after_it() -> None:
    loop = joined(tau=3)  # every fragment is copied at every boundary
    loop.steps(2)
    assert len(loop.read(2, 1)) == 1
    loop.deliver(2, 1)
    loop.step()  # copied, then adopted at this boundary
    assert loop.read(6, 1) == []
    [answer] = answers(loop.step())
    assert answer.counters == FragmentCounters(base_version=2, base_step=3, steps=1, tokens=TOKENS)


def test_a_copy_of_an_older_step_is_never_answered() -> None:
    loop = joined()
    loop.steps(2)  # fragment 1 is due next, and copied
    loop.do(Notice(1, 2, 0, 0, "digest", 0.0))
    loop.step()  # now fragment 0 is
    assert loop.read(6, 1) == []
    assert [answer.step for answer in answers(loop.step())] == [4]


# ------------------------------------------------------------------ adoption


def test_overwriting_puts_the_counters_to_zero_at_the_boundary() -> None:
    loop = joined()
    loop.steps(2)
    loop.deliver(2, 1)
    assert loop.facts(Adopted)[2:] == [], "never in the middle of a step"
    effects = loop.step()
    assert only(Apply, effects) == [Apply(1, 2, "v2", "overwrite")]
    assert loop.facts(Adopted)[-1] == Adopted(fragment=1, version=2, after_step=3, mode="overwrite")
    loop.step()
    assert loop.counters(1) == FragmentCounters(2, 3, 1, TOKENS)
    assert loop.counters(0) == FragmentCounters(0, 0, 4, 4 * TOKENS)


def test_mixing_counts_like_overwriting() -> None:
    loop = joined(adopt="mix", alpha=0.5)
    loop.steps(2)
    loop.deliver(2, 1)
    assert only(Apply, loop.step()) == [Apply(1, 2, "v2", "mix")]
    loop.step()
    assert loop.counters(1) == FragmentCounters(2, 3, 1, TOKENS)


def test_rebasing_keeps_what_accrued_since_the_read_for_one_that_took_part() -> None:
    loop = joined(adopt="rebase")
    loop.steps(2)
    [answer] = loop.read(2, 1)
    assert answer.step == 2
    loop.step()
    loop.deliver(2, 1, merged_step=2)
    assert only(Apply, loop.step()) == [Apply(1, 2, "v2", "rebase", read_at=2)]
    loop.step()
    assert loop.counters(1) == FragmentCounters(2, base_step=2, steps=3, tokens=3 * TOKENS)


@pytest.mark.parametrize("asked", [False, True])
def test_rebasing_keeps_everything_for_one_that_did_not_take_part(asked: bool) -> None:
    loop = joined(adopt="rebase")
    loop.steps(2)
    if asked:  # and answered too late to be merged
        assert len(loop.read(2, 1)) == 1
    loop.deliver(2, 1)
    assert only(Apply, loop.step()) == [Apply(1, 2, "v2", "rebase", read_at=None)]
    loop.step()
    assert loop.counters(1) == FragmentCounters(2, base_step=0, steps=4, tokens=4 * TOKENS)


def test_a_version_skipped_while_rebasing_is_not_merged_twice() -> None:
    loop = joined(adopt="rebase")
    loop.steps(2)
    assert loop.read(2, 1)[0].step == 2  # steps 1 and 2 merge into version 2, ...
    loop.step()
    loop.do(notice(2, 1, merged_step=2), Fetched(1, 6, "v6"))  # ... but by now the newest is 6
    assert only(Apply, loop.step()) == [], "what version 6 holds is not known before its notice"
    loop.do(notice(6, 1, merged_step=2))
    assert only(Apply, loop.step()) == [Apply(1, 6, "v6", "rebase", read_at=2)]
    loop.step()
    assert loop.counters(1) == FragmentCounters(6, base_step=2, steps=4, tokens=4 * TOKENS)


def test_a_late_read_does_not_make_a_rebase_forget_what_was_merged() -> None:
    loop = joined(adopt="rebase")
    loop.steps(2)
    loop.read(2, 1)
    loop.deliver(2, 1, merged_step=2)
    loop.steps(3)
    loop.read(6, 1)
    assert [answer.step for answer in answers(loop.step())] == [6]
    loop.read(2, 1)  # the old request, doubled and late
    loop.deliver(6, 1, merged_step=6)
    loop.steps(2)
    assert loop.counters(1).base_step == 6


def test_of_several_versions_the_newest_is_adopted_and_older_ones_are_refused() -> None:
    loop = joined()
    loop.steps(1)
    loop.do(notice(6, 1), notice(2, 1))
    assert [fetch.version for fetch in only(Fetch, loop.log)][2:] == [6], "older than what is being fetched"
    loop.do(Fetched(1, 6, "v6"), Fetched(1, 2, "v2"))
    assert only(Apply, loop.step()) == [Apply(1, 6, "v6", "overwrite")]
    loop.do(notice(2, 1))
    loop.do(Fetched(1, 2, "v2"))
    assert only(Apply, loop.step()) == []
    assert set(loop.facts(AdoptionRefused)) == {AdoptionRefused(1, 2, "older")}
    assert loop.counters(1).base_version == 6


def test_a_notice_of_what_is_held_or_on_its_way_fetches_nothing() -> None:
    loop = joined()
    loop.steps(1)
    assert only(Fetch, loop.do(notice(0, 1))) == [] and loop.facts(AdoptionRefused) == []
    assert len(only(Fetch, loop.do(notice(2, 1)))) == 1
    assert only(Fetch, loop.do(notice(2, 1))) == []
    loop.do(Fetched(1, 2, "v2"))
    assert only(Fetch, loop.do(notice(2, 1))) == []


def test_a_fetch_may_bring_a_newer_version_than_was_asked_for() -> None:
    loop = joined()
    loop.steps(1)
    loop.do(notice(2, 1), Fetched(1, 6, "v6"))
    assert only(Apply, loop.step()) == [Apply(1, 6, "v6", "overwrite")]


def test_a_fetch_that_failed_is_made_again_at_the_next_notice() -> None:
    loop = joined()
    loop.steps(1)
    loop.do(notice(2, 1))
    assert only(Fetch, loop.do(FetchFailed(1, 2, "bad_digest"))) == []
    assert loop.facts(AdoptionRefused) == [AdoptionRefused(1, 2, "bad_digest")]
    assert len(only(Fetch, loop.do(notice(2, 1)))) == 1


@pytest.mark.parametrize("epoch", [0, 2])
def test_notices_grants_and_stops_of_another_epoch_are_ignored(epoch: int) -> None:
    loop = joined()
    loop.steps(1)
    assert loop.do(notice(2, 1, epoch=epoch)) == []
    loop.do(Grant(epoch, 3, 9, 900, 1000), Grant(1, 2, 9, 900, 1000), Stop(epoch, "enough"))
    assert len(only(RunStep, loop.step())) == 1
    assert loop.reports[-1].newest_span == 0


# ------------------------------------------------------------------ strict overlap


def test_strict_overlap_adopts_exactly_tau_steps_after_the_read_and_holds_until_then() -> None:
    loop = joined(overlap="strict", tau=2)
    loop.steps(1)
    assert loop.read(2, 1) == [], "the copy of step 1 is none of step 2"
    [answer] = answers(loop.step())
    assert (answer.step, answer.syncer_step) == (2, 2)
    loop.deliver(2, 1)
    assert only(Apply, loop.step()) == [], "not before 2 + tau"
    assert only(Apply, loop.step()) == [Apply(1, 2, "v2", "overwrite")]
    assert loop.facts(Adopted)[-1].after_step == 4

    loop.do(ReadRequest(1, 3, 4, 0, 1, 0.0, 100.0))
    loop.step()
    effects = loop.step()  # step 6: fragment 0, read at 4, has not come
    assert [(hold.reason, len(only(RunStep, effects))) for hold in only(Hold, effects)] == [("adoption", 0)]
    loop.now += 7.0
    assert [hold.reason for hold in only(Hold, loop.do(Resume()))] == ["adoption"]
    loop.deliver(4, 0)
    effects = loop.do(Resume())
    assert (len(only(Apply, effects)), len(only(RunStep, effects))) == (1, 1)
    assert loop.facts(Adopted)[-1] == Adopted(0, 4, 6, "overwrite")
    loop.step()
    assert (loop.facts(StepFinished)[-1].waited_for, loop.facts(StepFinished)[-1].waited_s) == ("adoption", 7.0)


def test_a_strict_learner_starts_at_the_syncers_clock() -> None:
    loop = Loop(overlap="strict")
    loop.join(versions=(4, 2), syncer_step=5)
    loop.step()
    assert loop.facts(StepFinished)[0].step == 6


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


def test_a_doubled_grant_lends_nothing_twice() -> None:
    loop = Loop(span_steps=4)
    loop.join(samples=8)
    loop.do(Grant(1, 3, 0, 0, 8), Grant(1, 3, 1, 8, 16), Grant(1, 3, 1, 8, 16), Grant(1, 3, 0, 0, 8))
    loop.steps(7)
    loop.step()
    assert [fact.position for fact in loop.facts(StepFinished)] == [0, 2, 4, 6, 8, 10, 12, 14]


def test_without_samples_it_holds_and_the_wait_is_booked_apart_from_the_step() -> None:
    loop = Loop(span_steps=2)
    loop.join(samples=4)
    loop.step()
    effects = loop.step()
    assert [hold.reason for hold in only(Hold, effects)] == ["span"] and only(RunStep, effects) == []
    loop.now += 3.0
    effects = loop.do(Resume())
    assert [hold.reason for hold in only(Hold, effects)] == ["span"]
    assert loop.reports[-1].wants_span and loop.reports[-1].phase == STEPPING, "holding renews the lease"
    loop.now += 1.0
    loop.do(Grant(1, 3, 1, 4, 8))
    [run] = only(RunStep, loop.do(Resume()))
    assert run.start == 4
    loop.step()
    loop.step()
    waited = [(fact.waited_for, fact.waited_s, fact.seconds) for fact in loop.facts(StepFinished)]
    assert waited == [("", 0.0, 1.0), ("", 0.0, 1.0), ("span", 4.0, 1.0), ("", 0.0, 1.0)]


def test_waiting_to_join_is_no_part_of_the_wait_for_samples() -> None:
    loop = Loop()
    loop.compile()
    loop.do(Welcome(1, 0, 0.0, (0, 0)), Resume())
    loop.now = 5.0
    loop.do(Fetched(0, 0, "v0"), Fetched(1, 0, "v0"), Resume())
    loop.now = 8.0
    loop.do(Grant(1, 3, 0, 0, 200), Resume())
    loop.step()
    [fact] = loop.facts(StepFinished)
    assert (fact.waited_for, fact.waited_s, fact.seconds) == ("span", 3.0, 1.0)


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


def test_a_stop_that_overtakes_the_welcome_is_not_lost() -> None:
    loop = Loop()
    loop.compile()
    loop.do(Stop(1, "enough"), Welcome(1, 8, 1.0, (8, 6)), Fetched(0, 8, "v8"), Fetched(1, 6, "v6"))
    assert only(Exit, loop.do(Resume())) == [Exit("enough")]


def test_a_stop_ends_a_joiner_and_one_that_waits() -> None:
    loop = Loop()
    loop.compile()
    loop.do(Welcome(1, 0, 0.0, (0, 0)), Resume(), Stop(1, "enough"))
    assert only(Exit, loop.do(Resume())) == [Exit("enough")]


# ------------------------------------------------------------------ reports


def test_reports_are_numbered_without_a_gap_and_say_what_is_so() -> None:
    loop = joined()
    loop.steps(3)
    assert [report.sequence for report in loop.reports] == list(range(1, len(loop.reports) + 1))
    last = loop.reports[-1]
    assert (last.step, last.tokens, last.loss, last.step_s, last.epoch) == (3, 30, 2.0, 1.0, 1)
    assert last.counters == (FragmentCounters(0, 0, 3, 30),) * 2
    assert loop.reports[0].epoch is None


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
