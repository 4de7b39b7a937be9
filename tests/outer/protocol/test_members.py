"""Who may speak, who is alive, what is lent: members alone, without quorums or merges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from outer.protocol.events_effects import Expect
from outer.protocol.facts import LearnerFenced, LeaseExpired, LeaseRenewed, Refused, SpanGranted, SpanReturned
from outer.protocol.members import Members
from outer.protocol.messages import COMPILING, STEPPING, Attach, Contribution, FragmentCounters, Report


def report(learner: str = "a", incarnation: int = 1, epoch: int | None = 7, **change: Any) -> Report:
    given: dict[str, Any] = {"sequence": 1, "phase": STEPPING, "lease_s": 3.0, "step": 1, "step_s": 1.0, "tokens": 10}
    return Report(learner=learner, incarnation=incarnation, epoch=epoch, syncer_step=0, **(given | change))


def contribution(steps: tuple[int, int], incarnation: int = 1) -> Contribution:
    """Of 10 tokens a step."""
    begin, end = steps
    counters = FragmentCounters(0, begin, end - begin, 10 * (end - begin))
    return Contribution("a", incarnation, 7, 4, 0, 1, end, 10 * end, counters, None, "digest")


@pytest.fixture
def members() -> Members:
    """Epoch 7; learner a, of batches of 2, is expected as incarnation 1; b is not."""
    made = Members(7, {"a": 2, "b": 3}, span_steps=4)
    assert made.expect(0.0, Expect("a", 1, 60.0, 2))
    return made


def stepping(members: Members, now: float = 0.0, **change: Any) -> None:
    said = report(**change)
    member = members.admit(said, "report")
    assert member is not None
    said = replace(said, sequence=member.report.sequence + 1 if member.report else 1)
    members.record_report(now, member, said)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (report("nobody"), "unknown_learner"),
        (report("b"), "stale_incarnation"),
        (report(incarnation=0), "stale_incarnation"),
        (report(incarnation=2), "stale_incarnation"),
        (report(epoch=6), "stale_epoch"),
        (report(epoch=8), "stale_epoch"),
    ],
)
def test_who_may_not_speak_is_refused_with_the_reason(members: Members, said: Report, reason: str) -> None:
    assert members.admit(said, "report") is None
    [fact] = members.drain_facts()
    assert isinstance(fact, Refused) and (fact.reason, fact.message) == (reason, "report")


def test_a_learner_that_is_not_attached_yet_reports_without_an_epoch(members: Members) -> None:
    assert members.admit(report(epoch=None, phase=COMPILING), "report") is not None
    assert members.admit(Attach("a", 1, {}), "attach") is not None
    assert members.drain_facts() == []


def test_a_stale_report_is_said_once_and_each_stale_contribution_every_time(members: Members) -> None:
    members.fence("a", "killed")
    members.drain_facts()
    for _ in range(3):
        members.admit(report(), "report")
        members.admit(contribution((0, 1)), "contribution")
    said = [fact.message for fact in members.drain_facts() if isinstance(fact, Refused)]
    assert sorted(said) == ["contribution"] * 3 + ["report"]


def test_a_learner_that_was_not_configured_joins_by_being_expected(members: Members) -> None:
    assert members.expect(1.0, Expect("newcomer", 1, 60.0, 4, "far"))
    assert "newcomer" in members.names
    member = members.get("newcomer", 1)
    assert member is not None and (member.batch_size, member.region) == (4, "far")


def test_a_newer_incarnation_fences_the_older_and_old_news_changes_nothing(members: Members) -> None:
    assert members.expect(1.0, Expect("a", 3, 60.0, 2))
    assert members.drain_facts() == [LearnerFenced("a", 1, "superseded")]
    for old in (3, 2, 1):
        assert not members.expect(2.0, Expect("a", old, 60.0, 2))
    reasons = [fact.reason for fact in members.drain_facts() if isinstance(fact, Refused)]
    assert reasons == ["stale_incarnation"] * 3
    assert members.admit(report(incarnation=3), "report") is not None


def test_a_fence_meant_for_an_older_incarnation_does_not_hit_the_newer(members: Members) -> None:
    members.expect(1.0, Expect("a", 2, 60.0, 2))
    assert not members.fence("a", "killed", incarnation=1)
    assert members.fence("a", "killed", incarnation=2)
    assert not members.fence("a", "killed", incarnation=2), "once"
    assert not members.fence("nobody", "killed")


def test_only_stepping_learners_with_a_lease_are_live_and_a_report_renews_it(members: Members) -> None:
    stepping(members, phase=COMPILING, epoch=None)
    assert members.live == []
    stepping(members, now=1.0)
    assert [member.name for member in members.live] == ["a"]
    assert members.expire(4.0) == ["a"]
    assert members.live == []
    stepping(members, now=6.0)
    assert [member.name for member in members.live] == ["a"]
    assert members.drain_facts() == [LeaseExpired("a", 1, STEPPING, 3.0), LeaseRenewed("a", 1, 5.0)]


@pytest.mark.parametrize("late", [1, 2])
def test_a_late_or_doubled_report_does_not_stretch_the_lease_of_a_learner_that_steps(
    members: Members, late: int
) -> None:
    """An early report names the lease of a start, minutes against seconds."""
    early = report(phase=COMPILING, epoch=None, lease_s=600.0, step=0, step_s=0.0, tokens=0)
    member = members.admit(early, "report")
    assert member is not None
    assert members.record_report(0.0, member, early)
    assert members.record_report(1.0, member, report(sequence=2))
    assert not members.record_report(2.0, member, replace(early, sequence=late))
    assert members.expire(4.0) == ["a"] and members.live == []
    assert not members.record_report(5.0, member, replace(early, sequence=late))
    assert members.live == [], "nor does it bring one back to life"
    assert members.record_report(6.0, member, report(sequence=3)) and len(members.live) == 1


def test_a_span_not_arrived_is_lent_again_and_a_new_one_only_after_it(members: Members) -> None:
    stepping(members, newest_span=-1)
    member = members.admit(report(), "report")
    assert member is not None
    first = members.lend(member)
    assert members.lend(member) == first
    stepping(members, newest_span=first.identifier)
    second = members.lend(member)
    assert (first.start, first.stop, second.start, second.stop) == (0, 8, 8, 16)
    assert [fact.span for fact in members.drain_facts() if isinstance(fact, SpanGranted)] == [0, 1]


def test_the_part_of_a_loan_after_the_last_committed_step_returns(members: Members) -> None:
    stepping(members)
    member = members.admit(report(), "report")
    assert member is not None
    members.lend(member)
    assert members.cover(contribution((0, 3))) == 30
    members.fence("a", "killed")
    assert SpanReturned("a", 1, 0, 6, 8) in members.drain_facts()


def test_tokens_processed_go_on_counting_over_incarnations(members: Members) -> None:
    stepping(members, tokens=40)
    members.expect(1.0, Expect("a", 2, 60.0, 2))
    assert members.tokens_processed == 40
    stepping(members, incarnation=2, tokens=5)
    assert members.tokens_processed == 45


def test_rows_tell_what_is_known_and_none_of_what_is_not(members: Members) -> None:
    held = (FragmentCounters(4, 0, 1, 10), FragmentCounters(None, 0, 1, 10), FragmentCounters(6, 0, 1, 10))
    stepping(members, now=1.0, counters=held, step=3, step_s=0.5, tokens=30, loss=2.5)
    known = {
        "name": "a",
        "incarnation": 1,
        "phase": STEPPING,
        "step": 3,
        "step_s": 0.5,
        "tokens": 30,
        "loss": 2.5,
        "aux": None,
    }
    unknown = {
        "name": "b",
        "incarnation": 0,
        "phase": "",
        "step": 0,
        "step_s": 0.0,
        "tokens": 0,
        "loss": None,
        "aux": None,
    }
    versions = [8, 1, 6]  # two are newer than what a holds
    assert members.rows(1.23456, versions) == [
        known | {"alive": True, "lease_age_s": 0.235, "version_lag": 2},
        unknown | {"alive": False, "lease_age_s": None, "version_lag": None},
    ]
    members.expire(4.0)
    silent = members.rows(4.0, versions)[0]
    assert (silent["alive"], silent["phase"], silent["lease_age_s"]) == (False, STEPPING, 3.0)
    members.fence("a", "killed")
    gone = members.rows(5.0, versions)[0]
    assert (gone["alive"], gone["phase"], gone["lease_age_s"], gone["step"]) == (False, "", None, 3)


def test_a_report_of_fewer_fragments_than_there_are_breaks_no_row(members: Members) -> None:
    stepping(members, counters=(FragmentCounters(0, 0, 1, 10),))
    assert members.rows(1.0, [2, 4])[0]["version_lag"] == 1


def test_the_pace_stays_what_it_was_while_nobody_living_has_one(members: Members) -> None:
    """Else a learner that comes back alone, and has not finished a step, would open steps without a pause."""
    assert members.step_s == 0.0, "it is not known of anybody"
    stepping(members, step_s=0.4)
    assert members.step_s == 0.4
    assert members.expect(1.0, Expect("a", 2, 60.0, 2))
    assert members.step_s == 0.4 and members.live == []
    stepping(members, incarnation=2, step=0, step_s=0.0)
    assert len(members.live) == 1 and members.step_s == 0.4
    stepping(members, incarnation=2, step_s=0.7)
    assert members.step_s == 0.7


def test_the_pace_stays_the_last_known_one_when_a_learner_is_fenced(members: Members) -> None:
    stepping(members, step_s=0.4)
    members.fence("a", "killed")
    assert members.step_s == 0.4
