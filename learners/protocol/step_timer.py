"""How long a learner's steps take, and how much of that is waiting. Times are seconds of the shell's clock."""

from __future__ import annotations

from typing import NamedTuple

from outer.protocol.quorum import Average


class StepTime(NamedTuple):
    """From one boundary to the next, to the microsecond."""

    seconds: float  # less what was waited
    waited_s: float
    waited_for: str  # "" when nothing was


class StepTimer:
    """Runs from `start`; `hold` and `release` enclose what is waited, before a step can begin."""

    def __init__(self, smoothing: float) -> None:
        self.step_s = Average(smoothing)
        self._boundary_at: float | None = None
        self._waited_s = 0.0
        self._waited_for = ""
        self._held_at: float | None = None

    def start(self, now: float) -> None:
        """The learner can step from here on: what it waited before does not count."""
        self._boundary_at = now

    def record_step(self, now: float) -> StepTime:
        """A step is done."""
        assert self._boundary_at is not None
        seconds = now - self._boundary_at - self._waited_s
        self.step_s.add(seconds)
        step_time = StepTime(round(seconds, 6), round(self._waited_s, 6), self._waited_for)
        self._boundary_at, self._waited_s, self._waited_for = now, 0.0, ""
        return step_time

    def hold(self, now: float, waited_for: str) -> None:
        """The loop waits; `waited_for` is empty where that is no step's time."""
        if self._held_at is None:
            self._held_at = now
        self._waited_for = waited_for or self._waited_for

    def release(self, now: float) -> None:
        """A step begins."""
        assert self._boundary_at is not None
        if self._held_at is not None:
            self._waited_s += now - max(self._held_at, self._boundary_at)
        self._held_at = None
