"""Who may speak and who is alive: members and their leases alone, without quorums or merges."""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outer.protocol.events_effects import Expect
from outer.protocol.facts import Committed, LeaseExpired, LeaseRenewed, Participant, Refused, SetAside
from outer.protocol.leases import Leases
from outer.protocol.members import Members
from outer.protocol.messages import (
    COMPILING,
    DRAINING,
    JOINING,
    STEPPING,
    STOPPED,
    Contribution,
    FragmentCounters,
    Report,
)


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


def test_a_stale_report_is_said_once_and_each_stale_contribution_every_time(members: Members) -> None:
    members.fence("a", "killed")
    members.drain_facts()
    for _ in range(3):
        members.admit(report(), "report")
        members.admit(contribution((0, 1)), "contribution")
    said = [fact.message for fact in members.drain_facts() if isinstance(fact, Refused)]
    assert sorted(said) == ["contribution"] * 3 + ["report"]


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


def test_rows_tell_what_is_known_and_none_of_what_is_not(members: Members) -> None:
    held = (FragmentCounters(4, 0, 1, 10), FragmentCounters(None, 0, 1, 10), FragmentCounters(6, 0, 1, 10))
    stepping(members, now=1.0, counters=held, step=3, step_s=0.5, tokens=30, loss=2.5)
    versions = [8, 1, 6]  # two are newer than what a holds
    known, unknown = members.rows(1.23456, versions)
    assert (known["step"], known["step_s"], known["tokens"], known["loss"]) == (3, 0.5, 30, 2.5)
    assert (known["alive"], known["lease_age_s"], known["version_lag"]) == (True, 0.235, 2)
    assert (unknown["incarnation"], unknown["phase"], unknown["step"], unknown["alive"]) == (0, "", 0, False)
    assert unknown["loss"] is unknown["lease_age_s"] is unknown["version_lag"] is None
    members.expire(4.0)
    silent = members.rows(4.0, versions)[0]
    assert (silent["alive"], silent["phase"], silent["lease_age_s"]) == (False, STEPPING, 3.0)
    members.fence("a", "killed")
    gone = members.rows(5.0, versions)[0]
    assert (gone["alive"], gone["phase"], gone["lease_age_s"], gone["step"]) == (False, "", None, 3)


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
    members.fence("a", "killed")
    assert members.step_s == 0.7


@pytest.mark.parametrize(
    "wrong",
    [
        {"tokens": 1e300}, {"tokens": 10**18}, {"step": None}, {"step_s": float("nan")}, {"lease_s": "long"},
        {"counters": None}, {"counters": ((0, 0, 1, 1),)}, {"counters": (FragmentCounters(0, 0, None, 1),)},
        {"aux": {"loss": "low"}}, {"learner": ["a"]}, {"incarnation": None},
    ],
)  # fmt: skip
def test_a_message_whose_values_cannot_be_is_refused_once(members: Members, wrong: dict[str, Any]) -> None:
    for _ in range(3):
        assert members.admit(report(**wrong), "report") is None
    [fact] = members.drain_facts()
    assert isinstance(fact, Refused) and (fact.reason, fact.detail) == ("malformed", next(iter(wrong)))


def test_nobody_has_made_more_than_it_was_lent_samples_for() -> None:
    members = Members(7, {"a": 2}, span_steps=4, sample_tokens=5)
    members.expect(0.0, Expect("a", 1, 60.0, 2))
    stepping(members, step=0, tokens=0)
    span = members.lend(members.known("a"))
    assert span.samples == 8
    for step, tokens, admitted in ((4, 40, True), (4, 41, False), (5, 40, False)):
        assert bool(members.admit(report(step=step, tokens=tokens, sequence=2), "report")) == admitted
        counters = FragmentCounters(0, 0, step, tokens)
        answer = Contribution("a", 1, 7, 4, 0, 1, step, tokens, counters, None, "digest")
        assert bool(members.admit(answer, "contribution")) == admitted
    assert {fact.reason for fact in members.drain_facts() if isinstance(fact, Refused)} == {"wrong_counters"}


# ------------------------------------------------------------------ samples that end learners


@pytest.mark.parametrize(
    ("ends", "aside_max", "aside"),
    [
        ([("failed", 3, {}), ("failed", 3, {})], 1, [(6, 8)]),
        ([("failed", 3, {}), ("failed", 3, {})], 0, []),
        ([("failed", 3, {}), ("failed", 4, {})], 1, []),
        ([("killed", 1, {}), ("killed", 3, {})], 1, [(6, 10)]),  # each may have begun four batches
        ([("killed", 1, {}), ("failed", 4, {})], 1, [(8, 10)]),
        ([("lease_expired", 5, {"waits": True})] * 2, 1, [(10, 12)]),
        ([("failed", 5, {"non_finite": 3, "phase": STOPPED})] * 2, 1, [(4, 6)]),
        ([("drained", 3, {}), ("superseded", 3, {}), ("stopped", 3, {})] * 2, 1, []),
        ([("killed", 3, {"phase": JOINING})] * 2, 1, []),
        ([("failed", 3, {})] * 2 + [("failed", 1, {})] * 2, 1, [(6, 8)]),
        ([("failed", 3, {})] * 2 + [("failed", 1, {})] * 2, 2, [(6, 8), (2, 4)]),
    ],
)
def test_samples_on_which_two_incarnations_ended_are_set_aside(
    ends: list[tuple[str, int, dict[str, Any]]], aside_max: int, aside: list[tuple[int, int]]
) -> None:
    members = Members(7, {"a": 2}, span_steps=8, aside_max=aside_max)
    said: list[Any] = []
    for incarnation, (reason, step, change) in enumerate(ends, start=1):
        assert members.expect(0.0, Expect("a", incarnation, 60.0, 2))
        stepping(members, incarnation=incarnation, step=0)
        span = members.lend(members.known("a"))
        stepping(members, incarnation=incarnation, newest_span=span.identifier, **({"step": step} | change))
        members.fence("a", reason)
        said += members.drain_facts()
    assert [(fact.start, fact.stop) for fact in said if isinstance(fact, SetAside)] == aside
    assert members.expect(0.0, Expect("a", 99, 60.0, 2))
    lent: list[int] = []
    while len(lent) < 40:
        stepping(members, incarnation=99, newest_span=(lent and span.identifier) or -1)
        span = members.lend(members.known("a"))
        lent += range(span.start, span.stop)
    gone = {sample for start, stop in aside for sample in range(start, stop)}
    assert set(range(16)) - set(lent) == gone


# ------------------------------------------------------------------ leases


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.0, 2.0), st.floats(0.0, 3.0)), min_size=1, max_size=30))
def test_waking_at_the_next_expiry_misses_none(script: list[tuple[str, float, float]]) -> None:
    leases, now = Leases(), 0.0
    ends: dict[str, float] = {}
    for name, wait, lease_s in script:
        now += wait
        for expired, _ in leases.expire(now):
            assert ends.pop(expired) <= now
        assert all(end > now for end in ends.values()), "each that has run out was named"
        assert leases.next_expiry == min(ends.values(), default=None)
        leases.renew(name, "stepping", now, lease_s)
        ends[name] = now + lease_s
        assert leases.holds(name)


WHO, WHAT = st.sampled_from("abc"), st.sampled_from(("expect", "fence", "report", "drain", "compile", "quarantine"))


@given(st.lists(st.tuples(WHO, WHAT, st.sampled_from((0.0, 0.5, 1.0, 2.5)), st.floats(0.0, 2.0)), max_size=40))
def test_who_is_live_and_the_median_step_time_follow_every_change(story: list[tuple[str, str, float, float]]) -> None:
    members, now, kept = Members(7, dict.fromkeys("abc", 2), span_steps=4), 0.0, 0.0

    def judge() -> None:
        nonlocal kept
        expected = [
            member
            for member in map(members.known, "abc")
            if not (member.fenced or member.quarantined)
            and member.report is not None
            and member.report.phase in (STEPPING, DRAINING)
            and members._leases.holds(member.name)
        ]
        paces = [member.report.step_s for member in expected if member.report and member.report.step_s]
        kept = median(paces) if paces else kept
        assert members.live == expected and members.step_s == kept

    for sequence, (name, what, step_s, later_s) in enumerate(story):
        now += later_s
        members.expire(now)
        judge()
        newest = members.known(name)
        if what == "expect":
            members.expect(now, Expect(name, newest.incarnation + 1, 2.0, 2))
        elif what == "fence":
            members.fence(name, "killed")
        elif not newest.fenced and what == "quarantine":
            members.quarantine(newest)
        elif not newest.fenced:
            phase = {"drain": DRAINING, "compile": COMPILING}.get(what, STEPPING)
            said = report(name, newest.incarnation, sequence=sequence, phase=phase, step_s=step_s)
            members.record_report(now, newest, said)
        judge()


def test_a_learners_row_says_how_many_inner_steps_it_makes_in_a_round() -> None:
    """H = 8, P = 2. The first exchange does not count: until it is over few steps are open."""
    members = Members(7, {"a": 2}, span_steps=4, round_steps=8)
    members.expect(0.0, Expect("a", 1, 60.0, 2))
    stepping(members)

    def merged(syncer_step: int, step: int, paced: bool = True) -> float | None:
        one = Participant("a", 1, step, 0, step, 10 * step, 1.0, "digest")
        commit = Committed(syncer_step, 0, 7, 0, (one,), 1, "digest", 1.0, 0, 0.1, 0.1, 0.1, "why")
        members.note_merged(commit, paced)
        said: float | None = members.rows(0.0, [0, 0])[0]["round_steps"]
        return said

    assert [merged(4, 40, paced=False), merged(8, 50)] == [None, None]
    assert [merged(12, 54), merged(16, 58)] == [8.0, 8.0], "from the second contribution on"
    assert [merged(20, 64), merged(24, 70)] == [28 / 3, 10.0]
    assert merged(40, 94) == 11.0, "rounds that it was not in count"
    assert [merged(44 + 4 * n, 100 + 5 * n) for n in range(33)][-1] == 10.0, "the newest alone are kept"
    assert members.expect(1.0, Expect("a", 2, 60.0, 2)) and members.rows(0.0, [0, 0])[0]["round_steps"] is None
