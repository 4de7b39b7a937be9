"""The arguments of an incarnation of a learner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from learners.checkpoint_writer import SavedPart
from learners.config import DataConfig, InnerConfig, WarmStart
from outer.config import SyncConfig
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
