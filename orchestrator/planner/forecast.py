"""What becomes of a recipe under the failures that its [fleet] names: goodput, uptime, participation.

In two steps, for failures are rare and a run is long. The production machines say how the fleet works undisturbed, and
what one death of a unit of each pool costs: how long it steps not, contributes not, and how many tokens are lost with
it. Then deaths, replacements and the hours of spot pools are drawn for the whole run, many times over: in free overlap
nobody waits for the dead, so that what each loses adds up. tests/orchestrator/planner/test_forecast.py compares this
with the machines under all failures at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from orchestrator.planner.failure_cost import FailureCost, Machines, sample
from orchestrator.planner.fleet.spot import DAY_S
from orchestrator.planner.sizing.fault_tolerance import HOUR_S, unit_mtbf_hours
from orchestrator.planner.sizing.model_sizes import Shapes
from orchestrator.planner.sizing.step_times import unit_step_s
from orchestrator.planner.trials import course
from orchestrator.recipe.config import Recipe

HORIZON_S = 30.0 * DAY_S  # of a run whose length is not known
DEATHS_MAX = 50_000  # drawn for one course; longer ones are cut
ASSUMED_STEP_S = 1.0


@dataclass(frozen=True)
class Spread:
    """Over the courses: the mean, and between what 95 % of them lie."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Forecast:
    """Shares, 0 to 1, of all configured learners over the run."""

    step_s: float
    step_is_assumed: bool
    run_s: float  # that was drawn
    courses: int
    deaths: float  # of units, in the mean
    unit_mtbf_s: dict[str, float]  # by pool
    tolls: dict[str, FailureCost]  # by pool
    goodput: Spread  # time stepping
    uptime: Spread  # time in which at least one learner steps
    quorum: Spread  # time in which at least K contribute; the rest has no commits
    participation: Spread  # of commits, which is never below K of all
    committed: Spread  # tokens, of those that all learners could process


def forecast(
    recipe: Recipe,
    shapes: Shapes,
    step_s: float | None,
    run_s: float | None,
    syncer_region: str | None = None,
    courses: int = 40,
) -> Forecast | None:
    """`step_s`: of a learner with slowdown 1; `run_s`: of stepping. None for lock-step studies, where all wait."""
    if recipe.sync.overlap == "strict":
        return None
    pace = step_s or ASSUMED_STEP_S
    machine = Machines(sample(recipe), shapes, pace, syncer_region)
    quiet = machine.quiet()
    mtbf_s = {pool.name: HOUR_S * unit_mtbf_hours(recipe, pool) for pool in recipe.pools}
    tolls = {pool.name: machine.toll(pool.names(1)[0]) for pool in recipe.pools}
    rate = sum(1.0 / mtbf_s[pool.name] for pool in recipe.learners.values())
    horizon_s = min(run_s or HORIZON_S, DEATHS_MAX / rate)
    drawn = [course(recipe, mtbf_s, tolls, horizon_s, seed) for seed in range(courses)]
    return Forecast(
        step_s=pace,
        step_is_assumed=any(unit_step_s(recipe, pool, step_s) is None for pool in recipe.pools),
        run_s=horizon_s,
        courses=courses,
        deaths=fmean(one.deaths for one in drawn),
        unit_mtbf_s=mtbf_s,
        tolls=tolls,
        goodput=_spread([quiet.goodput * one.stepping for one in drawn]),
        uptime=_spread([quiet.uptime * one.uptime for one in drawn]),
        quorum=_spread([one.quorum for one in drawn]),
        participation=_spread([quiet.participation * one.participation for one in drawn]),
        committed=_spread([quiet.committed * one.tokens for one in drawn]),
    )


def _spread(values: Sequence[float]) -> Spread:
    low, high = np.quantile(values, (0.025, 0.975))
    return Spread(fmean(values), float(low), float(high))
