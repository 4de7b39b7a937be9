"""Describes a fleet to be simulated: its learners' speeds and regions, all other durations, and deaths.

Values and draws only; seconds throughout. The draws are seeded by the caller, so that a fleet has one outcome.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, Protocol

from outer.config import SyncConfig
from outer.protocol.fragments import Fragment
from outer.protocol.schedule import Budget

Draw = Callable[[], float]


class StepSample(NamedTuple):
    """One inner step of one learner on its hardware."""

    seconds: float
    stall_s: float = 0.0  # afterwards, before the next may begin
    share: float = 1.0  # of a full step that it is worth: the slices that are there


class StepModel(Protocol):
    """Step times of a learner's hardware."""

    def sample(self, now: float) -> StepSample:
        """The step that begins now."""


class Steady:
    """The same for every step. `noise`: standard deviation of each step's time, as a share of it."""

    def __init__(self, seconds: float, rng: Random | None = None, noise: float = 0.0) -> None:
        self._seconds, self._rng, self._noise = seconds, rng, noise

    def sample(self, now: float) -> StepSample:
        factor = max(0.1, self._rng.gauss(1.0, self._noise)) if self._rng is not None else 1.0
        return StepSample(self._seconds * factor)


@dataclass(frozen=True)
class FleetMember:
    """One learner unit."""

    name: str
    batch_size: int  # samples of a full step
    tokens: int  # of a full step
    step_model: StepModel
    pool: str = ""
    region: str = ""
    mtbf_s: float = math.inf  # mean time between deaths of the whole unit


def constant(seconds: float) -> Draw:
    return lambda: seconds


NOTHING = constant(0.0)


@dataclass(frozen=True)
class Timing:
    """Durations of everything beside steps and links."""

    import_s: Draw = NOTHING
    compile_s: Draw = NOTHING
    detect_s: Draw = NOTHING  # from a death to its being noticed
    replace_s: Draw = NOTHING  # from there until hardware is there again
    merge_s: Callable[[int, int], float] = lambda elements, learners: 0.0
    append_s: Callable[[int], float] = lambda elements: 0.0  # of a commit to the journal; elements: of its fragment
    backoff_s: float = 1.0
    hang_s: float = 20.0
    unreachable_s: float = 3600.0
    start_s: float = 120.0


class FleetLink(NamedTuple):
    """One direction between two regions."""

    bits: float = math.inf  # a second
    latency_s: float = 0.0


@dataclass(frozen=True)
class Fleet:
    """Everything that one simulation is made from."""

    sync: SyncConfig
    quorum: int
    fragments: tuple[Fragment, ...]
    members: tuple[FleetMember, ...]
    budget: Budget
    timing: Timing = Timing()
    links: Mapping[tuple[str, str], FleetLink] = field(default_factory=dict)  # from, to; the others take no time
    syncer_region: str = ""
    state_bytes: int = 0  # of a peer's state: parameters and inner optimizer
    span_steps: int = 16
    ahead_s: float = 3600.0
    death: Callable[[float], float] = lambda mean_s: math.inf  # seconds until a unit of this mean dies
    look_s: float = 1.0  # between two looks of the orchestrator
