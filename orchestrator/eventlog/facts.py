"""The facts that the orchestrator and the chaos actor record, and the registry of all kinds of facts.

The syncer's facts are in outer/protocol/facts.py, the learners' in learners/protocol/facts.py.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass, field
from typing import Any

from learners.protocol.facts import LearnerFact
from outer.protocol.facts import SyncerFact


@dataclass(frozen=True)
class RunStarted:
    name: str
    config_hash: str
    seed: int
    versions: dict[str, str]  # python, jax, ray, numpy, optax, platform, XLA flags, digest of the code


@dataclass(frozen=True)
class LearnerRequested:
    """An incarnation was granted and its actor requested; it now waits for placement."""

    learner: str
    incarnation: int
    pool: str
    region: str | None


@dataclass(frozen=True)
class LearnerStarted:
    """Its process is up, or all of them."""

    learner: str
    incarnation: int
    pid: int
    node: str
    pids: tuple[int, ...] = ()  # of an island's ranks 1, 2, ...
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class LearnerLost:
    """The orchestrator considers an incarnation dead, or has ended it."""

    learner: str
    incarnation: int
    cause: str  # died | lease_expired | failed
    detail: str


@dataclass(frozen=True)
class SyncerLost:
    """The orchestrator considers an epoch of the syncer dead, and starts the next."""

    epoch: int
    cause: str  # died | lease_expired | failed
    detail: str


@dataclass(frozen=True)
class CheckpointWritten:
    """A checkpoint is complete; a run can resume from it."""

    snapshot: int
    syncer_step: int  # of the newest commit in it
    final: bool  # the run is suspended with it
    bytes: int
    omitted: tuple[str, ...]  # learners whose state did not come in time
    seconds: float  # from the cut


@dataclass(frozen=True)
class CheckpointFailed:
    """The checkpoint could not be completed. Resume must not use it."""

    snapshot: int
    reason: str


@dataclass(frozen=True)
class RunResumed:
    """A run that an earlier orchestrator began is resumed."""

    epochs: int  # of the syncer, before
    snapshot: int  # the checkpoint that learners start from; 0 if none
    exact: tuple[str, ...]  # learners that continue as the same incarnation
    damaged: tuple[str, ...]  # newer checkpoints that are damaged, and how


@dataclass(frozen=True)
class OrchestratorFollowed:
    """An orchestrator took over a run whose learners or syncer were still running."""

    epoch: int  # of the syncer that it found; 0: none
    learners: tuple[str, ...]  # that it found


@dataclass(frozen=True)
class PoolScaled:
    """The wanted number of learners of a pool changed."""

    pool: str
    learners: int
    added: tuple[str, ...]
    removed: tuple[str, ...]  # they drain
    reason: str = ""  # empty: it was asked for


@dataclass(frozen=True)
class NodePreempted:
    """A node announced that it will go: its learners drain, and restart elsewhere."""

    node: str
    learners: tuple[str, ...]
    remaining_s: float | None  # until the node goes; None if it did not say


@dataclass(frozen=True)
class Evaluated:
    """Held-out loss of the syncer's parameters."""

    syncer_step: int
    loss: float
    tokens: int
    unit: str = ""  # of the loss, as the task says
    # The task's own metrics; those of further sets, and their "loss", with the set's name in front: "wiki/loss".
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class EvaluationFailed:
    """An evaluation raised, or took longer than eval.timeout_s. Another one follows when it is due."""

    reason: str


@dataclass(frozen=True)
class FaultInjected:
    fault: int  # identifies the fault in this run
    fault_kind: str  # kill | freeze | slow | straggle | link | corrupt | non_finite | wrong_config
    target: str
    incarnation: int
    pid: int
    duration_s: float  # 0: it does not end by itself
    delay_s: float = 0.0  # of every step (slow), or of a step on average (straggle)


@dataclass(frozen=True)
class FaultHealed:
    fault: int
    target: str


@dataclass(frozen=True)
class FaultSkipped:
    """A planned fault whose target was not running."""

    fault_kind: str
    target: str
    reason: str


@dataclass(frozen=True)
class RunFinished:
    state: str  # finished | stopped | failed
    reason: str
    digest: str = ""  # XXH3 digest of all final parameters, fragment by fragment; "" where there are none


ClusterFact = (
    RunStarted | LearnerRequested | LearnerStarted | LearnerLost | SyncerLost | CheckpointWritten | CheckpointFailed
    | RunResumed | OrchestratorFollowed | PoolScaled | NodePreempted | Evaluated | EvaluationFailed | FaultInjected
    | FaultHealed | FaultSkipped | RunFinished
)  # fmt: skip
Fact = SyncerFact | LearnerFact | ClusterFact
REGISTRY: dict[str, type[Any]] = {kind.__name__: kind for kind in typing.get_args(Fact)}
