"""One learner's compute: how long its steps last while its slices fail and return, and when it stands still.

`sample` takes it through one step. `leap` gives the same draws the same effect, many steps at a time: between two
disturbances nothing changes, so their times follow in closed form. A disturbance is a step in which chips fail, or by
whose end slices have returned. The learner's failures are one Poisson process: a unit exponential is the fuse, steps
burn it down in proportion to the chips that step, and only slices that are away are objects.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from typing import NamedTuple

from orchestrator.planner.fleet.description import StepSample
from orchestrator.planner.fleet.islands.failures import Draws, Failures


class Leap(NamedTuple):
    """Steps without a pause between them."""

    steps: int
    seconds: float  # from the begin of the first to the end of the last
    stall_s: float  # after the last
    worth: float  # full steps that they count as


class Island:
    """The chips of one learner. Elastic: it steps on without the slices that are away; else it waits for repair."""

    __slots__ = ("_away", "_fuse", "_hazard", "_life", "_place", "_repairs_s", "elastic", "failures", "slices")

    def __init__(self, failures: Failures, chips: float, draws: Draws, elastic: bool = True) -> None:
        self.failures, self.elastic = failures, elastic
        self.slices = failures.slices(chips)
        self._hazard = chips / self.slices * failures.step_s / failures.mtbi_s  # failing chips per slice and step
        self._life, self._place, self._repairs_s = draws.life, draws.place, draws.repairs_s(failures)
        self._fuse = next(self._life)
        self._away: list[float] = []  # a heap of the times at which slices return

    def sample(self, now: float) -> StepSample:
        """The step that begins at `now`, which must not lie before the end of the last one's stall."""
        there, seconds = self.slices - len(self._away), self.failures.step_s
        end = now + seconds
        self._fuse -= there * self._hazard
        lost = self._strike(there) if self._fuse <= 0.0 else 0
        returned = bool(self._away) and self._away[0] <= end
        stall_s = self._disturb(end, lost) if lost or returned else 0.0
        return StepSample(seconds, stall_s, (there - lost) / self.slices if self.elastic else 1.0)

    def leap(self, now: float, most: int) -> Leap:
        """All steps from `now` up to the next disturbed one, and that; `most` of them, at least 1, if it is not met."""
        there, seconds = self.slices - len(self._away), self.failures.step_s
        quiet = min(most, int(self._fuse / (there * self._hazard)))
        if self._away:
            quiet = min(quiet, max(0, math.ceil((self._away[0] - now) / seconds) - 1))
        if not quiet:
            return Leap(1, *self.sample(now))
        self._fuse -= quiet * there * self._hazard
        worth = quiet * there / self.slices
        if quiet == most:
            return Leap(quiet, quiet * seconds, 0.0, worth)
        last = self.sample(now + quiet * seconds)
        return Leap(quiet + 1, (quiet + 1) * seconds, last.stall_s, worth + last.share)

    def _strike(self, there: int) -> int:
        """How many slices are lost in a step that burnt the fuse down. Chips of one slice may fail in the same step."""
        lost = 0
        while self._fuse <= 0.0 and lost < there:
            self._fuse += next(self._life)
            if lost == 0 or next(self._place) * there >= lost:
                lost += 1
        if self._fuse <= 0.0:  # nothing is left that could fail in this step; the process has no memory
            self._fuse = next(self._life)
        return lost

    def _disturb(self, end: float, lost: int) -> float:
        """Take slices out and in, in one rebuild, and say how long the learner stands still for it."""
        if not self.elastic:
            return self.failures.outage_s
        stall_s = self.failures.down_s if lost else 0.0
        if self._away and self._away[0] <= end:
            stall_s = max(stall_s, self.failures.up_s)
        self._take_in(end + stall_s)
        for _ in range(lost):
            heappush(self._away, end + next(self._repairs_s))
        if len(self._away) == self.slices:
            stall_s = max(stall_s, self._away[0] - end) + self.failures.up_s
            self._take_in(end + stall_s)
        return stall_s

    def _take_in(self, until: float) -> None:
        while self._away and self._away[0] <= until:
            heappop(self._away)
