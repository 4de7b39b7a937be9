"""Which peer gives a joiner its state, and when one that leaves has nothing left to give. Knows reports only."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from outer.protocol.messages import DRAINING, STEPPING

if TYPE_CHECKING:
    from outer.protocol.members import Member


def choose(live: Iterable[Member], joiner: Member, failed: Collection[str]) -> Member | None:
    """The donor: one of the joiner's own region first, then who has given least often."""
    fit = [member for member in live if member.name != joiner.name and member.name not in failed and is_whole(member)]
    return min(fit, key=lambda member: (member.region != joiner.region, member.donations, member.name), default=None)


def is_whole(member: Member) -> bool:
    """It steps, holds every fragment from the syncer, and nothing of it was found not finite."""
    report = member.report
    return (
        report is not None
        and report.phase == STEPPING
        and not member.draining
        and not member.non_finite
        and all(counters.base_version is not None for counters in report.counters)
    )


def is_drained(member: Member) -> bool:
    """It steps no more, and no fragment of it holds progress that a commit could still take."""
    report = member.report
    if report is None or report.phase != DRAINING:
        return False
    return all(counters.base_version is None or counters.steps == 0 for counters in report.counters)
