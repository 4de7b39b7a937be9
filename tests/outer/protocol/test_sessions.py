"""What the syncer does about learners that are to leave: it tells them in time, and lets them."""

from __future__ import annotations

from dataclasses import replace

from outer.protocol.events_effects import DrainRequested, Expect, Fence
from outer.protocol.facts import DrainStarted, LearnerFenced, Refused
from outer.protocol.messages import DRAINING, JOINING, STOPPED, Drain, Grant, Notice
from outer.protocol.syncer import RESEND_S
from tests.golden.bench import ALL, Bench, bench

NOTICE = "its node is to go"
KNOWN = "its process was asked to end"


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


# ------------------------------------------------------------------ who is meant, and what is sent again


def test_an_announcement_of_an_incarnation_that_is_gone_is_refused() -> None:
    made = bench("a", "b")
    made.join("a")
    for incarnation in (1, 2):
        made.do(Expect("a", incarnation, 60.0, 2))
    assert made.facts(Refused) == [Refused("a", n, "expect", "stale_incarnation") for n in (1, 2)]
    assert [row["incarnation"] for row in made.syncer.view(0.0)][:2] == [2, 1]


def test_who_is_gone_or_unknown_is_asked_for_nothing() -> None:
    made = bench("a", "b")
    made.join("a")
    made.do(Fence("b", 1, "killed"))
    for name, incarnation in (("a", 1), ("a", 3), ("b", 1), ("nobody", 1)):
        made.do(DrainRequested(name, incarnation, "scaled down", 5.0))
    assert made.facts(DrainStarted) == []


def test_what_every_incarnation_processed_is_counted() -> None:
    made = bench("a", "b")
    for _ in range(3):
        made.step("a", "a", "b")
        made.join("a")
    assert made.syncer.tokens_processed == 3 * 20 + 30


def test_a_report_that_comes_twice_is_no_news() -> None:
    made = bench("a", "b")
    report = made.peers["a"].report(step=4)
    made.do(report)
    made.do(replace(report, step=9))
    made.do(replace(report, step=9, sequence=report.sequence - 1))
    assert made.syncer.view(0.0)[0]["step"] == 4


def test_a_span_that_does_not_seem_to_have_arrived_is_sent_again_as_it_was() -> None:
    made = bench("a", "b")
    for made.now in (1.0, 1.5, 1.0 + RESEND_S, 1.5 + RESEND_S):
        made.do(made.peers["a"].report(wants_span=True))
    first, again = made.sent(Grant, "a")
    assert first == again and (first.epoch, first.incarnation) == (1, 1)


def test_a_version_is_told_again_when_two_long_steps_have_not_shown_it() -> None:
    made = bench("a", "b", sync=ALL)
    made.commit("a", "b")
    made.peers["a"].bases[0] = (0, 0, 0)
    told, at = len(made.sent(Notice, "a")), made.now
    for made.now in (at + 1.5, at + 7.9):
        made.do(made.peers["a"].report(step_s=4.0))
    assert len(made.sent(Notice, "a")) == told
    made.now = at + 8.0
    made.do(made.peers["a"].report(step_s=4.0))
    assert len(made.sent(Notice, "a")) == told + 1
