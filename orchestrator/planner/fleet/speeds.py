"""How fast learners step: constant differences, noise on every step, and slow spells that come and go."""

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
    """Another rhythm, made slower. `noise`: standard deviation of each step's time, as a share of it."""

    def __init__(
        self,
        rhythm: StepModel,
        chance: Random,
        slowdown: float = 1.0,
        noise: float = 0.0,
        spells: SlowPeriods = SlowPeriods(),
    ) -> None:
        self._rhythm, self._chance = rhythm, chance
        self._slowdown, self._noise, self._spells = slowdown, noise, spells
        self._from, self._until = self._next(0.0)

    def beat(self, now: float) -> StepSample:
        while now >= self._until:
            self._from, self._until = self._next(self._until)
        beat = self._rhythm.beat(now)
        factor = self._slowdown * (self._spells.slowdown if now >= self._from else 1.0)
        if self._noise:
            factor *= max(0.1, self._chance.gauss(1.0, self._noise))
        return beat._replace(seconds=beat.seconds * factor)

    def _next(self, now: float) -> tuple[float, float]:
        if math.isinf(self._spells.gap_s):
            return math.inf, math.inf
        begins = now + self._chance.expovariate(1.0 / self._spells.gap_s)
        return begins, begins + self._chance.expovariate(1.0 / self._spells.length_s)
