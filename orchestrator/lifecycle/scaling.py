"""Requests to scale the pools of a running job: where they are stored, and how large a pool may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.recipe.config import PoolConfig

LEARNERS_MAX = 1000  # of a pool without max: each has a placement group, and Ray is known to handle about this many


def request_file(pool: str) -> str:
    """In the run's store: {"learners", "at"}. One file for each pool, so that requests for two pools do not collide."""
    return f"scale-{pool}.json"


def limits(pool: PoolConfig, local: bool) -> tuple[int, int]:
    """The fewest and the most learners that a pool may have; `local`: the Ray cluster was started for this run."""
    if local and not pool.joined:
        return pool.min, pool.most
    return pool.min, max(pool.learners, LEARNERS_MAX) if pool.max is None else pool.max


def requested(request: Mapping[str, Any] | None, pool: PoolConfig, current: int, local: bool) -> int:
    """The learners last requested for a pool; `current` if there is no request, or one outside of the limits."""
    wanted = (request or {}).get("learners")
    low, high = limits(pool, local)
    return wanted if type(wanted) is int and low <= wanted <= high and not pool.opportunistic else current
