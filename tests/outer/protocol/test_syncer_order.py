"""The syncer machine against scripted learners: the order of commits, repetition, fencing, and the end."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from outer.protocol.events_effects import Append, Durable, Fence, Merge, Publish, ReadMissed, Send, Tick
from outer.protocol.facts import (
    Committed,
    LearnerAttached,
    LearnerFenced,
    LeaseExpired,
    LeaseRenewed,
    ReadFailed,
    Refused,
    SpanReturned,
    StepOpened,
    StepPassed,
    StepReopened,
)
from outer.protocol.messages import STOPPED, Attach, Grant, Notice, ReadRequest, Welcome
from outer.protocol.syncer import RESEND_S
from tests.golden.bench import ALL, MANIFEST, PATIENT, Bench, bench, merged, reading

# ------------------------------------------------------------------ order and pace


def in_flight(count: int = 2) -> Bench:
    """Syncer steps 1 to `count`, each with a fragment, are all being merged."""
    made = bench("a", "b", sync={"P": 4, "H": 4, "tau": 3}, merges_itself=False, journals_itself=False)
    for step in range(1, count + 1):
        made.now = float(step)
        made.step("a", "b")
        made.answer("a", "b")
    assert [e.syncer_step for e in made.log if isinstance(e, Merge)] == list(range(1, count + 1))
    return made


def test_commits_and_announcements_are_in_the_order_of_t_whatever_merges_first() -> None:
    made = in_flight(3)
    made.journals_itself = True
    made.do(merged(3))
    made.do(merged(2))
    assert made.published == [] and made.notices == []
    made.do(merged(1))
    assert made.published == [(1, 1), (2, 2), (3, 3)]
    assert [version for _, version in made.notices] == [1, 1, 2, 2, 3, 3]
    assert [e.sequence for e in made.log if isinstance(e, Append)] == [0, 1, 2]


def test_nobody_is_told_before_the_commit_is_durable() -> None:
    made = in_flight(2)
    made.do(merged(1))
    made.do(merged(2))
    assert len([e for e in made.log if isinstance(e, Append)]) == 1, "one append at a time"
    assert made.facts(Committed) == [] and made.notices == [] and made.syncer.versions == [0] * 4
    made.do(Durable(0))
    made.do(Durable(0))
    assert [fact.syncer_step for fact in made.facts(Committed)] == [1]
    assert made.syncer.versions == [0, 1, 0, 0]
    made.do(Durable(1))
    assert [fact.syncer_step for fact in made.facts(Committed)] == [1, 2]


def test_what_is_made_durable_and_then_published_is_what_was_merged() -> None:
    made = reading("a", "b", journals_itself=False)
    made.answer("a", "b")
    [append] = [e for e in made.log if isinstance(e, Append)]
    assert (append.sequence, append.proposal) == (0, "value of 1")
    effects = made.do(Durable(0))
    assert [e for e in effects if isinstance(e, Publish)] == [Publish(0, 1, "value of 1")]


def test_each_message_is_meant_for_one_incarnation() -> None:
    made = bench("a", "b")
    made.join("a", **PATIENT)
    welcomes = [e for e in made.log if isinstance(e, Send) and isinstance(e.message, Welcome)]
    assert [(e.learner, e.incarnation) for e in welcomes] == [("a", 1), ("b", 1), ("a", 2)]


@pytest.mark.parametrize(("tau", "most"), [(0, 1), (1, 1), (2, 2), (3, 3)])
def test_at_most_tau_steps_are_open_and_never_fewer_than_one_may_be(tau: int, most: int) -> None:
    made = bench("a", "b", sync={"P": 4, "H": 4, "tau": tau, "read_timeout_s": 1e6})
    for _ in range(10):
        made.now += 1.0
        made.step("a", "b")
    assert [fact.syncer_step for fact in made.facts(StepOpened)] == list(range(1, most + 1))


def test_by_the_clock_t_advances_at_most_once_per_step_time() -> None:
    made = bench("a", "b")
    opened = []
    for _ in range(60):
        made.now += 0.25
        before = made.syncer.syncer_step
        made.step("a", "b")
        made.answer("a", "b")
        made.adopt("a", "b")
        if made.syncer.syncer_step > before:
            opened.append(made.now)
    assert len(opened) == 15
    assert all(after - before >= 1.0 for before, after in pairwise([0.0, *opened]))


def test_by_the_quorum_t_advances_as_fast_as_learners_report() -> None:
    made = bench("a", "b", sync={"pacing": "quorum"})
    for _ in range(5):
        made.step("a", "b")
        made.answer("a", "b")
        made.adopt("a", "b")
    assert made.now == 0.0 and len(made.facts(Committed)) == 5


def test_steps_without_a_fragment_pass_in_order_and_never_overtake_a_commit() -> None:
    made = bench("a", "b", sync={"P": 1, "H": 4, "tau": 3})
    for _ in range(8):
        made.now += 1.0
        made.step("a", "b")
    assert [fact.syncer_step for fact in made.facts(StepPassed)] == [1, 2, 3]
    made.answer("a", "b")
    assert [fact.syncer_step for fact in made.facts(Committed)] == [4]
    order = [fact.syncer_step for e in made.log if isinstance(fact := getattr(e, "fact", None), StepPassed | Committed)]
    assert order == sorted(order) and order[-1] > 4


def test_a_report_that_was_overtaken_or_doubled_counts_for_no_quorum() -> None:
    made = bench("a", "b")
    made.now = 1.0
    peer = made.peers["b"]
    first, second = peer.report(step=1, tokens=10), peer.report(step=0)
    made.step("a")
    for report in (second, second, first, first):
        made.do(report)
    assert made.asked(1) == [] and made.facts(StepReopened) == []


# ------------------------------------------------------------------ what is sent again


def test_a_notice_is_sent_again_while_reports_show_an_old_base() -> None:
    made = reading("a", "b", sync={"pacing": "quorum"})
    made.answer("a", "b")
    assert made.notices == [("a", 1), ("b", 1)]
    made.adopt("b")
    again_s = max(RESEND_S, 2 * made.peers["a"].step_s)  # what a report shows may be a step old
    for wait, times in ((0.5, 1), (again_s, 2), (1.5 * again_s, 2), (2 * again_s, 3)):
        made.now = 1.0 + wait
        made.do(made.peers["a"].report())
        made.do(made.peers["b"].report())
        assert made.notices.count(("a", 1)) == times
    made.adopt("a")
    made.now += 10.0
    made.do(made.peers["a"].report())
    assert (made.notices.count(("a", 1)), made.notices.count(("b", 1))) == (3, 1)


def test_a_grant_is_sent_again_until_the_report_shows_the_span() -> None:
    made = bench("a", "b")
    peer = made.peers["a"]
    peer.wants_span = True
    for now, grants in ((0.0, 1), (0.5, 1), (1.0, 2), (1.9, 2), (2.0, 3)):
        made.now = now
        made.do(peer.report())
        assert [grant.span for grant in made.sent(Grant, "a")] == [0] * grants
    peer.newest_span = 0
    made.do(peer.report())
    assert [(g.span, g.start, g.stop) for g in made.sent(Grant, "a")[-2:]] == [(0, 0, 8), (1, 8, 16)]
    peer.newest_span, peer.wants_span = 1, False
    made.do(peer.report())
    assert len(made.sent(Grant, "a")) == 4


def test_a_notice_says_which_read_of_its_receiver_is_in_the_version() -> None:
    made = reading("a", "b", "c", sync=ALL)
    made.do(ReadMissed("c", 1, 1, "timeout"))
    made.answer("b")
    made.join("b", **PATIENT)
    made.answer("a")
    assert [(one.learner, one.incarnation) for one in made.facts(Committed)[0].participants] == [("a", 1), ("b", 1)]
    made.adopt("a", "b", "c")
    made.now = 2.0
    made.step("a", "b", "c")
    made.do(ReadMissed("a", 1, 2, "timeout"))
    made.answer("b", "c")
    told = {name: [notice.merged_step for notice in made.sent(Notice, name)] for name in "abc"}
    assert told == {"a": [1, 1], "b": [None, 1], "c": [None, 2]}, (
        "its own step then; the first b's reads are not the new b's"
    )


# ------------------------------------------------------------------ leases and fences


def test_a_lease_that_runs_out_is_not_waited_for_and_a_report_renews_it() -> None:
    made = reading("a", "b", "c", sync=ALL | {"read_timeout_s": 60.0}, peers={"lease_s": 3.0})
    made.answer("a", "b")
    made.now = 2.0
    made.step("a", "b")
    assert made.syncer.wake_at == 4.0
    made.now = 4.0
    made.do(Tick())
    assert made.facts(LeaseExpired) == [LeaseExpired("c", 1, "stepping", 3.0)]
    assert [fact.reason for fact in made.facts(ReadFailed)] == ["lease_expired"]
    assert [one.learner for fact in made.facts(Committed) for one in fact.participants] == ["a", "b"]
    made.answer("c")
    assert [fact.reason for fact in made.facts(Refused)] == ["late"]
    made.now = 4.5
    made.adopt("a", "b", "c")
    assert made.facts(LeaseRenewed) == [LeaseRenewed("c", 1, 3.5)]
    made.step("a", "b")
    assert made.asked(2) == [], "c is live again, and waited for"
    made.step("c")
    assert made.asked(2) == ["a", "b", "c"]


def test_a_learner_that_reported_and_whose_lease_lapsed_has_reported_still() -> None:
    """Its next sign of life need not be another step."""
    made = bench("a", "b", sync=ALL | {"participants": "reported"}, peers={"lease_s": 1.0})
    made.now = 0.5
    made.step("a")
    for made.now in (1.0, 1.5):
        made.do(Tick())
    assert {fact.learner for fact in made.facts(LeaseExpired)} == {"a", "b"}
    made.now = 2.0
    made.do(made.peers["a"].report())
    made.step("b")
    assert made.asked(1) == ["a", "b"]


def test_when_the_only_one_with_a_pace_dies_the_others_open_steps_at_the_pace_it_had() -> None:
    """a and b have finished no step so far."""
    made = Bench(quorum=1, sync={"P": 1, "H": 3, "tau": 2})
    made.join("a", "b", step_s=0.0, lease_s=1e9)
    made.join("c", lease_s=1e9)
    made.now = 0.125
    made.step("c")
    made.now = 0.25
    made.do(Fence("c", 1, "killed"))
    opened = []
    while made.now < 2.5:
        wake_at = made.syncer.wake_at
        assert wake_at is not None
        made.now, before = max(wake_at, made.now), made.syncer.syncer_step
        made.do(Tick())
        opened += [made.now] if made.syncer.syncer_step > before else []
    assert [after - before for before, after in pairwise(opened)] == [1.0] * (len(opened) - 1) and len(opened) > 1


def test_a_newer_incarnation_fences_the_older_and_its_answer_is_refused() -> None:
    made = reading("a", "b", "c", sync=ALL)
    old = made.peers["a"].answer(made.sent(ReadRequest, "a")[-1])
    made.join("a", **PATIENT)
    assert made.facts(LearnerFenced) == [LearnerFenced("a", 1, "superseded")]
    assert [fact.reason for fact in made.facts(ReadFailed)] == ["superseded"]
    made.do(old)
    made.do(replace(old, incarnation=2))
    assert [fact.reason for fact in made.facts(Refused)] == ["stale_incarnation", "late"]
    made.answer("b", "c")
    assert [one.learner for fact in made.facts(Committed) for one in fact.participants] == ["b", "c"]


def test_exactly_the_uncommitted_part_of_a_dead_learners_span_is_granted_again() -> None:
    made = bench("a", "b", "c", sync=ALL)
    for name in "ab":
        made.peers[name].wants_span = True
        made.do(made.peers[name].report())
        made.peers[name].newest_span = made.sent(Grant, name)[-1].span
        made.peers[name].wants_span = False
    made.now = 1.0
    made.step("a", "b", "c")
    made.answer("a", "b", "c")
    made.step("a")  # trained on, and not committed
    made.do(Fence("a", 1, "killed"))
    assert made.facts(SpanReturned) == [SpanReturned("a", 1, 0, 2, 8)], "one step of 2 samples is committed"
    made.peers["b"].wants_span = True
    for _ in range(2):
        made.do(made.peers["b"].report())
        made.peers["b"].newest_span = made.sent(Grant, "b")[-1].span
    assert [(grant.start, grant.stop) for grant in made.sent(Grant, "b")] == [(8, 16), (2, 8), (16, 24)]


def test_a_learner_that_dies_after_its_answer_still_merges() -> None:
    made = reading("a", "b", "c", sync=ALL)
    made.answer("a")
    made.do(Fence("a", 1, "killed"))
    made.answer("b", "c")
    assert [one.learner for fact in made.facts(Committed) for one in fact.participants] == ["a", "b", "c"]


def test_a_learner_that_says_it_stopped_is_fenced_and_not_waited_for() -> None:
    made = reading("a", "b", "c", sync=ALL)
    made.answer("b", "c")
    made.do(made.peers["a"].report(phase=STOPPED))
    assert made.facts(LearnerFenced) == [LearnerFenced("a", 1, "stopped")]
    assert len(made.facts(Committed)) == 1


def test_a_fence_returns_a_learner_only_through_a_new_incarnation() -> None:
    made = bench("a", "b")
    made.do(Fence("a", 1, "killed"))
    made.step("a")
    made.do(Attach("a", 1, MANIFEST))
    assert [(fact.message, fact.reason) for fact in made.facts(Refused)] == [
        ("report", "stale_incarnation"),
        ("attach", "stale_incarnation"),
    ]
    made.join("a", **PATIENT)
    assert [fact.incarnation for fact in made.facts(LearnerAttached) if fact.learner == "a"] == [1, 2]


# ------------------------------------------------------------------ attaching


def test_another_manifest_is_refused_with_the_field_that_differs() -> None:
    made = bench("a")
    made.join("b")
    attached = len(made.facts(LearnerAttached))
    made.do(Attach("b", 1, MANIFEST | {"sync.H": 8}))
    [refused] = made.facts(Refused)
    assert (refused.message, refused.reason, refused.detail) == ("attach", "wrong_config", "sync.H: here 4, there 8")
    assert len(made.facts(LearnerAttached)) == attached and len(made.sent(Welcome, "b")) == 1


def test_a_joiner_is_welcomed_with_the_current_versions_and_the_clock() -> None:
    made = bench("a", "b")
    for _ in range(3):
        made.commit("a", "b")
    made.join("c")
    [welcome] = made.sent(Welcome, "c")
    assert (welcome.epoch, welcome.syncer_step, welcome.versions) == (1, 3, (3,))
    assert welcome.progress == 3 / 1000
