"""The learner's events and effects: the manual for the author of a shell.

The shell hands each event, and each message to this learner, to `Learner.handle` under one lock, and performs the
returned effects in order. Two events drive its loop. Boundary: a step is dispatched, so that its results exist, if only
as promises of the device, and the next one can be chosen. StepDone: the loss of the oldest step in flight is known.

    Boundary            -> ... Stage          copy these fragments, as of the newest step
    Staged (the copies) -> ... Apply*         adopt these payloads, then
                           RunStep | Hold | Exit
    StepDone            -> ... Answer*        what waited for this step
    Resume, after Hold  -> the same choice again

A shell that looks ahead dispatches step n + 1 before it waits for the loss of step n: Boundary, RunStep n + 1,
StepDone of n, Boundary, RunStep n + 2. At most two steps are in flight. One that does not sends StepDone, then
Boundary. One whose next batch is not there yet says so with Waiting, so that its loop is known to live.
Hold with steps in flight (its reason is `completion`) means: wait for their losses, send each StepDone, then
Resume. The machine saves, gives its state, stops and waits only when nothing is in flight.

Fetch comes back as Fetched or FetchFailed, Recover as StateArrived or StateMissed, Donate as StateSent.
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
    """The process enters the importing or compiling phase."""

    phase: str


@dataclass(frozen=True)
class Compiled:
    """The step is compiled: the learner is ready to attach."""

    manifest: dict[str, Any]


@dataclass(frozen=True)
class Fetched:
    """The result of a Fetch effect, checksum verified. `version` may be newer than requested."""

    fragment: int
    version: int
    payload: Any
    snapshot: int = 0  # the newest snapshot of the syncer when it answered
    bytes: int = field(default=0, repr=False)  # that its download took; 0: nobody measured them


@dataclass(frozen=True)
class FetchFailed:
    """The other result of a Fetch effect."""

    fragment: int
    version: int
    reason: str  # fetch_failed | bad_digest


@dataclass(frozen=True)
class StateArrived:
    """The result of a Recover effect. The shell has checked digest, shapes and finiteness."""

    state: State


@dataclass(frozen=True)
class StateMissed:
    """The other result of a Recover effect. `donor` is empty when the syncer named none."""

    donor: str
    donor_incarnation: int
    reason: str


@dataclass(frozen=True)
class StateSent:
    """The result of a Donate effect."""

    request: StateRequest
    step: int
    digest: str
    size: int  # bytes
    versions: tuple[int, ...] = ()  # of every fragment at that time


@dataclass(frozen=True)
class Leave:
    """The process was asked to end: drain within sync.drain_s, then exit."""


@dataclass(frozen=True)
class Reattach:
    """A new syncer epoch is there to attach to. A stepping learner keeps stepping."""


@dataclass(frozen=True)
class Boundary:
    """A step is dispatched, or done: the next one can be chosen."""

    tokens: int  # in that step's batch


@dataclass(frozen=True)
class StepDone:
    """The result of a RunStep effect: the oldest step in flight is done."""

    loss: float  # in the task's unit
    tokens: int  # in the step's batch
    aux: dict[str, float] | None = field(default=None, repr=False)  # auxiliary values by name; None: the task has none
    paused_s: float = 0.0  # for which the loop stood still before the step, to take a snapshot


@dataclass(frozen=True)
class Waiting:
    """The loop waits for the data of the step that it was given, with no other in flight. Sent every HOLD_S."""


@dataclass(frozen=True)
class Staged:
    """The result of a Stage effect: the copies, by fragment."""

    copies: Mapping[int, Any]


@dataclass(frozen=True)
class Resume:
    """The loop woke from a Hold."""


Event = (
    Enter | Compiled | Welcome | Notice | Grant | ReadRequest | Drain | Stop | Fetched | FetchFailed | StateRequest
    | StateArrived | StateMissed | StateSent | Leave | Reattach | Boundary | StepDone | Waiting | Staged | Resume
)  # fmt: skip


# ------------------------------------------------------------------ effects


@dataclass(frozen=True)
class Emit:
    """Add a fact to the FactBuffer."""

    fact: LearnerFact


@dataclass(frozen=True)
class Send:
    """Send a message to the syncer, without waiting."""

    message: Attach | Report


@dataclass(frozen=True)
class Answer:
    """The reply to a ReadRequest: encode the payload, add its digest, return it to the syncer."""

    contribution: Contribution


@dataclass(frozen=True)
class Fetch:
    """Fetch a fragment's version."""

    fragment: int
    version: int
    digest: str  # "" when unknown
    source: Any = field(default=None, repr=False)  # as of a Notice


@dataclass(frozen=True)
class Recover:
    """Ask the syncer for a donor, then the donor for its state, within `deadline_s` seconds.

    The shell always answers, with StateArrived or StateMissed.
    """

    seek: SeekDonor
    deadline_s: float


@dataclass(frozen=True)
class Save:
    """Save the whole state as of now as this learner's part of a snapshot, in the background."""

    snapshot: int
    state: ResumeState
    final: bool  # another process continues from it: no fact or step follows


@dataclass(frozen=True)
class Donate:
    """Send parameters and inner state, as of now, to a joiner. The result comes back as StateSent."""

    request: StateRequest
    step: int
    syncer_step: int
    versions: tuple[int, ...] = ()  # of every fragment now


@dataclass(frozen=True)
class Decline:
    """Answer a StateRequest: this learner cannot give its state."""

    request: StateRequest
    reason: str


@dataclass(frozen=True)
class Inherit:
    """Load a donor's parameters and inner state."""

    state: State


@dataclass(frozen=True)
class Stage:
    """Copy these fragments as of the newest step. The copies are used once that step is done."""

    fragments: tuple[int, ...]


@dataclass(frozen=True)
class Apply:
    """Adopt a payload now. It contains what was read after step `read_at`; None: nothing since the last, or not known.

    Rebase subtracts the value of that read, or the base.
    """

    fragment: int
    version: int
    payload: Any
    mode: str  # bootstrap | overwrite | rebase
    read_at: int | None = None


@dataclass(frozen=True)
class RunStep:
    """Run a step on samples [start, start + batch size); `progress`, of the budget, sets the learning rate."""

    step: int
    start: int
    progress: float
    ahead: tuple[int, ...] = ()  # first samples of the steps that follow, as far as they are known


@dataclass(frozen=True)
class Hold:
    """Wait until an event arrives or `seconds` have passed, then send Resume. First complete the steps in flight."""

    seconds: float
    reason: str


@dataclass(frozen=True)
class Exit:
    """End the training loop."""

    reason: str


Effect = (
    Save | Emit | Send | Answer | Fetch | Recover | Donate | Decline | Inherit | Stage | Apply | RunStep | Hold | Exit
)
