"""How chips fail and come back: the failure model of a fleet, and its random draws.

The paper's (section 7): the mean time between interruptions of one chip, one year; failing chips in a step as
Poisson over the chips of that step; a failing chip takes its slice out; the slice returns after an
exponentiated-Weibull delay; an elastic learner stands still for a fixed time when it shrinks and when it grows; every
chip steps at the same speed. The paper's is also Table 1, to which the numbers below are fitted.

Ours, where the paper is silent: the numbers of all fields but `mtbi_s`; that failures do not strike during a stall;
that the survivors finish the step in which a chip fails; that a learner is rebuilt once after a step in which slices
were lost or by whose end some had returned, which takes the longer of the two times and takes in whatever slices
return meanwhile; that a learner without elasticity stands still once for a failing step, whatever the number of its
failing chips, and then steps on whole; that the step in which a chip fails counts nevertheless.

"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from pydantic import Field, PositiveInt

from outer.config import Section

YEAR_S = 365.25 * 86_400.0
BLOCK = 128  # draws at a time


class Failures(Section):
    """The failure model.

    The defaults are one set for all fleets: `step_s`, `down_s` = `up_s` and `outage_s` are the fit to all three sizes
    of Table 1 that we have (benchmarks/studies/fitting.py), to three digits; how each cell comes out, and what
    a fit to two sizes says of the third: docs/studies.md. Slices and repair are not fitted.
    """

    mtbi_s: float = Field(
        YEAR_S, gt=0.0, le=1e15, description="mean stepping time of one chip between two failures, seconds"
    )
    step_s: float = Field(7.4, gt=0.0, le=1e5, description="length of a step, seconds")
    slice_chips: PositiveInt = Field(256, description="chips that are lost and come back together")
    down_s: float = Field(14.8, ge=0.0, le=1e6, description="rebuild after a step in which slices were lost, seconds")
    up_s: float = Field(14.8, ge=0.0, le=1e6, description="rebuild that takes in slices that returned, seconds")
    outage_s: float = Field(86.5, ge=0.0, le=1e6, description="stall after a failing step without elasticity, seconds")
    repair_a: float = Field(2.0, ge=0.1, le=100.0, description="repair F(t) = (1 - exp(-(t / scale)^c))^a: a")
    repair_c: float = Field(0.8, ge=0.2, le=10.0, description="repair: c")
    repair_scale_s: float = Field(600.0, gt=0.0, le=1e7, description="repair: scale, seconds")

    def repair_s(self, quantile: float) -> float:
        """How long a slice is away, in seconds, at this quantile in [0, 1): the inverse of F."""
        return float(self.repair_scale_s * (-np.log1p(-(quantile ** (1.0 / self.repair_a)))) ** (1.0 / self.repair_c))

    def slices(self, chips: float) -> int:
        """Of so many chips; at least one. A remainder makes the slices a little larger or smaller."""
        return max(1, round(chips / self.slice_chips))


class Draws:
    """The randomness of one learner: the same for every way of stepping it, and for every failure model.

    Each kind of draw has a stream of its own, so that with other parameters the same chips are lucky.
    """

    def __init__(self, seed: int, replicate: int = 0, learner: int = 0) -> None:
        lives, repairs, places = np.random.SeedSequence((seed, replicate, learner)).spawn(3)
        self._repairs = np.random.Generator(np.random.PCG64(repairs))
        self.life = _stream(np.random.Generator(np.random.PCG64(lives)).standard_exponential)
        self.place = _stream(np.random.Generator(np.random.PCG64(places)).random)

    def repairs_s(self, failures: Failures) -> Iterator[float]:
        """Times that slices are away, in seconds."""
        scale_s, of_a, of_c = failures.repair_scale_s, 1.0 / failures.repair_a, 1.0 / failures.repair_c

        def draw(size: int) -> Any:
            return scale_s * (-np.log1p(-(self._repairs.random(size) ** of_a))) ** of_c

        return _stream(draw)


def _stream(draw: Callable[[int], Any]) -> Iterator[float]:
    while True:
        yield from draw(BLOCK).tolist()
