"""Goodput, uptime and participation of a recipe's run under the failures that its [fleet] names.

Failures are rare and runs are long, so the forecast takes two steps. First the fleet is simulated without failures, and
with one learner's death in each pool, whose cost is seconds without its steps, seconds without its contributions, and
lost tokens. Then many trials draw deaths, replacements and the hours of spot pools for the whole run. In free overlap
no learner waits for a dead one, so the losses add up. tests/orchestrator/planner/test_forecast.py compares the result
with the simulated fleet under all failures at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import numpy as np

from orchestrator.planner.failure_cost import FailureCost, Machines, sample
from orchestrator.planner.fleet.spot import DAY_S
from orchestrator.planner.sizing.fault_tolerance import HOUR_S, unit_mtbf_hours
from orchestrator.planner.sizing.model_sizes import Shapes
from orchestrator.planner.sizing.step_times import unit_step_s
from orchestrator.planner.trials import trial
from orchestrator.recipe.config import Recipe

HORIZON_S = 30.0 * DAY_S  # of a run whose length is not known
DEATHS_MAX = 50_000  # drawn for one trial; longer ones are cut
ASSUMED_STEP_S = 1.0


@dataclass(frozen=True)
class Spread:
    """The mean over all trials, and the bounds of the middle 95 % of them."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Forecast:
    """Shares, 0 to 1, of all configured learners over the run."""

    step_s: float
    step_is_assumed: bool
    run_s: float  # that was drawn
    trials: int
    deaths: float  # of learners, on average
    unit_mtbf_s: dict[str, float]  # by pool
    failure_costs: dict[str, FailureCost]  # by pool
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
    trials: int = 40,
) -> Forecast | None:
    """Forecast a run. `step_s`: of a learner with slowdown 1; `run_s`: of stepping. None for lock-step studies."""
    if recipe.sync.overlap == "strict":
        return None
    pace = step_s or ASSUMED_STEP_S
    machine = Machines(sample(recipe), shapes, pace, syncer_region)
    baseline = machine.baseline()
    mtbf_s = {pool.name: HOUR_S * unit_mtbf_hours(recipe, pool) for pool in recipe.pools}
    failure_costs = {pool.name: machine.failure_cost(pool.names(1)[0]) for pool in recipe.pools}
    rate = sum(1.0 / mtbf_s[pool.name] for pool in recipe.learners.values())
    horizon_s = min(run_s or HORIZON_S, DEATHS_MAX / rate)
    drawn = [trial(recipe, mtbf_s, failure_costs, horizon_s, seed) for seed in range(trials)]
    return Forecast(
        step_s=pace,
        step_is_assumed=any(unit_step_s(recipe, pool, step_s) is None for pool in recipe.pools),
        run_s=horizon_s,
        trials=trials,
        deaths=fmean(one.deaths for one in drawn),
        unit_mtbf_s=mtbf_s,
        failure_costs=failure_costs,
        goodput=_spread([baseline.goodput * one.stepping for one in drawn]),
        uptime=_spread([baseline.uptime * one.uptime for one in drawn]),
        quorum=_spread([one.quorum for one in drawn]),
        participation=_spread([baseline.participation * one.participation for one in drawn]),
        committed=_spread([baseline.committed * one.tokens for one in drawn]),
    )


def as_json(told: Forecast | None) -> dict[str, Any] | None:
    """The forecast in JSON values, under the keys that scripts know."""
    if told is None:
        return None
    plain = asdict(told)
    return plain | {"courses": plain.pop("trials"), "tolls": plain.pop("failure_costs")}


def _spread(values: Sequence[float]) -> Spread:
    low, high = np.quantile(values, (0.025, 0.975))
    return Spread(fmean(values), float(low), float(high))
