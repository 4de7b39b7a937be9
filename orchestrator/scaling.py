"""How many learners a running job's pools are asked to have: the request in the run's store, and what it may say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.config import Recipe
from orchestrator.problems import Problem, nearest

SCALE = "scale.json"  # in the run's store: {"pools": {name: learners}}


def requested(request: Mapping[str, Any] | None, pool: str, current: int) -> int:
    """What a pool was last asked to have; as it is where nothing was asked."""
    wanted = (request or {}).get("pools", {}).get(pool, current)
    return wanted if isinstance(wanted, int) and wanted >= 0 else current


def problems(recipe: Recipe, pools: Mapping[str, int], pool: str, learners: int) -> Iterator[Problem]:
    """What speaks against giving this pool so many learners; `pools` is what all of them have now."""
    known = {each.name: each for each in recipe.pools}
    if pool not in known:
        near = nearest(pool, list(known))
        fix = f'did you mean "{near}"?' if near else f"its pools are {', '.join(known)}"
        yield Problem("POOL", pool, "is not a pool of this run", fix)
        return
    low, high = known[pool].min, known[pool].max
    if learners < low or (high is not None and learners > high):
        limits = f"at least {low}" if high is None else f"{low} to {high}"
        yield Problem("N", learners, f"pool {pool} has {limits} learners, by its min and max", f"give {limits}")
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
