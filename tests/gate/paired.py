"""The cost of one computation in units of another, measured so that a busy machine gives the same answer."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass

ROUNDS = 5


@dataclass(frozen=True)
class Cost:
    """CPU seconds of the work and of its reference, the lowest of all rounds, each per unit of its own."""

    work_s: float
    reference_s: float

    @property
    def ratio(self) -> float:
        return self.work_s / self.reference_s


def measure(work: Callable[[], float], reference: Callable[[], float]) -> Cost:
    """Run both in turn, and compare the best of each. Each returns how many units it has done.

    CPU time of this process leaves out the time in which others have the cores; the minimum leaves out what they
    cost in caches; taking turns leaves out a clock that changes.
    """
    best = {work: float("inf"), reference: float("inf")}
    for function in (work, reference):
        function()  # compile, import, fill caches
    for _ in range(ROUNDS):
        for function in (work, reference):
            gc.collect()
            began = time.process_time()
            units = function()
            best[function] = min(best[function], (time.process_time() - began) / units)
    return Cost(best[work], best[reference])


def assert_at_most(name: str, cost: Cost, normal: float) -> None:
    """Fail where the work costs more than twice its normal share: a threefold regression does, a slow machine not."""
    told = f"{name}: {cost.ratio:.3g} times its reference, normally {normal:g}"
    print(told)
    assert cost.ratio <= 2.0 * normal, told
