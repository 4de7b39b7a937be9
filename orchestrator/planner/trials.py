"""One trial: a run with random failures, and the shares of steps, tokens and commits that remain.

Learners die independently; the learners of a spot pool come and go together, at hours that the seed draws. In free
overlap no learner waits for a dead one, so absences add up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

import numpy as np

from orchestrator.planner.failure_cost import FailureCost
from orchestrator.planner.fleet.spot import DAY_S, Interval, absences
from orchestrator.recipe.config import Recipe


class Trial(NamedTuple):
    """Shares are of the whole run and all configured learners, 0 to 1."""

    deaths: int
    stepping: float  # of the learners' time
    tokens: float  # that are not lost with a death
    uptime: float  # time in which at least one steps
    quorum: float  # time in which at least K contribute
    participation: float  # of commits, which there are in that time alone; 0 without any


def trial(
    recipe: Recipe, mtbf_s: Mapping[str, float], failure_costs: Mapping[str, FailureCost], horizon_s: float, seed: int
) -> Trial:
    """Draw the first `horizon_s` seconds of a run. `mtbf_s` of one learner and `failure_costs` are by pool."""
    absent = {name: _absent(recipe, name, mtbf_s, failure_costs, horizon_s, seed) for name in recipe.learners}
    count = len(absent)
    own = {name: failure_costs[recipe.pool_of(name).name] for name in absent}
    stepping, contributing, tokens = (
        _present([_until(gaps, getattr(own[name], kind), horizon_s) for name, gaps in absent.items()], horizon_s)
        for kind in ("stepping_s", "contributing_s", "tokens_s")
    )
    at_work = contributing[contributing[:, 0] >= recipe.quorum]
    commits_s = float(at_work[:, 1].sum())
    return Trial(
        deaths=sum(gap.by_death for gaps in absent.values() for gap in gaps),
        stepping=float(stepping.prod(axis=1).sum()) / (count * horizon_s),
        tokens=float(tokens.prod(axis=1).sum()) / (count * horizon_s),
        uptime=float(stepping[stepping[:, 0] >= 1, 1].sum()) / horizon_s,
        quorum=commits_s / horizon_s,
        participation=float(at_work.prod(axis=1).sum()) / (count * commits_s) if commits_s else 0.0,
    )


class _Gap(NamedTuple):
    """A time without hardware; it may end after the run does."""

    begin: float
    end: float
    by_death: bool


def _absent(
    recipe: Recipe,
    name: str,
    mtbf_s: Mapping[str, float],
    failure_costs: Mapping[str, FailureCost],
    horizon_s: float,
    seed: int,
) -> list[_Gap]:
    """When one learner has no hardware. It does not die while it has none."""
    pool, replace_s = recipe.pool_of(name).name, recipe.fleet.replace_s
    spot = next((told.spot for told in recipe.fleet.pools if told.name == pool), 1.0)
    hours = absences(spot, Random(f"{seed} {pool} hours").random() * DAY_S, horizon_s)
    gaps, chance = [_Gap(begin, end, False) for begin, end in hours], Random(f"{seed} {name}")
    at = chance.expovariate(1.0 / mtbf_s[pool])
    while at < horizon_s:
        back_at = at + (chance.expovariate(1.0 / replace_s) if replace_s else 0.0)
        if not any(begin <= at < end for begin, end in hours):
            gaps.append(_Gap(at, back_at, True))
        at = back_at + failure_costs[pool].stepping_s + chance.expovariate(1.0 / mtbf_s[pool])
    return gaps


def _until(gaps: Sequence[_Gap], lost_s: float, horizon_s: float) -> list[Interval]:
    """The gaps, each with the seconds lost after it, joined where they overlap."""
    joined: list[Interval] = []
    for gap in sorted(gaps):
        end = min(horizon_s, gap.end + lost_s)
        if joined and gap.begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((gap.begin, end))
    return joined


def _present(away: Sequence[Sequence[Interval]], horizon_s: float) -> Any:
    """float64[moments, 2]: the number of learners present, and for how many seconds."""
    starts = np.array([begin for gaps in away for begin, _ in gaps])
    stops = np.array([end for gaps in away for _, end in gaps])
    times = np.minimum(np.concatenate([[0.0], starts, stops]), horizon_s)
    changes = np.concatenate([[len(away)], -np.ones(len(starts)), np.ones(len(stops))])
    order = np.argsort(times, kind="stable")
    return np.column_stack([np.cumsum(changes[order]), np.diff(times[order], append=horizon_s)])
