"""The syncer's sense of time: step time of the fleet, moving averages of its own delays, and the grace they leave."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from outer.protocol.quorum import adaptive_grace

if TYPE_CHECKING:
    from outer.config import SyncConfig


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
