"""Everything that crosses between a learner and the syncer.

Plain frozen values; array payloads are opaque handles here. Every message carries the sender's epoch or
incarnation; anything may come late, twice, or not at all. `snapshot`: the newest that the sender has saved its state
for; whoever sees one that it has not saved its own for does so before it acts on the message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

# Phases of a learner, in order. Leases name the phase they were given in.
STARTING, IMPORTING, COMPILING, JOINING, STEPPING, DRAINING, STOPPED = (
    "starting",
    "importing",
    "compiling",
    "joining",
    "stepping",
    "draining",
    "stopped",
)


# ------------------------------------------------------------------ learner to syncer


@dataclass(frozen=True)
class Attach:
    """First word of a compiled learner. The manifest is what both sides must agree on, flat."""

    learner: str
    incarnation: int
    manifest: dict[str, Any]


class FragmentCounters(NamedTuple):
    """What accrued on one fragment since its base was adopted (c_steps and c_tokens of the paper)."""

    base_version: int | None  # None until adopted from the syncer
    base_step: int  # adopted after this step
    steps: int
    tokens: int


@dataclass(frozen=True)
class Report:
    """Sent after each step, and on entering a phase: progress, counters, and the lease they earn."""

    learner: str
    incarnation: int
    epoch: int | None  # the syncer epoch attached to; None before attaching
    sequence: int  # rises by one per report of an incarnation
    phase: str
    lease_s: float  # from arrival
    step: int
    step_s: float  # moving average of step times; 0 until known
    tokens: int  # processed by this incarnation
    syncer_step: int  # newest syncer step known: this learner's entry for the syncer in the vector clock
    counters: tuple[FragmentCounters, ...] = ()
    newest_span: int = -1
    wants_span: bool = False
    loss: float | None = None  # of the last step
    snapshot: int = 0  # the newest that it has saved its state for


@dataclass(frozen=True)
class Contribution:
    """The answer to a read: one fragment as of one completed step, with that step's exact counters."""

    learner: str
    incarnation: int
    epoch: int
    syncer_step: int
    fragment: int
    attempt: int  # the request's
    step: int
    processed: int  # tokens processed by this incarnation up to and including that step
    counters: FragmentCounters
    payload: Any  # handle; on the wire a 1-D array in the codec's format
    digest: str  # SHA-256 of the payload's bytes
    defect: str = ""  # found by the receiving shell: bad_digest | non_finite | wrong_shape
    snapshot: int = 0  # the newest that its sender had saved its state for


@dataclass(frozen=True)
class SeekDonor:
    """A joiner asks whose state it may copy. It names the donors that have failed it, so as to be given another."""

    learner: str
    incarnation: int
    epoch: int
    failed: tuple[str, ...] = ()


# ------------------------------------------------------------------ learner to learner


@dataclass(frozen=True)
class StateRequest:
    """A joiner asks a donor for its state, as of any boundary at which it has seen this syncer step."""

    epoch: int
    joiner: str
    joiner_incarnation: int
    donor: str
    donor_incarnation: int
    syncer_step: int
    deadline_s: float  # from sending


@dataclass(frozen=True)
class State:
    """The answer: parameters and inner optimizer state of one completed step."""

    donor: str
    donor_incarnation: int
    step: int  # of the donor
    syncer_step: int  # the newest that the donor had seen
    payload: Any  # handle; on the wire a list of arrays
    digest: str  # SHA-256 over all of it
    size: int  # bytes
    versions: tuple[int, ...] = ()  # of every fragment, as the donor held them


# ------------------------------------------------------------------ syncer to learner


@dataclass(frozen=True)
class Welcome:
    """The answer to Attach."""

    epoch: int
    syncer_step: int
    progress: float  # of the budget, 0 to 1
    versions: tuple[int, ...]  # current version of each fragment: what to fetch first
    snapshot: int = 0


@dataclass(frozen=True)
class Donor:
    """The answer to SeekDonor; `donor` is empty where nobody can give."""

    epoch: int
    incarnation: int  # of the joiner
    donor: str
    donor_incarnation: int
    syncer_step: int  # what the donor must have seen


@dataclass(frozen=True)
class ReadRequest:
    epoch: int
    incarnation: int  # of the learner that is meant
    syncer_step: int
    fragment: int
    attempt: int  # from 1; rises when a syncer step has to ask again
    progress: float
    deadline_s: float  # from sending
    snapshot: int = 0


@dataclass(frozen=True)
class Notice:
    """A fragment has a new version; its payload is to be fetched."""

    epoch: int
    syncer_step: int
    fragment: int
    version: int
    digest: str
    progress: float
    merged_step: int | None = None  # the receiver's own step up to which its steps are in it; rebase needs to know
    snapshot: int = 0


@dataclass(frozen=True)
class Grant:
    """Samples [start, stop) of the deterministic order."""

    epoch: int
    incarnation: int
    span: int
    start: int
    stop: int
    snapshot: int = 0


@dataclass(frozen=True)
class Drain:
    """Step no more, but stay until what was done is merged, or the deadline has passed."""

    epoch: int
    incarnation: int
    reason: str
    deadline_s: float  # from arrival


@dataclass(frozen=True)
class Stop:
    """End the training loop."""

    epoch: int
    reason: str
    suspend: bool = False  # the run goes on another time: save everything for the snapshot, and say nothing after it
    snapshot: int = 0
