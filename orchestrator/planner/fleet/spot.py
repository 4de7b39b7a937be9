"""The hours in which spot capacity is away: the same every day."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from orchestrator.planner.fleet.description import Fault
from orchestrator.recipe.config import Recipe

DAY_S = 86_400.0

Interval = tuple[float, float]  # begin, end


def spot_hours(recipe: Recipe, seed: int, until_s: float) -> tuple[Fault, ...]:
    """The faults by which spot pools come and go, each as a whole, from an hour of the day that the seed draws."""
    share = {pool.name: pool.spot for pool in recipe.fleet.pools}
    night = {name: Random(f"{seed} {name}").random() * DAY_S for name in share}
    learners = {name: pool.name for name, pool in recipe.learners.items() if pool.name in share}
    return comings({name: absences(share[pool], night[pool], until_s) for name, pool in learners.items()})


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
