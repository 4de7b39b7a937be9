"""Measures how long a learner's steps take and how long it waits before them, in seconds of the shell's clock."""

from __future__ import annotations

from typing import NamedTuple

from outer.protocol.quorum import Average

SNAPSHOT, DATA = "snapshot", "data"  # what a step waited for, like "span" and "adoption"


class StepTime(NamedTuple):
    """The time from the end of one step to the end of the next, rounded to microseconds."""

    seconds: float  # without the waiting time
    waited_s: float
    waited_for: str  # "" if it did not wait


class StepTimer:
    """Starts with `start`. `hold` and `release` enclose the waiting time before a step, while none is in flight."""

    def __init__(self, smoothing: float) -> None:
        self.step_s = Average(smoothing)
        self._done_at: float | None = None
        self._waited_s = 0.0
        self._waited_for = ""
        self._held_at: float | None = None

    def start(self, now: float) -> None:
        """The learner can step from now on; earlier waiting does not count."""
        self._done_at = now

    def record_step(self, now: float, paused_s: float = 0.0) -> StepTime:
        """A step is done: return its time and start the next. `paused_s`: for a snapshot, before the step."""
        assert self._done_at is not None
        if paused_s > self._waited_s:
            self._waited_for = SNAPSHOT
        self._waited_s += paused_s
        seconds = now - self._done_at - self._waited_s
        self.step_s.add(seconds)
        step_time = StepTime(round(seconds, 6), round(self._waited_s, 6), self._waited_for)
        self._done_at, self._waited_s, self._waited_for = now, 0.0, ""
        return step_time

    def hold(self, now: float, waited_for: str) -> None:
        """The loop starts to wait. `waited_for`: for what; empty when the wait belongs to no step."""
        if self._held_at is None:
            self._held_at = now
        self._waited_for = waited_for or self._waited_for

    def release(self, now: float) -> None:
        """The wait is over: a step begins."""
        assert self._done_at is not None
        if self._held_at is not None:
            self._waited_s += now - max(self._held_at, self._done_at)
        self._held_at = None
