"""What enters and leaves the syncer machine beside the messages: the manual for whoever writes a shell.

Events are handed to `Syncer.handle`; effects are to be performed in the order in which they are returned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outer.facts import Committed, SyncerFact
from outer.messages import (
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

    A learner that is not known yet joins the run by this.
    """

    learner: str
    incarnation: int
    lease_s: float
    batch_size: int  # samples
    region: str = ""


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
    """Result of an Append effect."""

    syncer_step: int


@dataclass(frozen=True)
class StopRequested:
    reason: str


@dataclass(frozen=True)
class Tick:
    """Time passed."""


Event = (
    Expect
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
    | Tick
)


# ------------------------------------------------------------------ effects

ToLearner = Welcome | Donor | ReadRequest | Notice | Grant | Drain | Stop


@dataclass(frozen=True)
class Say:
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
    """Make the commit durable, conditional on (epoch, sequence); answer with Durable."""

    sequence: int
    record: Committed
    proposal: Any


@dataclass(frozen=True)
class Publish:
    """Make the proposal the fragment's current value, before anyone is told."""

    fragment: int
    version: int
    proposal: Any


Effect = Say | Send | Merge | Append | Publish
