"""The state that all parts of one simulated run share, and the ports that a world implements.

A world is one user of these processes: chaos/simulation plugs in a hostile network, storage and faults, the planner
plugs in durations. `learner` and `syncer` in the ports are the processes of the modules beside this one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from orchestrator.eventlog.events import Event
from orchestrator.simulation.calls import Network
from orchestrator.simulation.process import Host
from orchestrator.simulation.timeline import Timeline
from outer.config import SyncConfig
from outer.protocol.events_effects import Append, Merge, Merged, Publish
from outer.protocol.messages import Contribution, Report
from outer.protocol.recorder import Run

Key = tuple[str, int]  # writer, and its incarnation or epoch
Fact = tuple[float, Any]  # wall-clock seconds of its writer, and the fact


Trace = Callable[[float, str, object], None]  # virtual seconds, who, and what happened

SYNCER = "syncer"
AMONG_SYNCERS = frozenset({"orchestrator", "chaos"})  # writers with logs of their own


class FactStretch(NamedTuple):
    """Facts of one incarnation, or epoch, by their numbers: from `first` up to `stop`, without that."""

    key: Key
    first: int
    stop: int


class SimGroup(NamedTuple):
    """The content of one object of the chain, in order."""

    stretches: tuple[FactStretch, ...] = ()
    runs: tuple[Run, ...] = ()  # for each writer, the number of the last fact that is in the log with this group
    records: tuple[Append, ...] = ()  # their facts are among the stretches


class SimLearner(NamedTuple):
    """A learner as the supervisor knows it before the start."""

    host: Host
    batch_size: int  # samples of a step
    pool: str
    region: str | None


class Durations(Protocol):
    """Durations in seconds of everything that is not sent over the network."""

    backoff_s: float
    hang_s: float
    unreachable_s: float
    start_s: float
    look_s: float  # between two polls of the supervisor
    exit_s: float  # from the end of a training loop to the end of its process
    end_s: float  # from an orderly end of a process until the supervisor knows of it
    pack_s: float  # for a donor to pack its state
    # Drawn anew each time:
    notice_s: Callable[[], float]  # from a learner's death to its detection
    outage_s: Callable[[], float]  # from a syncer's death until its successor starts
    retry_s: Callable[[], float]  # until a successor that could not open its epoch tries again
    tell_s: Callable[[], float]  # for a message of the supervisor to reach the syncer
    begin_s: Callable[[], float]  # for the supervisor to tell a learner to begin
    reattach_s: Callable[[], float]  # for the supervisor to tell a learner of a new syncer

    def startup(self, learner: Any) -> tuple[float, float]:
        """Seconds of importing, and of compiling."""

    def work(self, seconds: float, learner: Any, happen: Callable[..., Any], *args: Any) -> None:
        """Call back once a start has done so many seconds of work."""

    def step(self, learner: Any, number: int) -> tuple[float, int]:
        """The virtual second at which the step that begins now is done, and its tokens."""

    def died(self, learner: Any) -> None:
        """A learner's process has ended."""

    def merge_s(self, fragment: int, payloads: int) -> float:
        """Seconds of one merge."""

    def place(self, name: str, incarnation: int, happen: Callable[..., Any], *args: Any) -> None:
        """Call back once there is hardware and a process for an incarnation."""


class Values(Protocol):
    """The contents of one learner's fragments."""

    step: int  # the learner's newest step, which may be in flight

    def copies(self, fragments: tuple[int, ...]) -> dict[int, Any]:
        """Copies of these fragments."""

    def read(self, contribution: Contribution) -> None:
        """A fragment was handed out."""

    def apply(self, effect: Any) -> None:
        """Adopt a version."""

    def packed(self, poisoned: bool) -> Any:
        """The whole state, for a joiner. `poisoned`: its numbers are not finite."""

    def gave(self, step: int, payload: Any) -> None:
        """The state of a step is on its way to a joiner."""

    def inherit(self, state: Any) -> None:
        """Start from a donor's state."""


class Model(Protocol):
    """The contents of the syncer's fragments."""

    def merged(self, syncer: Any, effect: Merge) -> Merged:
        """Merge payloads into a fragment's next version."""

    def published(self, syncer: Any, effect: Publish) -> Any:
        """The version that is announced. It has a `number`."""


class Journal(Protocol):
    """Writes one epoch's groups, one at a time."""

    def put(self, group: SimGroup) -> None:
        """Create the next object of the chain. Called again only once the last group is durable."""

    def finish(self, group: SimGroup) -> None:
        """The run is over: the group under way, and this one, become durable."""

    def crash(self) -> None:
        """The syncer's process has ended: what was not durable may be lost."""


class Faults:
    """Hooks at which a world injects faults. This class injects none."""

    def damages(self, kind: str) -> bool:
        """True if a fault of that kind hits this payload (for `linger`: this process)."""
        return False

    def reported(self, learner: Any, report: Report) -> Report:
        """Return the report that a learner really sends."""
        return report

    def contributed(self, learner: Any, contribution: Contribution) -> tuple[Contribution, str]:
        """Return the contribution that a learner really hands out, and the defect that its inspection finds."""
        return contribution, ""

    def spoils(self, learner: Any, start: int) -> bool:
        """True if the batch from this sample on cannot be built."""
        return False

    def finite(self, state: Any) -> bool:
        """True if the numbers of a donor's state are finite."""
        return True

    def moment(self, learner: Any, moment: str) -> None:
        """A learner has reached a moment at which a triggered fault may strike."""

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

    def emitted(self, syncer: Any, fact: Any) -> None:
        """The syncer has recorded a fact."""

    def sent(self, syncer: Any, message: Any) -> None:
        """The syncer sends a message to a learner that is there."""

    def welcomed(self, message: Any) -> None:
        """The syncer has accepted a learner's attach."""

    def told(self, syncer: Any, event: Any, effects: list[Any]) -> None:
        """The syncer has handled an event from the supervisor."""

    def reporting(self, syncer: Any, learner: Any, report: Report) -> Callable[[], None] | None:
        """The syncer is about to handle a report. What is returned is called afterwards."""
        return None

    def answered(self, syncer: Any, contribution: Contribution, effects: list[Any]) -> None:
        """The syncer has handled a contribution."""


@dataclass(kw_only=True)
class SimContext:
    """`make_learner` takes a name and an incarnation; `make_journal` a syncer and two callbacks, durable and refused.

    `make_values` takes a learner's key.
    """

    time: Timeline
    network: Network
    durations: Durations
    sync: SyncConfig
    specs: Mapping[str, SimLearner]
    manifest: Mapping[str, Any]
    model: Model
    make_learner: Callable[[str, int], Any]
    make_values: Callable[[Key], Any]
    make_journal: Callable[[Any, Callable[[SimGroup], None], Callable[[], None]], Journal]
    faults: Faults = field(default_factory=Faults)
    observer: Observer = field(default_factory=Observer)
    fault_counts: Counter[str] = field(default_factory=Counter)  # by kind of fault: how often it had an effect
    trace: Trace | None = None
    recording: bool = True  # facts are kept
    fetchers: int = 2  # fetches at a time of one learner
    fetches_newest: bool = False  # of a fragment's versions that wait, as learners/fetcher.py does
    in_flight_max: int = 1  # steps of one learner
    facts: dict[Key, list[Fact]] = field(default_factory=dict)  # every recorded fact, by writer and incarnation
    said_at: dict[Key, list[float]] = field(default_factory=dict)  # virtual seconds, of each epoch's own facts
    log: list[SimGroup] = field(default_factory=list)  # the chain: groups that are durable
    acknowledged: dict[Key, int] = field(default_factory=dict)  # by learner: the last number it was told to be durable

    def events(self) -> list[Event]:
        """The run's log in its order: the chain, and the facts of other logs by time among the syncer's own."""
        others = sorted(
            (
                Event(*key, number, at, fact)
                for key, said in self.facts.items()
                if key[0] in AMONG_SYNCERS
                for number, (at, fact) in enumerate(said)
            ),
            key=lambda event: event.at,
        )[::-1]
        events: list[Event] = []
        for key, first, stop in (stretch for group in self.log for stretch in group.stretches):
            said, said_at = self.facts[key][first:stop], self.said_at.get(key)
            for number, (at, fact) in enumerate(said, first):
                while said_at and others and others[-1].at <= said_at[number]:
                    events.append(others.pop())
                events.append(Event(*key, number, at, fact))
        return events + others[::-1]
