"""The syncer's facts: what it writes to the event log. orchestrator/eventlog/events.py adds the envelope."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class SyncerStarted:
    """The first fact of a syncer epoch: the settings that later facts depend on."""

    epoch: int
    fragments: tuple[tuple[str, ...], ...]  # tensor names of each fragment, in payload order
    sizes: tuple[int, ...]  # elements of each fragment
    learners: tuple[str, ...]  # the configured learners, M = len
    quorum: int  # K
    round_steps: int  # H
    overlap_steps: int  # tau
    versions: tuple[int, ...]  # of each fragment at the start of the epoch
    tokens_committed: int  # at the start of the epoch
    read_timeout_s: float  # the deadline of an answer to a read
    lease_s: float  # the shortest lease of a stepping learner
    ahead_s: float  # seconds of stepping for which learners hold samples ahead
    durability: str  # journal | checkpoint
    base_window: int  # rounds that a contribution's base may be behind
    weights: str  # as in the recipe: sync.weights
    codec: str = field(repr=False)  # sync.codec


@dataclass(frozen=True)
class FactsLost:
    """Facts of one writer that will never be in the log. What they told, tokens above all, is unknown."""

    writer: str
    incarnation: int
    first: int  # sequence numbers, both included
    last: int
    reason: str


@dataclass(frozen=True)
class LearnerAttached:
    """The syncer accepted a learner's Attach."""

    learner: str
    incarnation: int
    syncer_step: int


@dataclass(frozen=True)
class LearnerFenced:
    """From here on the syncer accepts nothing from this incarnation."""

    learner: str
    incarnation: int
    reason: str  # killed | superseded | lease_expired | stopped | drained | failed


@dataclass(frozen=True)
class DonorNamed:
    """The syncer told a joiner which peer to copy its state from."""

    learner: str
    incarnation: int
    donor: str
    donor_incarnation: int
    syncer_step: int  # the donor must know this syncer step


@dataclass(frozen=True)
class Quarantined:
    """So many contributions or losses in a row were not finite: this incarnation gives no more, and has to restart."""

    learner: str
    incarnation: int
    contributions: int


@dataclass(frozen=True)
class DrainStarted:
    """The syncer asked a learner to stop stepping and to leave once its finished steps are merged."""

    learner: str
    incarnation: int
    reason: str


@dataclass(frozen=True)
class LeaseExpired:
    """A learner did not report in time. It no longer counts as live."""

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
    """Samples [start, stop) of the deterministic order are lent to one incarnation."""

    learner: str
    incarnation: int
    span: int
    start: int
    stop: int
    batch_size: int = 0  # samples per step


@dataclass(frozen=True)
class SpanReturned:
    """Samples [start, stop) went back to the pool; they will be lent, and counted, again."""

    learner: str
    incarnation: int
    span: int
    start: int
    stop: int
    ended_on: tuple[int, int] | None = None  # samples [start, stop): the incarnation ended on these


@dataclass(frozen=True)
class SetAside:
    """Samples [start, stop) ended two incarnations, this one last: they are not lent again."""

    learner: str
    incarnation: int
    span: int
    start: int
    stop: int
    step: int = 0  # its step on them, where that finished, with a loss that was not finite; 0: none did


@dataclass(frozen=True)
class StepOpened:
    """A syncer step opened."""

    syncer_step: int
    fragment: int | None  # due at this step, or none


@dataclass(frozen=True)
class StepReopened:
    """Fewer than K could be asked or were valid, or the merge was not finite: the step waits for a new quorum."""

    syncer_step: int
    fragment: int
    valid: int
    reason: str


@dataclass(frozen=True)
class Refused:
    """The syncer refused a learner's message: it changed nothing."""

    learner: str
    incarnation: int
    message: str  # report | contribution | attach
    reason: str  # stale_epoch | stale_incarnation | stale_base | doubled | late | bad_digest | non_finite | ...
    syncer_step: int | None = None
    fragment: int | None = None
    detail: str = ""


@dataclass(frozen=True)
class ReadFailed:
    """A learner did not answer a read in time, or could not answer it."""

    learner: str
    incarnation: int
    syncer_step: int
    fragment: int
    reason: str


@dataclass(frozen=True)
class Participant:
    """One merged contribution. It covers the learner's steps (base_step, step]."""

    learner: str
    incarnation: int
    step: int  # last completed step contained in the payload
    base_step: int  # the base was adopted after this step
    steps: int  # c_steps = step - base_step
    tokens: int  # c_tokens of those steps
    weight: float  # the exact number used; all weights of a commit sum to 1
    digest: str  # XXH3 digest of the payload
    processed: int = 0  # tokens processed by this incarnation by the end of `step`
    age: int = 0  # rounds by which its base was behind the version merged onto, rounded up
    codec: str = field(default="", repr=False)  # the payload's number format; "": the run's


@dataclass(frozen=True)
class Committed:
    """A commit: one durable outer step of one fragment. The new version is the syncer step."""

    syncer_step: int
    fragment: int
    epoch: int
    base_version: int
    participants: tuple[Participant, ...]
    live: int  # learners with a valid lease when it merged
    digest: str  # XXH3 digest of the fragment's new parameters
    norm: float  # L2 norm of the merged outer gradient
    tokens_committed: int  # of the whole run, including this commit
    quorum_s: float  # opening to the K-th report
    grace_s: float  # seconds waited after the quorum
    sync_s: float  # decision to durable
    reason: str  # of the verdict, in words


@dataclass(frozen=True)
class LinkAdapted:
    """A learner's contributions travel otherwise from here on: its link has become slower, or faster."""

    learner: str
    incarnation: int
    codec_before: str
    codec: str
    latency_s: float  # as estimated
    bytes_s: float | None  # as estimated, a second; None: bytes take no time
    reason: str


@dataclass(frozen=True)
class StepPassed:
    """A syncer step at which no fragment was due has reached its quorum."""

    syncer_step: int


@dataclass(frozen=True)
class SnapshotTaken:
    """The syncer's part of a consistent cut. A run resumed from it asks again for what was in flight."""

    snapshot: int
    final: bool  # the run is suspended with it
    versions: tuple[int, ...]  # of each fragment
    tokens_committed: int
    in_flight: tuple[str, ...]  # learners that were asked for a fragment that had not merged yet


@dataclass(frozen=True)
class StateRebuilt:
    """The journal was missing or damaged: where this epoch's values come from instead, and what is lost."""

    reason: str
    sources: tuple[str, ...]  # by fragment: journal | checkpoint | learner | initial
    momentum_lost: tuple[int, ...]  # fragments whose outer state starts fresh
    commits_lost: tuple[int, ...]  # fragments whose newest announced version no source has
    versions_left: tuple[int, ...]  # the versions used instead, in the order of commits_lost


@dataclass(frozen=True)
class StoreWaited:
    """The store was away, full or slow, and nothing could be made durable for so long. The orchestrator tells of an
    epoch that could not begin for it.
    """

    seconds: float
    reason: str


@dataclass(frozen=True)
class Finished:
    """The run is over; nothing merges after this."""

    syncer_step: int
    tokens_committed: int
    reason: str


Record = Committed | SpanGranted | SpanReturned | SetAside | Finished  # what the journal keeps for the next epoch

SyncerFact = (
    SyncerStarted | FactsLost | LearnerAttached | LearnerFenced | DonorNamed | Quarantined | DrainStarted
    | LeaseExpired | LeaseRenewed | SpanGranted | SpanReturned | SetAside | StepOpened | StepReopened | StepPassed
    | Refused | ReadFailed | Committed | LinkAdapted | SnapshotTaken | StateRebuilt | StoreWaited | Finished
)  # fmt: skip
