"""The arguments of an incarnation of a learner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from learners.checkpoint_writer import SavedPart
from learners.config import DataConfig, InnerConfig, WarmStart
from outer.config import SyncConfig
from outer.first_values import FirstValues
from outer.journal.object_store import Objects


@dataclass(frozen=True)
class LearnerSpec:
    """The arguments of an incarnation; each rank of an island gets its own."""

    name: str
    incarnation: int  # 0: a standby, until it is promoted
    task: str
    model: Mapping[str, Any]
    data: DataConfig
    inner: InnerConfig
    sync: SyncConfig  # with P resolved
    seed: int
    batch_size: int
    slowdown: float
    start_s: float
    shared: Mapping[str, Any]
    code: str
    core: int | None  # of this host, to be pinned to; None on clusters
    platform: str  # cpu | gpu | tpu: what the pool's resources ask for
    warm_start: WarmStart | None = None
    store: Objects | None = None  # where snapshots are kept
    saved: SavedPart | None = None  # what an earlier process has left there
    devices: int | None = 1  # of each rank, over which a step is spread; None: all
    model_parallel: int = 1
    rank: int = 0  # of `ranks` processes of the learner unit
    ranks: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)  # of a standby: what shows it its unit's devices


@dataclass(frozen=True)
class InitialState:
    """Calling it builds the task; needs JAX only then. `wanted`: of which fragments it gives the values.

    Returns (fragments, float32[n] for each of them, else None, the task's merge rules by path pattern, what status
    pages need to know of the task: `tokens_per_sample`, `loss_unit`, and `left_out`, the leaves in no fragment).
    """

    task: str
    model: Mapping[str, Any]
    data: DataConfig
    seed: int
    sync: SyncConfig
    warm_start: WarmStart | None = None

    def __call__(self, wanted: Callable[[int], bool]) -> FirstValues:
        from learners.training.task import load, loss_unit
        from learners.training.tree import deal, initial_parameters, left_out

        task = load(self.task, self.data, self.seed, dict(self.model))
        fragments = deal(task, self.sync)
        patterns: Mapping[str, str] = getattr(task, "merge_rules", {})
        described = {"tokens_per_sample": task.tokens(1), "loss_unit": loss_unit(task), "left_out": left_out(task)}
        here = [fragment for fragment in fragments if wanted(fragment.index)]
        thetas = iter(initial_parameters(task, here, self.seed, self.warm_start))
        return fragments, [next(thetas) if wanted(each.index) else None for each in fragments], patterns, described
