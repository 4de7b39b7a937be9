"""The learner's facts. They travel with its reports until the syncer has acknowledged them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class PhaseEntered:
    """The learner entered a phase: starting, importing, compiling, joining, stepping, draining or stopped."""

    phase: str


@dataclass(frozen=True)
class DeviceTaken:
    """Device, host and settings of this incarnation: with parameters, samples and code they decide a step's bits."""

    platform: str  # cpu | gpu | tpu
    device: str  # its kind, by JAX's name
    devices: int  # local devices that a step is spread over
    cores: int  # host cores that its process may run on
    processor: str  # the host processor's name
    instructions: str  # its vector instruction sets, which change what XLA compiles
    settings: dict[str, str]  # environment variables that can change numbers: XLA_FLAGS and others
    versions: dict[str, str]  # python, jax, jaxlib, numpy
    warnings: dict[str, str] = field(default_factory=dict)  # by check of the device: what was found, and the fix


@dataclass(frozen=True)
class Spoiled:
    """A fault made this fragment NaN before this step."""

    step: int
    fragment: int


@dataclass(frozen=True)
class StepFinished:
    """One finished inner step, identified by (learner, incarnation, step)."""

    step: int  # from 1 in each incarnation (in lock-step overlap: the syncer's clock)
    tokens: int
    span: int
    position: int  # first sample of the step's batch, in the one deterministic order
    loss: float  # of the training batch, in the task's unit
    seconds: float  # from the previous boundary to this one, without waited_s
    waited_s: float  # waiting time before the step could begin
    waited_for: str  # "" | span | adoption | snapshot | data
    progress: float | None = None  # share of the budget that set the step's learning rate, exact
    aux: dict[str, float] | None = field(default=None, repr=False)  # the task's auxiliary values, if it has any


@dataclass(frozen=True)
class Adopted:
    """A fragment's new version took effect at the boundary after this step."""

    fragment: int
    version: int
    after_step: int
    mode: str  # bootstrap | overwrite | rebase
    # With rebase or error feedback, the version contains the read after this step; None: none since the last version.
    read_at: int | None = None
    bytes: int = field(default=0, repr=False)  # of the fragment's versions that came since the last one was adopted


@dataclass(frozen=True)
class AdoptionRefused:
    """A version did not take effect."""

    fragment: int
    version: int
    reason: str  # older | bad_digest | fetch_failed


@dataclass(frozen=True)
class StateReceived:
    """A joiner's starting state: a peer's parameters and inner state, or the syncer's fragments and fresh moments."""

    source: str  # peer | syncer
    donor: str  # "" when from the syncer
    donor_incarnation: int
    donor_step: int  # the donor's last completed step; 0 from the syncer
    digest: str  # XXH3 digest of the donor's parameters and inner state; "" from the syncer
    bytes: int  # size of a peer's state; 0 from the syncer
    seconds: float  # since the Welcome
    versions: tuple[int, ...] = ()  # of every fragment, as the donor held them; empty from the syncer


@dataclass(frozen=True)
class StateSaved:
    """The learner's part of a snapshot: its state after this step, before anything from after the cut took effect."""

    snapshot: int
    step: int
    versions: tuple[int, ...]  # of every fragment


@dataclass(frozen=True)
class Resumed:
    """Another process continues this incarnation from the state that it saved last."""

    snapshot: int
    step: int


@dataclass(frozen=True)
class DonorFailed:
    """A donor did not give its state."""

    donor: str
    donor_incarnation: int
    reason: str  # timeout | declined | bad_digest | wrong_shape | non_finite | too_old | Ray's error


@dataclass(frozen=True)
class Donated:
    """This learner sent its state, as of one completed step, to a joiner."""

    joiner: str
    joiner_incarnation: int
    step: int
    digest: str
    bytes: int
    versions: tuple[int, ...] = ()  # of every fragment at that time


@dataclass(frozen=True)
class LoopFailed:
    """The training loop ended with an exception; its process is alive."""

    step: int
    traceback: str = field(repr=False)


LearnerFact = (
    PhaseEntered | DeviceTaken | Spoiled | StepFinished | Adopted | AdoptionRefused | StateReceived | DonorFailed
    | Donated | StateSaved | Resumed | LoopFailed
)  # fmt: skip
