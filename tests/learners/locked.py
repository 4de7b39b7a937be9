"""Training of a few learners in lock step, for tests that compare its bits with those of something simpler."""

from __future__ import annotations

from typing import Any

from benchmarks.harness.lockstep import LockStep
from learners.config import InnerConfig
from outer.config import OuterConfig, SyncConfig
from outer.protocol.syncer import Budget

STRICT: dict[str, Any] = {"quorum": "all", "grace": "infinite", "overlap": "strict", "pacing": "quorum"}


def trained(
    task: Any,
    sync: SyncConfig,
    outer: OuterConfig,
    learners: int = 1,
    *,
    batch: int,
    steps: int = 12,
    inner: InnerConfig | None = None,
    seed: int = 0,
) -> LockStep:
    """A run of so many syncer steps and learners, l-0 and on, that has ended."""
    shell = LockStep(
        task=task,
        sync=sync,
        outer_config=outer,
        inner=inner or InnerConfig(),
        learners={f"l-{index}": batch for index in range(learners)},
        quorum=learners,
        budget=Budget(None, steps),
        span_steps=4,
        seed=seed,
    )
    shell.run()
    return shell
