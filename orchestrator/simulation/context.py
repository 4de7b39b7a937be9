"""The state that all parts of one simulated run share, and the ports that a world implements.

A world is one user of these processes: chaos/simulation plugs in a hostile network, storage and faults, the planner
plugs in durations. `learner` and `syncer` in the ports are the processes of the modules beside this one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from learners.config import DataConfig
from learners.protocol.fact_buffer import ANSWER_MAX
from orchestrator.simulation.peers import Network
from orchestrator.simulation.process import Host
from orchestrator.simulation.timeline import Timeline
from outer.config import SyncConfig
from outer.journal.object_store import Objects
from outer.numeric import codec as codecs
from outer.numeric.chain import EXACT
from outer.protocol.events_effects import Append, Publish
from outer.protocol.fragments import Fragment
from outer.protocol.messages import Contribution, Report

Key = tuple[str, int]  # writer, and its incarnation or epoch
Trace = Callable[[float, str, object], None]  # virtual seconds, who, and what happened


class SimLearner(NamedTuple):
    """A learner as it is known before the start."""

    host: Host
    batch_size: int  # samples of a step
    pool: str
    region: str | None
    tokens: int  # of a step
    ranks: tuple[Host, ...] = ()  # where the other ranks of an island are
    standbys: int = 0


class Durations(Protocol):
    """Durations in seconds of everything that is not sent over the network."""

    backoff_s: float
    hang_s: float
    unreachable_s: float
    start_s: float
    look_s: float  # between two looks of the orchestrator
    end_s: float  # until a process has ended that the orchestrator ends
    # Drawn anew each time:
    notice_s: Callable[[], float]  # from a learner's death to its detection
    outage_s: Callable[[], float]  # from the death of a syncer, or of an orchestrator, to its detection
    begin_s: Callable[[], float]  # until a process is up that was started

    def step_until(self, learner: Any, begins_at: float) -> float:
        """The virtual second at which a step that begins then is done."""

    def died(self, learner: Any) -> None:
        """A learner's process has ended."""

    def job(self, kind: str, func: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[float, float]:
        """Seconds that a job beside the loop takes, before and after the moment at which it happens.

        `kind`: the name of its threads; empty for the loop's own.
        """

    def place_s(self, again: bool) -> float:
        """Seconds until there is hardware for a learner. `again`: there was some before."""


class Model(Protocol):
    """The contents of the syncer's fragments. An array of one number stands for a value."""

    fragments: tuple[Fragment, ...]
    task: Mapping[str, Any]  # what the task says of itself

    def origin(self, fragment: int) -> NDArray[Any]:
        """The initial value."""

    def examined(self, contribution: Contribution) -> Contribution:
        """The contribution, with its defect if its payload has one."""
        return contribution

    def encoded(self, contribution: Contribution, poisoned: bool) -> Contribution:
        """A contribution for the wire, with its digest. `poisoned`: its numbers are not finite."""
        return contribution

    def received(self, theta: NDArray[Any]) -> Any:
        """A version that has come. It has a `number`."""

    def merged(
        self, syncer: Any, fragment: int, version: int, base: NDArray[Any], payloads: Sequence[Any], weights: Any
    ) -> Any:
        """A SimProposal of the fragment's next version."""


@dataclass(frozen=True)
class SimProposal:
    """A version that was merged, as outer.numeric.parameters.Proposal."""

    fragment: int
    arrays: list[NDArray[Any]]
    finite: bool = True
    norm: float = 1.0
    outlier: int = -1

    @property
    def digest(self) -> str:
        return codecs.digest(self.arrays[0])


class SimChain:
    """The interface of outer.numeric.chain.VersionChain: a delta is the value that it leads from, and the one after."""

    @staticmethod
    def of(sync: SyncConfig) -> Any:
        return None if sync.downlink == EXACT else SimChain()

    def delta(self, theta: NDArray[Any], before: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate([before, theta])

    def extend(self, fragment: int, before: NDArray[Any], deltas: Sequence[NDArray[Any]]) -> NDArray[Any]:
        for delta in deltas:
            before = delta[1:] if delta[0] == before[0] else np.array([math.nan])
        return before


class Faults:
    """Hooks at which a world injects faults. This class injects none."""

    carried_max = ANSWER_MAX  # facts of a learner's answer

    def damages(self, kind: str) -> bool:
        """True if a fault of that kind hits this payload (for `linger`: this process)."""
        return False

    def outlives(self, kind: str) -> bool:
        """True if a job of a process that has stopped happens all the same, for it was on its way."""
        return False

    def spoils(self, learner: Any, start: int) -> bool:
        """True if the batch from this sample on cannot be built."""
        return False

    def finite(self, state: Any) -> bool:
        """True if the numbers of a donor's state are finite."""
        return True

    def started(self, learner: Any) -> None:
        """A learner's process is up."""

    def emitted(self, syncer: Any, fact: Any) -> None:
        """The syncer has recorded a fact."""

    def appended(self, syncer: Any, effect: Append) -> None:
        """The syncer has handed a record to its journal."""


class Observer:
    """Hooks that report what the processes do. This class ignores all of it."""

    def steps(self, learner: Any) -> None:
        """A learner begins a step."""

    def gives(self, learner: Any, effect: Any) -> None:
        """A learner is about to give its state to a joiner."""

    def leaves(self, learner: Any, reason: str) -> None:
        """A learner's loop ends."""

    def raised(self, process: Any, error: BaseException) -> None:
        """Something in a shell has raised that nobody waits for."""

    def appended(self, syncer: Any, effect: Append) -> None:
        """The syncer has handed a record to its journal."""

    def begun(self, syncer: Any) -> None:
        """The syncer serves."""

    def emitted(self, syncer: Any, fact: Any) -> None:
        """The syncer has recorded a fact; a record once it is durable."""

    def published(self, syncer: Any, effect: Publish) -> None:
        """The syncer announces a version."""

    def sent(self, syncer: Any, message: Any) -> None:
        """The syncer sends a message to a learner that is there."""

    def welcomed(self, message: Any) -> None:
        """The syncer has accepted a learner's attach."""

    def concluded(self, thetas: Sequence[NDArray[Any]]) -> None:
        """The orchestrator has the run's result."""

    def told(self, syncer: Any, event: Any, effects: list[Any]) -> None:
        """The syncer has handled an event from the orchestrator."""

    def reporting(self, syncer: Any, report: Report) -> Callable[[], None] | None:
        """The syncer is about to handle a report. What is returned is called afterwards."""
        return None

    def answering(self, syncer: Any, contribution: Contribution) -> Callable[[list[Any]], None] | None:
        """The syncer is about to handle a contribution. What is returned is called with the effects."""
        return None


@dataclass(kw_only=True)
class SimContext:
    """`make_values` takes a learner's key, and gives what SimFragments asks of its fragments' contents."""

    time: Timeline
    network: Network
    durations: Durations
    sync: SyncConfig
    data: DataConfig
    specs: Mapping[str, SimLearner]
    manifest: Mapping[str, Any]
    model: Model
    make_values: Callable[[Key], Any]
    store: Objects
    faults: Faults = field(default_factory=Faults)
    observer: Observer = field(default_factory=Observer)
    fault_counts: Counter[str] = field(default_factory=Counter)  # by kind of fault: how often it had an effect
    trace: Trace | None = None
    in_flight_max: int = 1  # steps of one learner
    joined: str = ""  # a region that is a cluster of its own
    opportunistic: bool = False  # pools take every learner that has a place
    saving: bool = False  # learners save their state for checkpoints
    shard_hosts: Sequence[Host] = ()  # where shards are that are processes of their own
    # Facts of the orchestrators: virtual seconds, whose by its number, and the fact.
    said: list[tuple[float, int, Any]] = field(default_factory=list)
    said_at: dict[int, list[float]] = field(default_factory=dict)  # virtual seconds, of each epoch's own facts
