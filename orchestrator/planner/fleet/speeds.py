"""How fast learners step: constant differences, noise on every step, and slow slow_periods that come and go."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

from orchestrator.planner.fleet.description import StepModel, StepSample


@dataclass(frozen=True)
class SlowPeriods:
    """Transient slowdowns. Gaps and lengths are exponential."""

    gap_s: float = math.inf  # mean, from the end of one to the next
    length_s: float = 0.0  # mean
    slowdown: float = 1.0  # of every step in one


class Varying:
    """Another step model, made slower. `noise`: standard deviation of each step's time, as a share of it."""

    def __init__(
        self,
        step_model: StepModel,
        rng: Random,
        slowdown: float = 1.0,
        noise: float = 0.0,
        slow_periods: SlowPeriods = SlowPeriods(),
    ) -> None:
        self._step_model, self._rng = step_model, rng
        self._slowdown, self._noise, self._slow_periods = slowdown, noise, slow_periods
        self._from, self._until = self._next(0.0)

    def sample(self, now: float) -> StepSample:
        while now >= self._until:
            self._from, self._until = self._next(self._until)
        sample = self._step_model.sample(now)
        factor = self._slowdown * (self._slow_periods.slowdown if now >= self._from else 1.0)
        if self._noise:
            factor *= max(0.1, self._rng.gauss(1.0, self._noise))
        return sample._replace(seconds=sample.seconds * factor)

    def _next(self, now: float) -> tuple[float, float]:
        if math.isinf(self._slow_periods.gap_s):
            return math.inf, math.inf
        begins = now + self._rng.expovariate(1.0 / self._slow_periods.gap_s)
        return begins, begins + self._rng.expovariate(1.0 / self._slow_periods.length_s)
