"""The syncer's sense of time: step time of the fleet, and moving averages of its own delays."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median


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
