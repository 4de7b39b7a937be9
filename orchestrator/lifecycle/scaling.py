"""Requests to scale the pools of a running job: where they are stored, and what they may ask for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.recipe.config import PoolConfig, Recipe
from orchestrator.recipe.problems import Problem, nearest

LEARNERS_MAX = 1000  # of a pool without max: each has a placement group, and Ray is known to handle about this many


def request_file(pool: str) -> str:
    """In the run's store: {"learners", "at"}. One file for each pool, so that requests for two pools do not collide."""
    return f"scale-{pool}.json"


def limits(pool: PoolConfig, local: bool) -> tuple[int, int]:
    """The fewest and the most learners that a pool may have; `local`: the Ray cluster was started for this run."""
    if local:
        return pool.min, pool.most
    return pool.min, max(pool.learners, LEARNERS_MAX) if pool.max is None else pool.max


def requested(request: Mapping[str, Any] | None, pool: PoolConfig, current: int, local: bool) -> int:
    """The learners last requested for a pool; `current` if there is no request, or one outside of the limits."""
    wanted = (request or {}).get("learners")
    low, high = limits(pool, local)
    return wanted if type(wanted) is int and low <= wanted <= high and not pool.opportunistic else current


def problems(recipe: Recipe, pools: Mapping[str, int], pool: str, learners: int, local: bool) -> Iterator[Problem]:
    """The reasons against scaling this pool to so many learners; `pools`: the present sizes."""
    known = {each.name: each for each in recipe.pools}
    if pool not in known:
        near = nearest(pool, list(known))
        fix = f'did you mean "{near}"?' if near else f"its pools are {', '.join(known)}"
        yield Problem("POOL", pool, "is not a pool of this run", fix)
        return
    if known[pool].opportunistic:
        message = "follows the nodes that are there, between its min and max"
        yield Problem("POOL", pool, message, "add or drain nodes, or resume the run with another max")
        return
    low, high = limits(known[pool], local)
    if not low <= learners <= high:
        why = "by its min and max"
        if known[pool].max is None and learners > high:
            why = "the room that its local Ray was given" if local else "as its recipe sets no max"
        yield Problem("N", learners, f"pool {pool} has {low} to {high} learners, {why}", f"give {low} to {high}")
    if recipe.sync.overlap == "strict":
        yield Problem("sync.overlap", "strict", "in lock step nobody joins or leaves", 'use overlap = "free"')
    if recipe.sync.quorum == "all":
        yield Problem("sync.quorum", "all", "is every learner that the run began with", "give the quorum as a number")
        return
    total = sum({**pools, pool: learners}.values())
    if total < recipe.quorum:
        yield Problem(
            "N",
            learners,
            f"would leave {total} learners, and below the quorum of {recipe.quorum} nothing commits",
            f"give at least {learners + recipe.quorum - total}",
        )
