"""Whose state a joiner is given: nobody's that leaves, that was found not finite, or that has no round behind it."""

from __future__ import annotations

from outer.facts import Refused
from outer.messages import DRAINING, Donor, SeekDonor
from outer.signals import DrainRequested
from tests.golden.bench import ALL, Bench, bench


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
