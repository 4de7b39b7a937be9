"""A learner behind a slow link slows nobody: what of its answers does not fit in tau steps is not waited for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from outer.protocol.facts import Committed, ReadFailed
from outer.protocol.leases import IN_FLOOR, MARGIN, SLOWEST_LINK, LinkRate, longest_s
from outer.protocol.link_estimate import LinkEstimate
from outer.protocol.messages import Contribution, ReadRequest
from tests.transcripts.syncer_world import Bench, bench, reading

MIB = 2**20
TIMEOUT_S = 2.0


def test_latency_and_rate_are_told_apart_by_answers_of_several_sizes() -> None:
    link = LinkEstimate()
    assert (link.known, link.expected_s(MIB)) == (False, 0.0)
    link.note(4 * MIB, 2.0)
    assert link.latency_s == 0.0 and link.expected_s(MIB) == pytest.approx(0.5), "one size: all its time is its bytes'"
    for size in (2, 4, 1, 3) * 10:
        link.note(size * MIB, 0.4 + 0.4 * size)
    assert link.expected_s(8 * MIB) == pytest.approx(3.6, rel=0.05)
    assert link.latency_s == pytest.approx(0.4, rel=0.1)


def test_two_answers_of_another_link_make_what_was_known_forgotten_and_one_does_not() -> None:
    link = LinkEstimate()
    for _ in range(20):
        link.note(MIB, 0.1)
    link.note(MIB, 1.0)
    assert link.expected_s(MIB) < 0.5
    link.note(MIB, 1.0)
    assert link.expected_s(MIB) == pytest.approx(1.0)
    link.note(MIB, 0.1)
    link.note(MIB, 0.1)
    assert link.expected_s(MIB) == pytest.approx(0.1)


def made_of_three(**sync: Any) -> Bench:
    """K = 2 of a, b and c. A syncer step is to last one of their steps, a second."""
    given = {"P": 1, "H": 1, "tau": 0, "grace": 1.0, "read_timeout_s": TIMEOUT_S, "adaptive": True} | sync
    return reading("a", "b", "c", elements=4 * MIB, sync=given)


def next_read(made: Bench, after_s: float) -> None:
    """The open syncer step is read after so long."""
    made.adopt("a", "b", "c")
    made.now += after_s
    made.step("a", "b", "c")


@pytest.mark.parametrize("sync", [{"adaptive": False}, {}])
def test_where_links_do_not_adapt_or_most_are_slow_all_are_waited_for(sync: dict[str, Any]) -> None:
    made = made_of_three(**sync)
    for _ in range(4):
        asked = made.sent(ReadRequest, "a")[-1]
        opened = made.now
        made.answer("a", took_s=1.9)
        made.now = opened + 1.9
        made.answer("b", "c", took_s=1.9)
        assert len(made.facts(Committed)[-1].participants) == 3
        next_read(made, 0.1)
        if made.sent(ReadRequest, "a")[-1] == asked:
            next_read(made, 1.0)
    assert made.facts(ReadFailed) == []


def test_who_could_not_be_asked_ahead_is_asked_at_the_step_and_waited_for_a_little_longer() -> None:
    made = bench("a", "b", "c", elements=4 * MIB, sync={"P": 1, "H": 4, "grace": 0.0, "read_timeout_s": TIMEOUT_S})
    for _ in range(4):
        asked = {name: len(made.sent(ReadRequest, name)) for name in "abc"}
        while len(made.sent(ReadRequest, "a")) == asked["a"]:
            made.now += 1.0
            made.step("a", "b")
            if made.syncer.syncer_step % 4 == 3:  # c adopts as the fragment's next step is about to open
                made.adopt("c")
            made.step("c")
        assert len(made.sent(ReadRequest, "c")) > asked["c"]
        made.answer("a", "b", took_s=0.1)
        made.now += 1.3  # others have a syncer step, a second
        made.step("a")
        made.answer("c", took_s=1.3)
        made.adopt("a", "b")
    assert [len(commit.participants) for commit in made.facts(Committed)] == [3] * 4


def test_who_answers_late_for_its_own_long_step_is_asked_ahead_by_a_step() -> None:
    """Its link is fast, and each answer comes 0.7 s after it was asked for; the others step four times a second."""
    sync = {"P": 2, "H": 8, "read_timeout_s": 1.54, "base_window": 2}  # a quarter of that is waited
    made = bench("a", "b", "c", elements=4 * MIB, sync=sync)
    answered, asked_at = dict.fromkeys("abc", 0), {}
    for tick in range(1200):
        made.now += 0.05
        for name, every in (("a", 5), ("b", 5), ("c", 10)):
            if tick % every == 0:
                made.adopt(name)
                made.step(name, step_s=0.05 * every)
            reads = made.sent(ReadRequest, name)
            asked_at.setdefault((name, len(reads)), made.now)
            wait_s = 0.7 if name == "c" else 0.0
            if len(reads) > answered[name] and made.now - asked_at[name, len(reads)] >= wait_s:
                answered[name] = len(reads)
                made.answer(name, took_s=0.02)
    shared = [len(commit.participants) == 3 for commit in made.facts(Committed)][4:]
    assert len(shared) > 20 and sum(shared) >= len(shared) // 3


def test_a_link_that_takes_most_of_a_round_is_left_to_be_asked_ahead() -> None:
    """Asked at a step, whose merge does not wait for it, it would be busy when it is to be asked for the next."""
    made = bench("a", "b", "c", elements=4 * MIB, sync={"P": 1, "H": 4, "grace": 0.0, "base_window": 2})
    answers: list[tuple[float, str, Contribution]] = []
    heard = dict.fromkeys("abc", 0)
    for tick in range(1200):
        made.now += 0.25
        if tick % 4 == 0:
            made.adopt("a", "b", "c")
            made.step("a", "b", "c", step_s=1.0)
        for name, took_s in (("a", 0.1), ("b", 0.1), ("c", 3.0)):
            for read in made.sent(ReadRequest, name)[heard[name] :]:
                answers.append((made.now + took_s, name, made.peers[name].answer(read, took_s=took_s)))
                heard[name] += 1
        for due in [each for each in answers if each[0] <= made.now]:
            answers.remove(due)
            made.do(replace(due[2], payload=f"{due[1]}@{tick}"))
    shared = [len(commit.participants) == 3 for commit in made.facts(Committed)]
    assert len(shared) > 50 and sum(shared) >= len(shared) // 3


def test_a_lost_answer_is_not_asked_ahead_again_for_the_same_step() -> None:
    made = bench("a", "b", "c", elements=4 * MIB, sync={"P": 2, "H": 8, "read_timeout_s": 0.1, "grace": 0.0})
    for second in range(100):
        made.now += 1.0 if second % 5 else 9.0  # now and then all of them stall
        made.step("a", "b", "c")
        made.adopt("a", "b", "c")
        reads = {name: made.sent(ReadRequest, name) for name in "abc"}
        for name in "abc":
            if reads[name] and (name != "c" or len(reads["c"]) == 1):  # later ones of c are lost
                made.answer(name, took_s=3.0 if name == "c" else 0.1)
    asked = [(each.syncer_step, each.attempt) for each in made.sent(ReadRequest, "c")]
    assert any(attempt == 0 for _, attempt in asked) and len(asked) == len(set(asked))


def test_three_lost_requests_are_no_sample_of_the_rate_and_cost_no_more_than_a_few_deadlines() -> None:
    made = made_of_three()
    lost, asked = [], len(made.sent(ReadRequest, "c"))
    for second in range(60):
        made.answer(*(name for name in "ab" if made.sent(ReadRequest, name)[-1].syncer_step == made.syncer.syncer_step))
        if len(made.sent(ReadRequest, "c")) > asked:
            asked = len(made.sent(ReadRequest, "c"))
            if len(lost) < 3:
                lost.append(made.now)
            elif second:
                made.answer("c", took_s=0.1)
        next_read(made, 1.0)
    answered = [commit for commit in made.facts(Committed) if len(commit.participants) == 3]
    longest_s = made.sent(ReadRequest, "c")[0].deadline_s
    assert len(lost) == 3 and lost[-1] - lost[0] <= 4 * longest_s
    assert len(answered) >= 25


# ------------------------------------------------------------------ deadlines

FLOOR_S = 2.0
BYTES = IN_FLOOR + 40 * 2**20
SLOW_S = 40 * 2**20 / SLOWEST_LINK  # that a link may take at worst


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
