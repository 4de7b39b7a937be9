"""The hours in which spot capacity is away: the same every day."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.planner.fleet.description import Fault

DAY_S = 86_400.0

Interval = tuple[float, float]  # begin, end


def absences(share: float, night_s: float, until_s: float) -> list[Interval]:
    """Seconds of a run in which capacity that is there for this share of the day is not, from `night_s` of a day on."""
    length = (1.0 - share) * DAY_S
    days = range(-1, int(until_s / DAY_S) + 1)
    found = [(max(0.0, night_s + day * DAY_S), min(until_s, night_s + day * DAY_S + length)) for day in days]
    return [(begin, end) for begin, end in found if end > begin and length]


def comings(away: Mapping[str, list[Interval]]) -> tuple[Fault, ...]:
    """The same as faults: learners, by name, leave and join again."""
    spans = [(name, begin, end) for name, intervals in away.items() for begin, end in intervals]
    return tuple(
        fault for name, begin, end in spans for fault in (Fault("leave", name, begin), Fault("join", name, end))
    )
