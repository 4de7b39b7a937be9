"""The syncer's events and effects: the manual for the author of a shell.

The shell hands each event to `Syncer.handle`, and each message of messages.py that a learner sends. It performs the
returned effects in order, and hands the results of Merge and Append back as Merged and Durable. `Syncer.wake_at` says
when it must send the next Tick.

    Append(record) -> Durable      nothing that depends on the record is announced before
    Merge(payloads) -> Merged      may take long; the shell can handle other events meanwhile
    Send(ReadRequest) -> Contribution, from the learner, or ReadMissed, from the shell
    Attach, SeekDonor, DrainRequested -> Reply
    Contribution(payload) -> Merge or Forget names it, some time; hand each in once
"""

from __future__ import annotations

from dataclasses import dataclass, field
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
    """The orchestrator has granted an incarnation and starts it. Older incarnations of this learner are fenced.

    It must come before anything that the incarnation sends. An unknown learner joins the run by it.
    """

    learner: str
    incarnation: int
    lease_s: float
    batch_size: int  # samples
    region: str = ""


@dataclass(frozen=True)
class Living:
    """Every incarnation that is alive: the first event of an epoch that continues an earlier one.

    Every other incarnation that the earlier epoch knew is fenced.
    """

    expected: tuple[Expect, ...]


@dataclass(frozen=True)
class Fence:
    """The orchestrator considers an incarnation dead, or is ending it."""

    learner: str
    incarnation: int
    reason: str


@dataclass(frozen=True)
class DrainRequested:
    """The orchestrator wants this incarnation to leave once its finished steps are merged."""

    learner: str
    incarnation: int
    reason: str
    deadline_s: float


@dataclass(frozen=True)
class ReadMissed:
    """The shell got no answer to a ReadRequest."""

    learner: str
    incarnation: int
    syncer_step: int
    reason: str


@dataclass(frozen=True)
class Merged:
    """The result of a Merge effect. `norm`: L2 norm of the merged outer gradient."""

    syncer_step: int
    proposal: Any
    digest: str
    norm: float
    finite: bool
    outlier: int = -1  # where it is not finite: the payload that may be why


@dataclass(frozen=True)
class Durable:
    """The result of Append effects: all records of this epoch up to and including `sequence` are durable."""

    sequence: int


@dataclass(frozen=True)
class StopRequested:
    """The orchestrator ends the run."""

    reason: str


@dataclass(frozen=True)
class TakeSnapshot:
    """The orchestrator wants a consistent cut of the run. Identifiers only rise.

    `final`: the reason for suspending the run with this cut, if not empty. Then nothing merges after it, and the
    learners save their state and leave.
    """

    identifier: int
    final: str = ""


@dataclass(frozen=True)
class Tick:
    """Time has passed; the shell sends it no later than `Syncer.wake_at`."""


Event = (
    Expect | Living | Fence | DrainRequested | Attach | SeekDonor | Report | Contribution | ReadMissed | Merged
    | Durable | StopRequested | TakeSnapshot | Tick
)  # fmt: skip


# ------------------------------------------------------------------ effects

ToLearner = ReadRequest | Notice | Grant | Drain | Stop


@dataclass(frozen=True)
class Emit:
    """Write a fact to the event log."""

    fact: SyncerFact


@dataclass(frozen=True)
class Send:
    """Send a message to a learner, without waiting."""

    learner: str
    incarnation: int
    message: ToLearner


@dataclass(frozen=True)
class Reply:
    """What the call that brought this event returns; at most one an event."""

    value: Welcome | Donor | str | bool  # of Attach, or why it is refused; of SeekDonor; is a drain under way


@dataclass(frozen=True)
class Merge:
    """Compute the fragment's next value from these payloads. The result comes back as Merged."""

    syncer_step: int
    fragment: int
    payloads: tuple[Any, ...]
    weights: tuple[float, ...]  # sum 1
    codecs: tuple[str, ...] = field(default=(), repr=False)  # each payload's format, "" for the run's; (): all that


@dataclass(frozen=True)
class Forget:
    """These payloads, of contributions that were handed in and not merged, are over: nothing names them any more."""

    payloads: tuple[Any, ...]


@dataclass(frozen=True)
class Append:
    """Write a record to the event log, as the next fact, and make it durable, conditional on (epoch, sequence).

    The result comes back as Durable.
    If a newer epoch exists, this one is over: perform none of its effects and hand it no events any more.
    """

    sequence: int
    record: Record
    proposal: Any  # the value of a Committed record; else None


@dataclass(frozen=True)
class Publish:
    """Make the proposal the fragment's current value, before any notice of it. Reads up to this step are over."""

    fragment: int
    version: int
    proposal: Any


@dataclass(frozen=True)
class Cut:
    """Save everything that is durable now as the syncer's part of this snapshot, in the background."""

    identifier: int


Effect = Emit | Send | Reply | Merge | Forget | Append | Publish | Cut
