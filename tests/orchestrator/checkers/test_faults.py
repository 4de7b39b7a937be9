"""The fault table of the summary: faults that strike a learner from within, and the deaths that they explain."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.accounting.summary import summarise
from orchestrator.checkers.suite import check
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import FaultHealed, FaultInjected
from outer.protocol.facts import LearnerAttached, LearnerFenced, LeaseExpired, Quarantined, Refused
from tests.orchestrator.histories import BASE, altered, history, is_a, renumbered, without

CLOSE = {"abs": 1e-5}
FREEZE = is_a(FaultInjected, fault_kind="freeze")
KILL = is_a(FaultInjected, fault_kind="kill")


def faults(events: list[Event]) -> list[dict[str, Any]]:
    return list(summarise(events, {}, check(events))["faults"])


def said(events: list[Event], at: float, *facts: Any, writer: str = "syncer", incarnation: int = 1) -> list[Event]:
    """The log with facts said at that second."""
    new = [Event(writer, incarnation, 0, BASE + at, fact) for fact in facts]
    return renumbered(sorted([*events, *new], key=lambda event: event.at))


def refused(learner: str, incarnation: int, reason: str, message: str = "contribution") -> Refused:
    return Refused(learner, incarnation, message, reason, 21 if message == "contribution" else None, 0)


def cut_off() -> list[Event]:
    """The run in which learner a, instead of being frozen, is cut off from 20.5 to 23.5."""
    return altered(history(), FREEZE, fault_kind="link")


@pytest.mark.parametrize("kind", ["slow", "straggle", "link", "corrupt"])
def test_a_fault_that_heals_is_one_row_and_no_death(kind: str) -> None:
    _, fault = faults(altered(history(), FREEZE, fault_kind=kind))
    assert (fault["kind"], fault["target"], fault["injected"]) == (kind, "a", True)
    assert (fault["at_s"], fault["recovery_s"]) == pytest.approx((20.5, 5.7), **CLOSE)
    assert fault["recovery_phases"]["first_contribution"] == pytest.approx(2.7, **CLOSE)


def test_it_is_not_counted_as_suspended() -> None:
    frozen, slow = (summarise(events, {}, [])["goodput_categories"] for events in (history(), cut_off()))
    assert frozen["suspended"] > 0.0 == slow["suspended"]


def test_a_cut_link_is_detected_by_its_lease_and_not_by_a_later_silence() -> None:
    assert faults(cut_off())[1]["detection_s"] == pytest.approx(2.0, **CLOSE)
    quiet = without(cut_off(), is_a(LeaseExpired))
    assert faults(said(quiet, 28.0, LeaseExpired("a", 1, "stepping", 2.5)))[1]["detection_s"] is None


def test_what_came_before_the_fault_is_no_sign_of_it() -> None:
    events = altered(history(), FREEZE, fault_kind="corrupt")
    assert faults(said(events, 20.0, refused("a", 1, "bad_digest")))[1]["detection_s"] is None


def test_a_death_after_the_link_was_up_again_is_another_fault() -> None:
    struck, healed = FaultInjected(7, "link", "c", 1, 1, 1.0), FaultHealed(7, "c")
    events = said(said(without(history(), KILL), 7.0, struck, writer="chaos"), 8.0, healed, writer="chaos")
    link, death, _ = faults(events)
    assert (link["kind"], link["detection_s"]) == ("link", None)
    assert link["recovery_s"] == pytest.approx(1.2, **CLOSE)
    assert (death["kind"], death["target"], death["injected"]) == ("kill", "c", False)


def test_damage_is_detected_by_the_first_refusal_of_that_kind_and_learner() -> None:
    events = altered(history(), FREEZE, fault_kind="corrupt")
    assert faults(events)[1]["detection_s"] is None
    events = said(events, 21.0, refused("b", 1, "bad_digest"), refused("a", 1, "late"))
    events = said(said(events, 21.5, refused("a", 1, "bad_digest")), 22.5, refused("a", 1, "bad_digest"))
    assert faults(events)[1]["detection_s"] == pytest.approx(1.0, **CLOSE)


def test_what_was_discarded_while_it_lasted_is_lost_and_nothing_else() -> None:
    """Two contributions of b do not merge, so that its steps 11 to 13, of 8 tokens each, are in none."""
    struck = FaultInjected(7, "corrupt", "b", 1, 1, 4.0)
    events = said(history(absent=[(12, "b"), (14, "b")]), 10.2, struck, writer="chaos")
    for healed, lost in ((14.2, 3), (12.2, 2)):
        assert faults(said(events, healed, FaultHealed(7, "b"), writer="chaos"))[1]["tokens_lost"] == 8 * lost
    whole = said(said(history(), 10.2, struck, writer="chaos"), 14.2, FaultHealed(7, "b"), writer="chaos")
    assert faults(whole)[1]["tokens_lost"] == 0


def test_one_that_has_not_healed_yet_has_no_recovery() -> None:
    fault = faults(without(cut_off(), is_a(FaultHealed)))[1]
    assert (fault["recovery_s"], fault["tokens_lost"]) == (None, None)


def test_a_cut_that_is_taken_for_a_death_is_one_row_followed_to_its_successor() -> None:
    cut, _ = faults(altered(history(), KILL, fault_kind="link", duration_s=60.0))
    assert (cut["kind"], cut["target"], cut["injected"]) == ("link", "c", True)
    assert (cut["detection_s"], cut["recovery_s"]) == pytest.approx((1.0, 8.7), **CLOSE)
    assert sum(s for s in cut["recovery_phases"].values() if s is not None) == pytest.approx(8.7, **CLOSE)


def test_numbers_that_are_not_finite_are_one_row_from_the_first_refusal_to_the_successor() -> None:
    events = altered(history(), KILL, fault_kind="non_finite")
    events = said(events, 9.7, refused("c", 1, "non_finite"))
    events = said(events, 10.2, refused("c", 1, "non_finite"), Quarantined("c", 1, 3))
    assert [(fault["kind"], fault["target"]) for fault in faults(events)] == [("non_finite", "c"), ("freeze", "a")]
    fault = faults(events)[0]
    assert (fault["detection_s"], fault["recovery_s"]) == pytest.approx((0.2, 8.7), **CLOSE)
    assert sum(s for s in fault["recovery_phases"].values() if s is not None) == pytest.approx(8.7, **CLOSE)
    assert fault["recovery_phases"]["decide"] == pytest.approx(1.8, **CLOSE)


def test_one_that_dies_of_something_else_meanwhile_is_two_rows() -> None:
    struck = FaultInjected(7, "corrupt", "c", 1, 1, 0.2)
    events = said(history(), 9.0, struck, writer="chaos")
    assert [fault["kind"] for fault in faults(events)] == ["corrupt", "kill", "freeze"]
    unexplained = without(events, KILL)
    assert [(fault["kind"], fault["injected"]) for fault in faults(unexplained)][:2] == [
        ("corrupt", True),
        ("kill", False),
    ]


def test_a_wrong_configuration_is_one_row_that_explains_the_refused_incarnation_too() -> None:
    events = altered(history(), KILL, fault_kind="wrong_config")
    gone = LearnerFenced("c", 2, "failed")
    wrong = [e for e in events if not (is_a(LearnerAttached)(e) and e.fact.incarnation == 2)]
    wrong = said(renumbered(wrong), 15.6, refused("c", 2, "wrong_config", "attach"), gone)
    assert [fault["kind"] for fault in faults(wrong)] == ["wrong_config", "freeze"]
    assert faults(wrong)[0]["detection_s"] == pytest.approx(1.0, **CLOSE)
    by_itself = faults(without(wrong, is_a(FaultInjected, fault_kind="wrong_config")))
    assert [(fault["kind"], fault["injected"]) for fault in by_itself] == [
        ("kill", False),
        ("kill", False),
        ("freeze", True),
    ], "without an injected fault the refused incarnation is a death like any other"
