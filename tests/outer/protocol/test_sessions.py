"""What the syncer does about learners that are to leave, and whose state it names to a joiner."""

from __future__ import annotations

from outer.protocol.events_effects import DrainRequested, Fence
from outer.protocol.facts import DrainStarted, LearnerFenced, Refused
from outer.protocol.members import Member
from outer.protocol.messages import (
    DRAINING,
    JOINING,
    STEPPING,
    STOPPED,
    Donor,
    Drain,
    FragmentCounters,
    Report,
    SeekDonor,
)
from outer.protocol.sessions import choose_donor
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


def test_one_that_has_not_stepped_is_told_nothing_and_fenced_at_once() -> None:
    made = bench("a", "b")
    made.step("a", phase=JOINING)
    made.do(DrainRequested("a", 1, "scaled down", 10.0))
    assert deadlines(made) == []
    assert [fact.reason for fact in made.facts(LearnerFenced)] == ["drained"]


# ------------------------------------------------------------------ who is meant, and what is sent again


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
    counted = made.syncer.counts.learners
    assert (counted["a"].tokens_processed, counted["b"].tokens_processed) == (3 * 20, 30)


# ------------------------------------------------------------------ donors


def named_to(made: Bench, joiner: str) -> str:
    """The donor that it is given if it asks now."""
    made.do(SeekDonor(joiner, made.peers[joiner].incarnation, 1))
    return made.sent(Donor, joiner)[-1].donor


def after_a_round() -> Bench:
    """By their names alone a comes before b."""
    made = bench("a", "b", "c", sync=ALL)
    made.commit("a", "b", "c")
    return made


def test_one_that_is_told_to_leave_is_no_donor_though_it_steps_still() -> None:
    made = after_a_round()
    made.do(DrainRequested("a", 1, "scaled down", 30.0))
    made.step("a")
    assert named_to(made, "c") == "b"
    made.step("b", phase=DRAINING)  # its host told it
    assert named_to(made, "c") == ""


def test_one_whose_last_contribution_was_not_finite_is_no_donor() -> None:
    made = after_a_round()
    made.now += 1.0
    made.step("a", "b", "c")
    made.answer("a", defect="non_finite")
    made.answer("b", "c")
    assert [fact.reason for fact in made.facts(Refused)] == ["non_finite"]
    assert named_to(made, "c") == "b"
    made.adopt("a", "b", "c")
    made.commit("a", "b", "c")
    assert named_to(made, "c") == "a", "a finite one clears it, and b has given before"


def test_within_the_first_round_there_is_no_donor() -> None:
    made = bench("a", "b", sync={"P": 2, "H": 4, "tau": 1})
    made.commit("a", "b")
    made.join("c")
    assert made.syncer.committed_step == 2
    assert named_to(made, "c") == "", "though a and b are whole"
    made.commit("a", "b")
    assert made.syncer.committed_step == 4
    assert named_to(made, "c") == "a"


def test_one_of_the_joiners_own_region_gives_before_one_that_has_given_less() -> None:
    report = Report("", 1, 1, 1, STEPPING, 3.0, 1, 1.0, 10, 0, (FragmentCounters(0, 0, 1, 10),))
    near = Member("b", 2, "near", 1, report=report, times_donor=5)
    far = Member("a", 2, "far", 1, report=report)
    joiner = Member("c", 2, "near", 1)
    assert choose_donor([far, near], joiner, failed=()) is near
    assert choose_donor([far, near], joiner, failed=("b",)) is far
