"""How often a data-parallel run saves checkpoints: often enough for the faults that will kill its ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.recipe.config import ChaosConfig

COST_S = 2.0  # of a checkpoint, assumed
SHARE = 4  # checkpoints in the mean time between two kills, at least


@dataclass(frozen=True)
class Interval:
    """Between two checkpoints: whichever is reached first."""

    seconds: float  # 0: none by time
    steps: int | None = None

    def __str__(self) -> str:
        parts = [f"{self.seconds:.3g} s"] if self.seconds else []
        return " or ".join([*parts, f"{self.steps} steps"] if self.steps else parts) or "none"

    def in_steps(self, step_s: float) -> int:
        """Steps to the next checkpoint, at least 1; a step takes `step_s`. There must be any."""
        by_time = [max(1, round(self.seconds / step_s))] if self.seconds else []
        return min(by_time + ([self.steps] if self.steps else []))


def interval(chaos: ChaosConfig, planned: Sequence[Any], every_s: float) -> Interval:
    """For a plan's faults, `planned` resolved; without a kill the recipe's `every_s` (seconds; 0: none).

    By time sqrt(2 x cost x MTBF), after Young and Daly, and at most MTBF / 4; by steps, where kills are planned at
    steps, a quarter of their mean gap.
    """
    kills = [fault for fault in planned if fault.kind == "kill"]
    per_s = chaos.kinds.count("kill") / len(chaos.kinds) / chaos.mtbf_s if chaos.mtbf_s is not None else 0.0
    if at := [fault.at_s for fault in kills if fault.at_s]:
        per_s += len(at) / max(at)
    at_steps = [fault.at_step for fault in kills if fault.at_step is not None]
    steps = max(1, max(at_steps) // (SHARE * len(at_steps))) if at_steps else None
    if per_s:
        mtbf_s = 1.0 / per_s
        return Interval(min(math.sqrt(2.0 * COST_S * mtbf_s), mtbf_s / SHARE), steps)
    return Interval(every_s, steps)
