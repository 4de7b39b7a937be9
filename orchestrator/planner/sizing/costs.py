"""The price of a run's tokens. Units are paid for also while they restart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.planner.sizing.rates import HOUR_S, availability, fleet_pool, unit_step_s
from orchestrator.recipe.config import Recipe

BILLION = 1e9


@dataclass(frozen=True)
class Cost:
    """In the currency of the recipe's prices. None where a price or the step's length is not given."""

    per_hour: float | None  # of all learners
    tokens_per_hour: float | None  # that are committed
    goodput: float  # committed tokens, of those that all configured learners could process, as taken here
    goodput_is_given: bool  # by a forecast; else it is the share of the time in which learners are there
    per_billion_tokens: float | None
    run_hours: float | None  # until the budget is committed
    run_cost: float | None
    unpriced: tuple[str, ...]  # pools


def cost(
    recipe: Recipe,
    step_tokens: Mapping[str, int],
    step_s: float | None,
    run_tokens: int,
    goodput: float | None = None,
    run_s: float | None = None,
) -> Cost:
    """`step_tokens`: of one step of a learner, by pool. `step_s`: of pools without a step of their own.

    `run_tokens`: the budget. `run_s`: of a run whose budget is in syncer steps, with the time that has no quorum.

    `goodput`: forecast for the whole run, 0 to 1; None: the share of the time in which learners are there.
    """
    learners = list(recipe.learners.values())
    told = {pool.name: fleet_pool(recipe, pool.name) for pool in recipe.pools}
    unpriced = tuple(p.name for p in recipe.pools if told[p.name].price_per_hour is None and p.learners)
    per_hour = tokens = None
    takes_s = [unit_step_s(recipe, pool, step_s) for pool in learners]
    rates = [step_tokens[p.name] / (s or p.slowdown) for p, s in zip(learners, takes_s, strict=True)]
    had = [rate * availability(recipe, pool) for rate, pool in zip(rates, learners, strict=True)]
    share = sum(had) / sum(rates) if goodput is None else goodput
    if not unpriced:
        per_hour = sum(told[pool.name].price_per_hour or 0.0 for pool in learners)
    if None not in takes_s:
        tokens = HOUR_S * share * sum(rates)
    hours = run_s / HOUR_S if run_s is not None else run_tokens / tokens if tokens else None
    return Cost(
        per_hour=per_hour,
        tokens_per_hour=tokens,
        goodput=share,
        goodput_is_given=goodput is not None,
        per_billion_tokens=None if per_hour is None or not tokens else BILLION * per_hour / tokens,
        run_hours=hours,
        run_cost=None if per_hour is None or hours is None else per_hour * hours,
        unpriced=unpriced,
    )
