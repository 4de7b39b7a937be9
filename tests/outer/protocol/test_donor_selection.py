"""Whose state a joiner is given: nobody's that leaves, that was found not finite, or that has no round behind it."""

from __future__ import annotations

from outer.protocol.events_effects import DrainRequested
from outer.protocol.facts import DonorNamed, Refused
from outer.protocol.members import Member
from outer.protocol.messages import DRAINING, STEPPING, Donor, FragmentCounters, Report, SeekDonor
from outer.protocol.sessions import choose_donor
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


def test_one_of_the_joiners_own_region_gives_before_one_that_has_given_less() -> None:
    report = Report("", 1, 1, 1, STEPPING, 3.0, 1, 1.0, 10, 0, (FragmentCounters(0, 0, 1, 10),))
    near = Member("b", 2, "near", 1, report=report, times_donor=5)
    far = Member("a", 2, "far", 1, report=report)
    joiner = Member("c", 2, "near", 1)
    assert choose_donor([far, near], joiner, failed=()) is near
    assert choose_donor([far, near], joiner, failed=("b",)) is far


def test_those_that_ask_are_given_each_donor_in_turn() -> None:
    made = after_a_round()
    assert [named_to(made, "c") for _ in range(5)] == ["a", "b", "a", "b", "a"]


def test_the_answer_names_the_incarnation_that_is_to_give_and_what_it_must_have_seen() -> None:
    made = bench("a", "c", sync=ALL)
    made.join("a", "c", lease_s=1e9)
    named_to(made, "c")
    assert made.sent(Donor, "c") == [Donor(1, 2, "", 0, 0)], "nobody can give so far"
    made.commit("a", "c")
    named_to(made, "c")
    assert made.sent(Donor, "c")[-1] == Donor(1, 2, "a", 2, 1)
    assert made.facts(DonorNamed) == [DonorNamed("c", 2, "a", 2, 1)]


def test_one_that_may_not_speak_is_named_nobody() -> None:
    made = after_a_round()
    made.do(SeekDonor("c", 2, 1))
    assert made.facts(Refused) == [Refused("c", 2, "seek", "stale_incarnation")]
    assert made.sent(Donor, "c") == []
