"""One learner unit by the recipe's [fleet]: how long it steps, how often it fails, when it is there."""

from __future__ import annotations

from typing import overload

from orchestrator.recipe.config import FleetPoolConfig, PoolConfig, Recipe

HOUR_S, DAY_S = 3600.0, 86_400.0


def fleet_pool(recipe: Recipe, name: str) -> FleetPoolConfig:
    """The pool's entry in [fleet], or its defaults."""
    return next((pool for pool in recipe.fleet.pools if pool.name == name), FleetPoolConfig(name=name))


@overload
def unit_step_s(recipe: Recipe, pool: PoolConfig, step_s: float) -> float: ...
@overload
def unit_step_s(recipe: Recipe, pool: PoolConfig, step_s: float | None) -> float | None: ...
def unit_step_s(recipe: Recipe, pool: PoolConfig, step_s: float | None) -> float | None:
    """Seconds of a step, the pool's slowdown included. `step_s`: of pools of which `[fleet]` gives none."""
    own = fleet_pool(recipe, pool.name).step_s or step_s
    return None if own is None else own * pool.slowdown


def unit_mtbf_hours(recipe: Recipe, pool: PoolConfig) -> float:
    """Mean time between failures of one learner: the pool's own, or that of a chip over the number of its chips."""
    told = fleet_pool(recipe, pool.name)
    return told.mtbf_hours or recipe.fleet.mtbf_hours / (told.chips or pool.known_devices)


def availability(recipe: Recipe, pool: PoolConfig) -> float:
    """The share of the time in which one learner is there: of its spot hours, all but what its failures take."""
    mtbf, outage = unit_mtbf_hours(recipe, pool), recipe.fleet.outage_s / HOUR_S
    return fleet_pool(recipe, pool.name).spot * mtbf / (mtbf + outage)
