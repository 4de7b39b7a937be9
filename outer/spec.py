"""The specification of one epoch of the syncer. Each of its processes has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outer.config import OuterConfig, SyncConfig
from outer.journal.chain import Segmenter
from outer.journal.object_store import Objects
from outer.protocol.syncer import Budget


@dataclass(frozen=True)
class SyncerSpec:
    """Everything an epoch of the syncer is made from."""

    epoch: int
    sync: SyncConfig
    outer: OuterConfig
    learners: Mapping[str, int]  # name -> batch size
    quorum: int
    span_steps: int
    ahead_s: float
    budget: Budget
    shared: Mapping[str, Any]  # the recipe's tables that every learner must share
    code: str  # digest of the sources that the run was started with
    store: Objects  # where journal and checkpoints are
    durability: str = "journal"
    segmenter: Segmenter | None = None  # makes segments of the log from the journal's groups
    region: str = ""  # the syncer's, if the recipe says so; else that of its node
    begun: int = 0  # the epoch that started the run, or resumed it, and saved its first values; 0: this one does
    shards: int = 1  # processes that hold and merge the fragments; 1: the syncer itself
    shard_options: Mapping[str, Any] = field(default_factory=dict)  # of their Ray actors
    aside_max: int = 0  # times that samples may be set aside
    shard_lease_s: float = 5.0  # a shard that is silent for this long ends the epoch

    @property
    def persistent(self) -> bool:
        """Whether values are written with the records of their commits."""
        return self.durability != "checkpoint"
