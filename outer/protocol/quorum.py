"""When to stop collecting and merge: a pure verdict with its reason (paper section 3, quorum and grace)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from outer.config import SyncConfig


class Decision(Enum):
    WAIT = "wait"
    OPEN_GRACE = "open_grace"
    MERGE = "merge"


class Verdict(NamedTuple):
    decision: Decision
    reason: str


def adaptive_grace(gamma: float, overlap_steps: int, step_s: float, quorum_s: float, sync_s: float) -> float:
    """Seconds that more than K learners may be waited for.

    gamma * slack, held within [0, xi_step], with slack = tau * xi_step - (xi_quorum + xi_sync): what is left of
    the overlap once the quorum and the merge have taken their usual time.
    """
    slack = overlap_steps * step_s - (quorum_s + sync_s)
    return min(max(gamma * slack, 0.0), step_s)


def decide(
    now: float, *, quorum: int, live: int, reported: int, quorum_at: float | None, grace_s: float | None
) -> Verdict:
    """Judge one open syncer step.

    `reported` counts the live learners that finished a step after the syncer step opened; `quorum_at` is when
    the K-th of them did, None while grace has not been opened; `grace_s` None is without end.
    """
    if live < quorum:
        return Verdict(Decision.WAIT, f"{live} learners alive, the quorum is {quorum}")
    if reported < quorum:
        return Verdict(Decision.WAIT, f"{reported} of {quorum} reported")
    if reported >= live:
        return Verdict(Decision.MERGE, f"all {live} live learners reported")
    if quorum_at is None:
        if grace_s == 0.0:
            return Verdict(Decision.MERGE, f"{reported} of {live} reported, no slack for grace")
        return Verdict(Decision.OPEN_GRACE, f"{reported} of {live} reported")
    if grace_s is None:
        return Verdict(Decision.WAIT, f"{reported} of {live} reported, grace is without end")
    if now >= quorum_at + grace_s:
        return Verdict(Decision.MERGE, f"grace is over, {reported} of {live} reported")
    return Verdict(Decision.WAIT, f"{reported} of {live} reported, in grace")


# ------------------------------------------------------------------ step times and delays


@dataclass
class Average:
    """Exponential moving average; the first sample is taken whole."""

    smoothing: float
    value: float = 0.0
    samples: int = 0

    def add(self, sample: float) -> None:
        self.value = sample if not self.samples else self.value + self.smoothing * (sample - self.value)
        self.samples += 1


def step_time(averages: Iterable[float]) -> float:
    """xi_step: the median of the live learners' step-time averages in seconds; 0 while none is known."""
    known = [value for value in averages if value > 0]
    return median(known) if known else 0.0


class StepTiming:
    """What a syncer step usually takes of the overlap, in seconds."""

    def __init__(self, config: SyncConfig) -> None:
        self._config = config
        self.quorum_s = Average(config.smoothing)  # opening to the K-th report
        self.sync_s = Average(config.smoothing)  # decision to durable

    def grace_s(self, step_s: float) -> float | None:
        """What a quorum reached now would be granted; None is without end."""
        if self._config.grace == "infinite":
            return None
        if self._config.grace != "adaptive":
            return float(self._config.grace)
        return adaptive_grace(
            self._config.gamma, self._config.overlap_steps, step_s, self.quorum_s.value, self.sync_s.value
        )
