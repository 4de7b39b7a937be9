"""What the syncer says happened. Plain values only; the envelope is added by orchestrator/eventlog/events.py."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SyncerStarted:
    """The first fact of a syncer epoch: the rules that every later fact is read by."""

    epoch: int
    fragments: tuple[tuple[str, ...], ...]  # tensor names of each fragment, in payload order
    sizes: tuple[int, ...]  # elements of each fragment
    learners: tuple[str, ...]  # the configured learners, M = len
    quorum: int  # K
    round_steps: int  # H
    overlap_steps: int  # tau
    versions: tuple[int, ...] = ()  # of each fragment, that the epoch starts from; (): all 0
    tokens_committed: int = 0  # by then
    read_timeout_s: float = 0.0  # 0 here and below: the log is from before this was said
    lease_s: float = 0.0  # the shortest of a stepping learner
    ahead_s: float = 0.0  # for so long a learner is lent samples ahead
    durability: str = ""  # journal | replica | checkpoint


@dataclass(frozen=True)
class LearnerAttached:
    learner: str
    incarnation: int
    syncer_step: int


@dataclass(frozen=True)
class LearnerFenced:
    """From here on nothing new is accepted from this incarnation."""

    learner: str
    incarnation: int
    reason: str  # killed | superseded | lease_expired | stopped | drained | failed


@dataclass(frozen=True)
class DonorNamed:
    """A joiner was told whose state to copy."""

    learner: str
    incarnation: int
    donor: str
    donor_incarnation: int
    syncer_step: int  # what the donor must have seen


@dataclass(frozen=True)
class Quarantined:
    """So many contributions in a row were not finite: it is asked for none any more, and has to start anew."""

    learner: str
    incarnation: int
    contributions: int


@dataclass(frozen=True)
class DrainStarted:
    """It steps no more, and leaves once what it has done is merged."""

    learner: str
    incarnation: int
    reason: str


@dataclass(frozen=True)
class LeaseExpired:
    learner: str
    incarnation: int
    phase: str
    silent_s: float  # since the last report


@dataclass(frozen=True)
class LeaseRenewed:
    """A learner whose lease had expired reported again."""

    learner: str
    incarnation: int
    silent_s: float


@dataclass(frozen=True)
class SpanGranted:
    """Samples [start, stop) of the one deterministic order are lent to one incarnation."""

    learner: str
    incarnation: int
    span: int
    start: int
    stop: int
    batch_size: int = 0  # samples a step


@dataclass(frozen=True)
class SpanReturned:
    """Samples [start, stop) went back to the pool; they will be granted, and counted, again."""

    learner: str
    incarnation: int
    span: int
    start: int
    stop: int


@dataclass(frozen=True)
class StepOpened:
    syncer_step: int
    fragment: int | None  # due at this step, or none


@dataclass(frozen=True)
class StepReopened:
    """Fewer than K valid contributions came: the step waits for a new quorum."""

    syncer_step: int
    fragment: int
    valid: int
    reason: str


@dataclass(frozen=True)
class Refused:
    """Something a peer sent changed nothing, and why."""

    learner: str
    incarnation: int
    message: str  # report | contribution | attach
    reason: str  # stale_epoch | stale_incarnation | stale_base | doubled | late | bad_digest | non_finite | ...
    syncer_step: int | None = None
    fragment: int | None = None
    detail: str = ""


@dataclass(frozen=True)
class ReadFailed:
    """A learner that was asked for a fragment did not answer in time, or could not."""

    learner: str
    incarnation: int
    syncer_step: int
    fragment: int
    reason: str


@dataclass(frozen=True)
class Participant:
    """One contribution as merged. It covers the learner's steps (base_step, step]."""

    learner: str
    incarnation: int
    step: int  # last completed step contained in the payload
    base_step: int  # the base was adopted after this step
    steps: int  # c_steps = step - base_step
    tokens: int  # c_tokens of those steps
    weight: float  # normalised; the exact number used
    digest: str  # SHA-256 of the payload
    processed: int = 0  # tokens that this incarnation had processed by the end of that step


@dataclass(frozen=True)
class Committed:
    """A durable outer step of one fragment. Its version is its syncer step."""

    syncer_step: int
    fragment: int
    epoch: int
    base_version: int
    participants: tuple[Participant, ...]
    live: int  # learners with a valid lease when it merged
    digest: str  # SHA-256 of the fragment's new parameters
    norm: float  # L2 norm of the merged outer gradient
    tokens_committed: int  # over the whole run, this commit included
    quorum_s: float  # opening to the K-th report
    grace_s: float  # granted after the quorum
    sync_s: float  # decision to durable
    reason: str  # the verdict's, in words


@dataclass(frozen=True)
class StepPassed:
    """A syncer step at which no fragment was due has its quorum."""

    syncer_step: int


@dataclass(frozen=True)
class SnapshotTaken:
    """The syncer's side of a consistent cut. What was in flight then is asked for again by whoever goes on from it."""

    snapshot: int
    final: bool  # the run is suspended with it
    versions: tuple[int, ...]  # of each fragment
    tokens_committed: int
    in_flight: tuple[str, ...]  # learners that were asked for a fragment, and whose part had not merged


@dataclass(frozen=True)
class StateRebuilt:
    """The journal was not enough: where this epoch's values come from instead, and what is lost."""

    reason: str
    sources: tuple[str, ...]  # by fragment: journal | checkpoint | learner | initial
    momentum_lost: tuple[int, ...]  # fragments whose outer state begins anew
    commits_lost: tuple[int, ...]  # fragments of which a version was announced that nobody has;
    versions_left: tuple[int, ...]  # and what is gone on from instead


@dataclass(frozen=True)
class Finished:
    """The budget is reached; nothing merges after this."""

    syncer_step: int
    tokens_committed: int
    reason: str


Record = Committed | SpanGranted | SpanReturned | Finished  # what the journal keeps, so that another epoch can go on

SyncerFact = (
    SyncerStarted
    | LearnerAttached
    | LearnerFenced
    | DonorNamed
    | Quarantined
    | DrainStarted
    | LeaseExpired
    | LeaseRenewed
    | SpanGranted
    | SpanReturned
    | StepOpened
    | StepReopened
    | StepPassed
    | Refused
    | ReadFailed
    | Committed
    | SnapshotTaken
    | StateRebuilt
    | Finished
)
