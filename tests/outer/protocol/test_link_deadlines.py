"""Deadlines of reads follow the bytes and what was seen of each learner's link."""

from __future__ import annotations

import pytest

from outer.protocol.events_effects import Tick
from outer.protocol.facts import Committed, LeaseExpired, ReadFailed, Refused
from outer.protocol.leases import IN_FLOOR, MARGIN, SLOWEST_LINK, LinkRate, longest_s
from outer.protocol.messages import ReadRequest
from tests.golden.bench import Bench, reading

FLOOR_S = 2.0
BYTES = IN_FLOOR + 40 * 2**20
SLOW_S = 40 * 2**20 / SLOWEST_LINK  # that a link may take at worst


def slow_reading(*names: str) -> Bench:
    return reading(
        *names, elements=BYTES // 4, sync={"read_timeout_s": FLOOR_S, "P": 1, "H": 1, "tau": 0, "grace": 1.0}
    )


def newest_deadline(made: Bench, learner: str) -> float:
    return made.sent(ReadRequest, learner)[-1].deadline_s


def test_small_transfers_have_the_floor_and_large_ones_time_for_their_bytes() -> None:
    link = LinkRate()
    assert link.deadline_s(FLOOR_S, IN_FLOOR) == longest_s(FLOOR_S, 1) == FLOOR_S
    assert link.deadline_s(FLOOR_S, BYTES) == FLOOR_S + SLOW_S, "a link that was never seen counts as slow"
    link.note(BYTES, 1.0)
    once = link.deadline_s(FLOOR_S, BYTES)
    assert once == pytest.approx(FLOOR_S + MARGIN, rel=0.05)
    link.note(BYTES, 2.0)
    assert link.deadline_s(FLOOR_S, BYTES) == pytest.approx(FLOOR_S + 2 * MARGIN, rel=0.05), "slower counts at once"
    for _ in range(100):
        link.note(BYTES, 1.0)
    assert link.deadline_s(FLOOR_S, BYTES) == pytest.approx(once, rel=0.001)
    link.note(BYTES, 1e6)
    assert link.deadline_s(FLOOR_S, BYTES) == FLOOR_S + SLOW_S, "no deadline is longer"
    small = LinkRate()
    small.note(IN_FLOOR, 60.0)
    assert small == LinkRate(), "the time of a small transfer is not that of its bytes"


def test_a_fragment_that_needs_five_seconds_is_merged_and_the_next_deadline_is_what_its_link_needs() -> None:
    made = slow_reading("a", "b")
    assert newest_deadline(made, "a") == FLOOR_S + SLOW_S
    made.answer("b", took_s=0.5)
    made.now = 3.5
    made.step("a", "b")  # their leases go on
    made.now = 6.0
    made.answer("a", took_s=5.0)
    assert [len(fact.participants) for fact in made.facts(Committed)] == [2] and made.facts(ReadFailed) == []
    made.adopt("a", "b")
    made.now = 7.0
    made.step("a", "b")
    assert newest_deadline(made, "b") == pytest.approx(FLOOR_S + MARGIN * 0.5, rel=0.05)
    assert newest_deadline(made, "a") == pytest.approx(FLOOR_S + MARGIN * 5.0, rel=0.05)


def test_a_frozen_learner_is_waited_for_once_and_no_longer_than_its_lease() -> None:
    made = slow_reading("a", "b", "c")
    made.peers["c"].lease_s = 1.5
    made.step("c")
    made.now = 1.5
    made.step("a", "b")
    made.answer("a", "b", took_s=0.5)
    assert made.facts(Committed) == [], "c may still answer"
    made.now = 2.6
    made.do(Tick())
    assert [fact.learner for fact in made.facts(LeaseExpired)] == ["c"]
    assert [(fact.learner, fact.reason) for fact in made.facts(ReadFailed)] == [("c", "lease_expired")]
    assert [len(fact.participants) for fact in made.facts(Committed)] == [2]


def test_an_answer_that_came_late_is_refused_and_gives_the_next_one_time() -> None:
    made = slow_reading("a", "b")
    made.answer("a", "b", took_s=0.1)
    made.adopt("a", "b")
    made.now = 2.0
    made.step("a", "b")
    deadline_s = newest_deadline(made, "a")
    assert deadline_s < FLOOR_S + 0.3
    made.answer("b", took_s=0.1)
    made.now = 4.0
    made.step("a", "b")
    made.now = 2.0 + deadline_s
    made.do(Tick())
    assert [(fact.learner, fact.reason) for fact in made.facts(ReadFailed)] == [("a", "timeout")]
    made.answer("a", took_s=4.0)
    assert [fact.reason for fact in made.facts(Refused)] == ["late"]
    made.now = 5.0
    made.step("a", "b")
    assert newest_deadline(made, "a") == pytest.approx(FLOOR_S + MARGIN * 4.0, rel=0.05)
