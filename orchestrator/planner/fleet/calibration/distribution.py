"""A measured duration: not one number but all that was measured, so that a simulation can draw from it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from orchestrator.accounting.sketch import Sketch

KEPT_MAX = 1000  # of longer measurements, evenly spaced ones in ascending order


@dataclass(frozen=True)
class EmpiricalDistribution:
    """`seconds` ascend; `count` were measured, and more than KEPT_MAX are thinned out."""

    count: int
    seconds: tuple[float, ...]

    @staticmethod
    def of(measured: Iterable[float]) -> EmpiricalDistribution:
        ascending = sorted(measured)
        assert all(math.isfinite(value) for value in ascending)
        count = len(ascending)
        if count > KEPT_MAX:
            ascending = [ascending[round(i * (count - 1) / (KEPT_MAX - 1))] for i in range(KEPT_MAX)]
        return EmpiricalDistribution(count, tuple(round(value, 6) for value in ascending))

    @staticmethod
    def of_sketch(sketch: Sketch) -> EmpiricalDistribution:
        """Evenly spaced ones of a sketch: to half a bin, and exact while it has kept all numbers."""
        if sketch.count == len(sketch.values):
            return EmpiricalDistribution.of(sketch.values.tolist())
        kept = [sketch.middle(i / (KEPT_MAX - 1)) for i in range(KEPT_MAX)]
        return EmpiricalDistribution(sketch.count, tuple(round(value, 6) for value in kept))

    def __bool__(self) -> bool:
        return bool(self.seconds)

    def at(self, share: float) -> float:
        """The quantile of a share in [0, 1], between neighbours in proportion; a uniform share draws a duration."""
        place = share * (len(self.seconds) - 1)
        below = min(int(place), len(self.seconds) - 1)
        above = min(below + 1, len(self.seconds) - 1)
        return self.seconds[below] + (place - below) * (self.seconds[above] - self.seconds[below])

    @property
    def median(self) -> float | None:
        return self.at(0.5) if self else None

    @property
    def p90(self) -> float | None:
        return self.at(0.9) if self else None

    def below(self, share: float) -> EmpiricalDistribution:
        """The shortest of them, by their share."""
        kept = self.seconds[: max(1, round(share * len(self.seconds)))]
        return EmpiricalDistribution(len(kept), kept)

    def less(self, seconds: float) -> EmpiricalDistribution:
        """What is left of each, and at least 0."""
        return EmpiricalDistribution(self.count, tuple(max(0.0, value - seconds) for value in self.seconds))

    def times(self, factor: float) -> EmpiricalDistribution:
        """As if everything had taken so many times as long."""
        return EmpiricalDistribution(self.count, tuple(value * factor for value in self.seconds))

    def summary(self) -> dict[str, Any]:
        return {"n": self.count, "median": self.median, "p90": self.p90}
