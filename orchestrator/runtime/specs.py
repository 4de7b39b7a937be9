"""Makes the specs of a run's actors from the recipe: learners, evaluator and syncer."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from typing import Any

from learners.spec import LearnerSpec
from orchestrator.eventlog.compactor import Compactor
from orchestrator.recipe.config import SYNCER, PoolConfig, Recipe
from orchestrator.recipe.resources import REGION
from outer.journal.groups import FORMAT
from outer.journal.object_store import Objects
from outer.protocol.syncer import Budget
from outer.spec import SyncerSpec

SHARED = ("seed", "task", "model", "data", "inner", "sync")  # tables that every learner must agree on


def learner_spec(
    recipe: Recipe, code: str, name: str, incarnation: int, pool: PoolConfig, core: int | None, rank: int = 0
) -> LearnerSpec:
    """`code`: the digest of the sources; `core`: which core of the one host to pin the learner to, if any."""
    return LearnerSpec(
        name=name,
        incarnation=incarnation,
        task=recipe.task,
        model=recipe.model,
        data=recipe.data,
        inner=recipe.inner,
        sync=recipe.sync,
        seed=recipe.seed,
        batch_size=pool.batch_size,
        slowdown=pool.slowdown,
        start_s=recipe.run.start_s,
        shared=shared(recipe),
        code=code,
        core=core,
        platform=pool.platform,
        warm_start=recipe.warm_start,
        devices=pool.devices or (None if pool.accelerated else 1),
        model_parallel=pool.model_parallel,
        rank=rank,
        ranks=pool.processes,
    )


def syncer_spec(recipe: Recipe, code: str, store: Objects) -> SyncerSpec:
    """For epoch 0, which is never started: each epoch gets a copy with its own number."""
    return SyncerSpec(
        epoch=0,
        sync=recipe.sync,
        outer=recipe.outer,
        learners={name: pool.batch_size for name, pool in recipe.learners.items()},
        quorum=recipe.quorum,
        span_steps=recipe.data.span_steps,
        ahead_s=recipe.data.ahead_s,
        aside_max=recipe.data.set_aside,
        budget=Budget(recipe.budget.tokens, recipe.budget.syncer_steps),
        shared=shared(recipe),
        code=code,
        store=store,
        durability=recipe.durability.mode,
        segmenter=Compactor(store, SYNCER),
        region=recipe.run.control.get(REGION, ""),
        shards=recipe.run.shards,
        shard_lease_s=recipe.run.syncer_lease_s,
    )


def shared(recipe: Recipe) -> Mapping[str, Any]:
    """The tables of the recipe that every learner must agree on."""
    return {key: value for key, value in recipe.canonical().items() if key in SHARED}


def versions(code: str) -> dict[str, str]:
    """Return what a run is made with: versions of packages, of the log's format, and the digest of the sources."""
    from importlib.metadata import version

    packages = {name: version(name) for name in ("ray", "jax", "jaxlib", "optax", "numpy")}
    return packages | {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "code": code,
        "log": str(FORMAT),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }
