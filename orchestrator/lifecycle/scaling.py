"""How many learners a running job's pools are asked to have: the requests in the run's store, and what they may say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.recipe.config import PoolConfig, Recipe
from orchestrator.recipe.problems import Problem, nearest

LEARNERS_MAX = 1000  # of a pool without max: each takes a placement group, and Ray is known to hold about so many


def request_file(pool: str) -> str:
    """In the run's store: {"learners", "at"}. One for each pool, so that no request undoes another pool's."""
    return f"scale-{pool}.json"


def limits(pool: PoolConfig, local: bool) -> tuple[int, int]:
    """The fewest and the most learners that a pool may have; `local`: the Ray that it runs on was made for this run."""
    if local:
        return pool.min, pool.most
    return pool.min, max(pool.learners, LEARNERS_MAX) if pool.max is None else pool.max


def requested(request: Mapping[str, Any] | None, pool: PoolConfig, current: int, local: bool) -> int:
    """What a pool was last asked to have; as it is where nothing was asked, or what cannot be."""
    wanted = (request or {}).get("learners")
    low, high = limits(pool, local)
    return wanted if type(wanted) is int and low <= wanted <= high else current


def problems(recipe: Recipe, pools: Mapping[str, int], pool: str, learners: int, local: bool) -> Iterator[Problem]:
    """What speaks against giving this pool so many learners; `pools` is what all of them have now."""
    known = {each.name: each for each in recipe.pools}
    if pool not in known:
        near = nearest(pool, list(known))
        fix = f'did you mean "{near}"?' if near else f"its pools are {', '.join(known)}"
        yield Problem("POOL", pool, "is not a pool of this run", fix)
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
