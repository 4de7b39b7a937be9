"""What the syncer does about learners that are to leave: it tells them in time, and lets them."""

from __future__ import annotations

from outer.facts import DrainStarted, LearnerFenced
from outer.messages import DRAINING, JOINING, STOPPED, Drain
from outer.signals import DrainRequested
from outer.syncer import RESEND_S
from tests.golden.bench import Bench, bench

NOTICE = "its node is to go"
KNOWN = "its process was told to end"


def deadlines(made: Bench) -> list[float]:
    return [message.deadline_s for message in made.sent(Drain, "a")]


def test_one_that_leaves_by_sigterm_is_told_of_a_nearer_end_and_fenced_only_when_it_has_left() -> None:
    made = bench("a", "b", sync={"drain_s": 30.0})
    made.step("a")
    made.step("a", phase=DRAINING)
    assert deadlines(made) == [], "it knows"
    made.now = 10.0
    made.do(DrainRequested("a", 1, NOTICE, 5.0))
    assert made.sent(Drain, "a") == [Drain(1, 1, KNOWN, 5.0)], "which tells the orchestrator that it must not end it"
    assert made.facts(LearnerFenced) == []
    made.now = 11.0
    made.do(DrainRequested("a", 1, NOTICE, 60.0))
    assert deadlines(made) == [5.0, 4.0], "a later end is none"
    assert made.facts(DrainStarted) == [DrainStarted("a", 1, KNOWN)]
    made.step("a", phase=STOPPED)
    assert [fact.reason for fact in made.facts(LearnerFenced)] == ["drained"]


def test_one_that_steps_on_is_told_again_with_what_is_left_of_its_time() -> None:
    made = bench("a", "b")
    made.do(DrainRequested("a", 1, "scaled down", 10.0))
    assert made.facts(DrainStarted) == [DrainStarted("a", 1, "scaled down")]
    made.now = RESEND_S / 2
    made.step("a")
    assert deadlines(made) == [10.0], "it may have heard"
    made.now = 4.0
    made.step("a")
    made.now = 12.0
    made.step("a")
    assert deadlines(made) == [10.0, 6.0, 0.0]


def test_one_that_has_not_stepped_is_told_nothing_and_fenced_at_once() -> None:
    made = bench("a", "b")
    made.step("a", phase=JOINING)
    made.do(DrainRequested("a", 1, "scaled down", 10.0))
    assert deadlines(made) == []
    assert [fact.reason for fact in made.facts(LearnerFenced)] == ["drained"]
