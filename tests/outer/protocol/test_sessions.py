"""Which peer is the best donor for a joiner."""

from __future__ import annotations

from outer.protocol.members import Member
from outer.protocol.messages import STEPPING, FragmentCounters, Report
from outer.protocol.sessions import choose_donor


def test_one_of_the_joiners_own_region_gives_before_one_that_has_given_less() -> None:
    report = Report("", 1, 1, 1, STEPPING, 3.0, 1, 1.0, 10, 0, (FragmentCounters(0, 0, 1, 10),))
    near = Member("b", 2, "near", 1, report=report, times_donor=5)
    far = Member("a", 2, "far", 1, report=report)
    joiner = Member("c", 2, "near", 1)
    assert choose_donor([far, near], joiner, failed=()) is near
    assert choose_donor([far, near], joiner, failed=("b",)) is far
