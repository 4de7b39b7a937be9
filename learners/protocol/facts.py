"""What a learner unit says happened. They ride on its reports until the syncer has acknowledged them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PhaseEntered:
    """starting -> importing -> compiling -> joining -> stepping -> (draining) -> stopped."""

    phase: str


@dataclass(frozen=True)
class DeviceTaken:
    """What this incarnation computes on: what decides the bits of a step beside parameters, samples and code."""

    platform: str  # cpu | gpu | tpu
    device: str  # its kind, as JAX calls it
    devices: int  # that a step is spread over
    cores: int  # of the host, that its process may run on
    processor: str  # the host's, by name
    instructions: str  # of the processor's vector instruction sets those that change how XLA compiles
    settings: dict[str, str]  # of the environment: XLA_FLAGS and those of JAX that change numbers
    versions: dict[str, str]  # python, jax, jaxlib, numpy


@dataclass(frozen=True)
class Spoiled:
    """A fault made this fragment NaN before this step."""

    step: int
    fragment: int


@dataclass(frozen=True)
class StepFinished:
    """One inner step: the unit of the books is (learner, incarnation, step)."""

    step: int  # from 1 in each incarnation (in lock-step overlap: the syncer's clock)
    tokens: int
    span: int
    position: int  # first sample of the step's batch, in the one deterministic order
    loss: float  # of the training batch, in the task's unit
    seconds: float  # from the previous boundary to this one, less waited_s
    waited_s: float  # of that time, waiting before the step could begin
    waited_for: str  # "" | span | adoption
    progress: float | None = None  # of the budget, as the step was given it: exact, for its learning rate follows it


@dataclass(frozen=True)
class Adopted:
    """A fragment's new version took effect at the boundary after this step."""

    fragment: int
    version: int
    after_step: int
    mode: str  # bootstrap | overwrite | rebase | mix
    read_at: int | None = None  # rebase: what was read after this step was subtracted; None: the base was


@dataclass(frozen=True)
class AdoptionRefused:
    fragment: int
    version: int
    reason: str  # older | bad_digest | fetch_failed


@dataclass(frozen=True)
class StateReceived:
    """What a joiner starts from: a peer's parameters and inner state, or the syncer's snapshot and fresh moments."""

    source: str  # peer | syncer
    donor: str  # "" when from the syncer
    donor_incarnation: int
    donor_step: int  # the donor's last completed step; 0 when from the syncer
    digest: str  # SHA-256 of parameters and inner state, the donor's own; "" when from the syncer
    bytes: int  # of a peer's state; 0 when from the syncer
    seconds: float  # since attaching
    versions: tuple[int, ...] = ()  # of every fragment, as the donor held them; none when from the syncer


@dataclass(frozen=True)
class StateSaved:
    """Its part of a snapshot: everything at the boundary after this step, before anything that came after the cut."""

    snapshot: int
    step: int
    versions: tuple[int, ...]  # of every fragment, as it held them


@dataclass(frozen=True)
class Resumed:
    """The same incarnation goes on, in another process, from what it saved last."""

    snapshot: int
    step: int


@dataclass(frozen=True)
class DonorFailed:
    """No state came from this donor."""

    donor: str
    donor_incarnation: int
    reason: str  # timeout | declined | bad_digest | wrong_shape | non_finite | too_old | Ray's error


@dataclass(frozen=True)
class Donated:
    """This learner's state, as of one completed step, went to a joiner."""

    joiner: str
    joiner_incarnation: int
    step: int
    digest: str
    bytes: int
    versions: tuple[int, ...] = ()  # of every fragment, as held then: one step may see several adoptions


@dataclass(frozen=True)
class LoopFailed:
    """The training loop ended by an exception in a living process."""

    step: int
    traceback: str


LearnerFact = (
    PhaseEntered
    | DeviceTaken
    | Spoiled
    | StepFinished
    | Adopted
    | AdoptionRefused
    | StateReceived
    | DonorFailed
    | Donated
    | StateSaved
    | Resumed
    | LoopFailed
)
