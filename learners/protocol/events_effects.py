"""What enters and leaves the learner machine beside the messages: the manual for whoever writes a shell.

The training loop, at every boundary between two steps:

    StepDone            -> ... Stage          copy these fragments to the host
    Staged (the copies) -> ... Apply*         adopt these payloads, then
                           RunStep | Hold | Exit
    Resume, after Hold  -> the same choice again
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from learners.protocol.facts import LearnerFact
from learners.protocol.resume_state import ResumeState
from outer.protocol.messages import (
    Attach,
    Contribution,
    Drain,
    Grant,
    Notice,
    ReadRequest,
    Report,
    SeekDonor,
    State,
    StateRequest,
    Stop,
    Welcome,
)

# ------------------------------------------------------------------ events


@dataclass(frozen=True)
class Enter:
    """The shell enters the importing or compiling phase."""

    phase: str


@dataclass(frozen=True)
class Compiled:
    """The step is compiled: ready to attach."""

    manifest: dict[str, Any]


@dataclass(frozen=True)
class Fetched:
    """Result of a Fetch effect; `version` may be newer than was asked for. It passed its checksum."""

    fragment: int
    version: int
    payload: Any
    snapshot: int = 0  # of the syncer, when it answered


@dataclass(frozen=True)
class FetchFailed:
    fragment: int
    version: int
    reason: str  # fetch_failed | bad_digest


@dataclass(frozen=True)
class StateArrived:
    """Result of a Recover effect. It passed its checks."""

    state: State


@dataclass(frozen=True)
class StateMissed:
    """Result of a Recover effect; `donor` is empty when the syncer named nobody."""

    donor: str
    donor_incarnation: int
    reason: str


@dataclass(frozen=True)
class StateSent:
    """A Donate effect was carried out."""

    request: StateRequest
    step: int
    digest: str
    size: int  # bytes
    versions: tuple[int, ...] = ()  # held then, by fragment


@dataclass(frozen=True)
class Leave:
    """The process was told to end: step no more, and go once what was done is merged, or sync.drain_s have passed."""


@dataclass(frozen=True)
class Reattach:
    """The syncer is gone, and its next epoch is there to attach to. Whoever steps goes on stepping."""


@dataclass(frozen=True)
class StepDone:
    """Result of a RunStep effect."""

    loss: float  # in the task's unit
    tokens: int  # in the step's batch
    aux: dict[str, float] | None = field(default=None, repr=False)  # auxiliary values by name; None: the task has none


@dataclass(frozen=True)
class Staged:
    """Result of a Stage effect: the host copies, by fragment."""

    copies: Mapping[int, Any]


@dataclass(frozen=True)
class Resume:
    """The loop looks up from a Hold."""


Event = (
    Enter
    | Compiled
    | Welcome
    | Notice
    | Grant
    | ReadRequest
    | Drain
    | Stop
    | Fetched
    | FetchFailed
    | StateRequest
    | StateArrived
    | StateMissed
    | StateSent
    | Leave
    | Reattach
    | StepDone
    | Staged
    | Resume
)


# ------------------------------------------------------------------ effects


@dataclass(frozen=True)
class Emit:
    fact: LearnerFact


@dataclass(frozen=True)
class Send:
    """To the syncer, without waiting."""

    message: Attach | Report


@dataclass(frozen=True)
class Answer:
    """The reply to a ReadRequest: encode the payload, add its digest, hand it to whoever asked."""

    contribution: Contribution


@dataclass(frozen=True)
class Fetch:
    fragment: int
    version: int
    digest: str  # "" when not known


@dataclass(frozen=True)
class Recover:
    """Ask the syncer for a donor, and the donor for its state within this many seconds.

    Always answered: with StateArrived or StateMissed.
    """

    seek: SeekDonor
    deadline_s: float


@dataclass(frozen=True)
class Save:
    """Keep the whole state as it is now as part of this snapshot; the loop is not held up."""

    snapshot: int
    state: ResumeState
    final: bool  # another process goes on from it: nothing is said, or done, after it


@dataclass(frozen=True)
class Donate:
    """Hold on to parameters and inner state as they are now, and send them; answer with StateSent."""

    request: StateRequest
    step: int
    syncer_step: int
    versions: tuple[int, ...] = ()  # held now, by fragment


@dataclass(frozen=True)
class Decline:
    """This learner cannot give its state."""

    request: StateRequest
    reason: str


@dataclass(frozen=True)
class Inherit:
    """Load a donor's parameters and inner state."""

    state: State


@dataclass(frozen=True)
class Stage:
    """Copy these fragments, as of the step just completed, to the host."""

    fragments: tuple[int, ...]


@dataclass(frozen=True)
class Apply:
    """Adopt a payload now. Rebase subtracts what was read after step `read_at`, or the base where that is None."""

    fragment: int
    version: int
    payload: Any
    mode: str  # bootstrap | overwrite | rebase | mix
    read_at: int | None = None


@dataclass(frozen=True)
class RunStep:
    """Step on samples [start, start + batch size), at this share of the budget."""

    step: int
    start: int
    progress: float


@dataclass(frozen=True)
class Hold:
    """Nothing to do before something arrives, or this long has passed; then Resume."""

    seconds: float
    reason: str


@dataclass(frozen=True)
class Exit:
    reason: str


Effect = (
    Save | Emit | Send | Answer | Fetch | Recover | Donate | Decline | Inherit | Stage | Apply | RunStep | Hold | Exit
)
