"""Every message between a learner and the syncer, and between two learners.

Messages are frozen plain values; array payloads are opaque handles here. Each carries the sender's epoch or
incarnation. Any message may arrive late, twice, or never. `snapshot` is the newest snapshot for which the sender has
saved its state; a receiver that has not saved its own state for it does so before it acts on the message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

# The phases of a learner, in order. A lease belongs to the phase in which it was reported.
STARTING, IMPORTING, COMPILING, JOINING, STEPPING, DRAINING, STOPPED = (
    "starting",
    "importing",
    "compiling",
    "joining",
    "stepping",
    "draining",
    "stopped",
)

NON_FINITE_MAX = 3  # a learner with so many contributions, or losses, in a row that are not finite has to restart


# ------------------------------------------------------------------ learner to syncer


@dataclass(frozen=True)
class Attach:
    """The first message of a compiled learner. `manifest` is what both sides must agree on, see manifest.py."""

    learner: str
    incarnation: int
    manifest: dict[str, Any]


class FragmentCounters(NamedTuple):
    """A learner's progress on one fragment since it adopted its base (the paper's c_steps and c_tokens)."""

    base_version: int | None  # None until adopted from the syncer
    base_step: int  # the base was adopted after this step
    steps: int
    tokens: int


@dataclass(frozen=True)
class Report:
    """Progress, counters and a lease renewal. A learner sends it after each step, on entering a phase and in waits."""

    learner: str
    incarnation: int
    epoch: int | None  # the syncer epoch attached to; None before attaching
    sequence: int  # rises by one per report of an incarnation
    phase: str
    lease_s: float  # from arrival, seconds
    step: int
    step_s: float  # moving average of step times; 0 until known
    tokens: int  # processed by this incarnation
    syncer_step: int  # the newest syncer step that this learner knows: its vector-clock entry for the syncer
    counters: tuple[FragmentCounters, ...] = ()
    newest_span: int = -1
    wants_span: bool = False
    loss: float | None = None  # of the last step
    non_finite: int = 0  # losses in a row, up to the last step's, that were not finite
    waits: bool = False  # its loop waits for the data of the next step
    aux: dict[str, float] | None = field(default=None, repr=False)  # the task's auxiliary values in the last step
    snapshot: int = 0  # the newest that this learner has saved its state for


@dataclass(frozen=True)
class Contribution:
    """The answer to a ReadRequest: one fragment as of one completed step, with that step's exact counters."""

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
    digest: str  # XXH3 digest of the payload's bytes
    codec: str = field(default="", repr=False)  # the request's
    defect: str = ""  # found by the receiving shell: bad_digest | non_finite | wrong_shape
    snapshot: int = 0  # the newest that the sender had saved its state for
    held_s: float = field(default=0.0, repr=False)  # from the request's arrival to the answer's leaving, by the sender
    took_s: float = field(
        default=0.0, repr=False
    )  # from asking to arrival, without held_s, as the receiving shell measured it; 0: it did not


@dataclass(frozen=True)
class SeekDonor:
    """A joiner asks which peer to copy its state from. `failed` names donors that it must not be given again."""

    learner: str
    incarnation: int
    epoch: int
    failed: tuple[str, ...] = ()


# ------------------------------------------------------------------ learner to learner


@dataclass(frozen=True)
class StateRequest:
    """A joiner asks a donor for its state, as of a step boundary at which the donor knows this syncer step."""

    epoch: int
    joiner: str
    joiner_incarnation: int
    donor: str
    donor_incarnation: int
    syncer_step: int
    deadline_s: float  # from sending


@dataclass(frozen=True)
class State:
    """The answer to a StateRequest: parameters and inner optimizer state as of one completed step."""

    donor: str
    donor_incarnation: int
    step: int  # of the donor
    syncer_step: int  # the newest that the donor knew
    payload: Any  # handle; on the wire a list of arrays
    digest: str  # XXH3 digest of the payload
    size: int  # bytes
    versions: tuple[int, ...] = ()  # of every fragment, as the donor held them


# ------------------------------------------------------------------ syncer to learner


@dataclass(frozen=True)
class Welcome:
    """The answer to Attach."""

    epoch: int
    syncer_step: int
    progress: float  # of the budget, 0 to 1
    versions: tuple[int, ...]  # the current version of each fragment
    snapshot: int = 0


@dataclass(frozen=True)
class Donor:
    """The answer to SeekDonor. `donor` is empty when no learner can give its state."""

    epoch: int
    incarnation: int  # of the joiner
    donor: str
    donor_incarnation: int
    syncer_step: int  # the donor must know this syncer step


@dataclass(frozen=True)
class ReadRequest:
    """Asks a learner for one fragment, as of any completed step."""

    epoch: int
    incarnation: int  # of the learner
    syncer_step: int
    fragment: int
    attempt: int  # from 1; rises each time a syncer step has to ask again. 0: asked ahead of its step
    progress: float
    deadline_s: float  # from sending
    codec: str = field(default="", repr=False)  # the payload's number format; "": the run's
    snapshot: int = 0


@dataclass(frozen=True)
class Notice:
    """A fragment has a new version. The learner fetches its payload from where the shell says that it is."""

    epoch: int
    syncer_step: int
    fragment: int
    version: int
    digest: str
    progress: float
    merged_step: int | None = None  # the version contains the receiver's own steps up to this one
    snapshot: int = 0
    source: Any = field(default=None, repr=False)  # who gives it, opaque; None: the syncer


@dataclass(frozen=True)
class Grant:
    """Lends samples [start, stop) of the deterministic order to a learner."""

    epoch: int
    incarnation: int
    span: int
    start: int
    stop: int
    snapshot: int = 0


@dataclass(frozen=True)
class Drain:
    """Stop stepping, but stay until the finished steps are merged or the deadline has passed."""

    epoch: int
    incarnation: int
    reason: str
    deadline_s: float  # from arrival


@dataclass(frozen=True)
class Stop:
    """End the training loop."""

    epoch: int
    reason: str
    suspend: bool = False  # the run is suspended: save all state for the snapshot, and log nothing after it
    snapshot: int = 0


# ------------------------------------------------------------------ what a wrong peer may say


def _count(value: Any) -> bool:
    return type(value) is int and abs(value) < 2**53


def _seconds(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < 1e10  # not for NaN


def _text(value: Any) -> bool:
    return isinstance(value, str) and len(value) < 1000


def _counters(value: Any) -> bool:
    if type(value) is not FragmentCounters or len(value) != 4:
        return False
    return (value[0] is None or _count(value[0])) and _count(value[1]) and _count(value[2]) and _count(value[3])


def _values(value: Any) -> bool:
    return isinstance(value, dict) and all(_text(name) and isinstance(each, float) for name, each in value.items())


_ALLOWED: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("incarnation", "sequence", "step", "tokens", "syncer_step", "fragment", "attempt"), _count),
    **dict.fromkeys(("processed", "newest_span", "snapshot", "non_finite"), _count),
    **dict.fromkeys(("lease_s", "step_s", "held_s", "took_s"), _seconds),
    **dict.fromkeys(("learner", "phase", "digest", "codec", "defect"), _text),
    "epoch": lambda value: value is None or _count(value),
    "waits": lambda value: isinstance(value, bool),
    "loss": lambda value: value is None or isinstance(value, float),
    "aux": lambda value: value is None or _values(value),
    "failed": lambda value: type(value) is tuple and all(map(_text, value)),
    "manifest": lambda value: isinstance(value, dict),
}
_FIELDS = {
    kind: tuple((name, _ALLOWED[name]) for name in kind.__dataclass_fields__ if name in _ALLOWED)
    for kind in (Attach, Report, Contribution, SeekDonor)
}


def malformed(message: Attach | Report | Contribution | SeekDonor) -> str:
    """Name the first field whose value a peer of this version cannot have sent; empty for none.

    Whether the numbers are right is for the receiver to judge: here they only are numbers, of a size to calculate with.
    """
    for name, allowed in _FIELDS[type(message)]:
        if not allowed(getattr(message, name)):
            return name
    counters = getattr(message, "counters", ())
    told = (counters,) if type(message) is Contribution else counters
    return "" if type(told) is tuple and all(map(_counters, told)) else "counters"
