"""How long a step of each pool's learners takes, as far as it is told."""

from __future__ import annotations

from typing import overload

from orchestrator.recipe.config import PoolConfig, Recipe


@overload
def unit_step_s(recipe: Recipe, pool: PoolConfig, step_s: float) -> float: ...
@overload
def unit_step_s(recipe: Recipe, pool: PoolConfig, step_s: float | None) -> float | None: ...
def unit_step_s(recipe: Recipe, pool: PoolConfig, step_s: float | None) -> float | None:
    """Seconds, the pool's slowdown included. `step_s`: of pools of which `[fleet]` says nothing of their own."""
    own = next((told.step_s for told in recipe.fleet.pools if told.name == pool.name), None) or step_s
    return None if own is None else own * pool.slowdown
