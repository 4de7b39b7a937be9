"""What enters and leaves the syncer machine beside the messages: the manual for whoever writes a shell.

Events are handed to `Syncer.handle`; effects are to be performed in the order in which they are returned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outer.protocol.facts import Record, SyncerFact
from outer.protocol.messages import (
    Attach,
    Contribution,
    Donor,
    Drain,
    Grant,
    Notice,
    ReadRequest,
    Report,
    SeekDonor,
    Stop,
    Welcome,
)

# ------------------------------------------------------------------ events


@dataclass(frozen=True)
class Expect:
    """The orchestrator granted an incarnation and starts it; every older one is fenced.

    A learner that is not known yet joins the run by this. It comes before anything that the incarnation sends.
    """

    learner: str
    incarnation: int
    lease_s: float
    batch_size: int  # samples
    region: str = ""


@dataclass(frozen=True)
class Living:
    """The first event of an epoch that goes on from another: every incarnation that lives. Whoever else was known
    is fenced."""

    expected: tuple[Expect, ...]


@dataclass(frozen=True)
class Fence:
    """The orchestrator holds an incarnation for dead or is ending it."""

    learner: str
    incarnation: int
    reason: str


@dataclass(frozen=True)
class DrainRequested:
    """The orchestrator wants this incarnation to leave without losing anything."""

    learner: str
    incarnation: int
    reason: str
    deadline_s: float


@dataclass(frozen=True)
class ReadMissed:
    """The shell could not get an answer to a ReadRequest."""

    learner: str
    incarnation: int
    syncer_step: int
    reason: str


@dataclass(frozen=True)
class Merged:
    """Result of a Merge effect."""

    syncer_step: int
    proposal: Any
    digest: str
    norm: float
    finite: bool


@dataclass(frozen=True)
class Durable:
    """Result of Append effects: every record of this epoch up to and including this one will survive."""

    sequence: int


@dataclass(frozen=True)
class StopRequested:
    reason: str


@dataclass(frozen=True)
class TakeSnapshot:
    """A consistent cut of the whole run is wanted; each has a higher number than all before.

    `final`: why the run is to be suspended with it. Nothing merges after the cut then, and learners save and leave.
    """

    identifier: int
    final: str = ""


@dataclass(frozen=True)
class Tick:
    """Time passed."""


Event = (
    Expect
    | Living
    | Fence
    | DrainRequested
    | Attach
    | SeekDonor
    | Report
    | Contribution
    | ReadMissed
    | Merged
    | Durable
    | StopRequested
    | TakeSnapshot
    | Tick
)


# ------------------------------------------------------------------ effects

NOTHING_LOGGED = -2  # Append.logged: the log may lack even records of the epoch before

ToLearner = Welcome | Donor | ReadRequest | Notice | Grant | Drain | Stop


@dataclass(frozen=True)
class Emit:
    fact: SyncerFact


@dataclass(frozen=True)
class Send:
    learner: str
    incarnation: int
    message: ToLearner


@dataclass(frozen=True)
class Merge:
    """Compute the fragment's next value from these payloads; answer with Merged."""

    syncer_step: int
    fragment: int
    payloads: tuple[Any, ...]
    weights: tuple[float, ...]  # normalised


@dataclass(frozen=True)
class Append:
    """Make a record durable, conditional on (epoch, sequence); answer with Durable.

    Where a newer epoch is there this one is over: nothing of it is to be performed, or delivered to it, any more.
    """

    sequence: int
    logged: int  # the log has every record of this epoch up to this sequence; NOTHING_LOGGED: see there
    record: Record
    proposal: Any  # of a commit; None for other records


@dataclass(frozen=True)
class Publish:
    """Make the proposal the fragment's current value, before anyone is told."""

    fragment: int
    version: int
    proposal: Any


@dataclass(frozen=True)
class Cut:
    """Keep what is durable by now as the syncer's part of this snapshot, while everything goes on."""

    identifier: int


Effect = Emit | Send | Merge | Append | Publish | Cut
