"""The rhythm of commits, while the run goes on: the median interval, and the outer downtime beyond it."""

from __future__ import annotations

import math
from bisect import bisect_right, insort

GAPS_ALLOWED = 2  # medians that a gap may last before it counts as downtime, as in orchestrator/accounting/goodput.py


class Rhythm:
    """Intervals between commits, in seconds, sorted; 32 bytes for each commit."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._gaps: list[float] = []

    def beat(self, at: float) -> None:
        if self._last is not None:
            insort(self._gaps, at - self._last)
        self._last = at

    @property
    def last(self) -> float | None:
        return self._last

    @property
    def interval_s(self) -> float | None:
        """The median; None before the second commit."""
        half = len(self._gaps) // 2
        return (self._gaps[half] + self._gaps[~half]) / 2 if self._gaps else None

    @property
    def downtime_s(self) -> float | None:
        """As goodput's outer_downtime: the sum of what exceeds two median intervals."""
        if self.interval_s is None:
            return None
        allowed = GAPS_ALLOWED * self.interval_s
        return math.fsum(gap - allowed for gap in self._gaps[bisect_right(self._gaps, allowed) :])
