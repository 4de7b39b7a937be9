"""Starts that share a host: beyond a number at once, all of them slow down equally (processor sharing)."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Any

from orchestrator.simulation.timeline import Receiver, Timeline

EARLY = 1e-9  # seconds of work left that are none


class SharedHost:
    """`abreast`: so many go on at full speed; inf: they do not share anything."""

    def __init__(self, time: Timeline, abreast: float) -> None:
        self._time, self._abreast = time, abreast
        self._done = 0.0  # seconds of work done by a job that is there all the time
        self._seen_at = 0.0  # virtual seconds; when that was so
        # By `_done` at its end.
        self._jobs: list[tuple[float, int, Receiver | None, Callable[..., Any], tuple[Any, ...]]] = []
        self._turn = 0  # of the alarm that counts

    def work(self, seconds: float, process: Receiver | None, happen: Callable[..., Any], *args: Any) -> None:
        """Call back, addressed to this process, once so many seconds of work are done."""
        if math.isinf(self._abreast):
            self._time.reach(seconds, process, happen, *args)
            return
        self._pass()
        heapq.heappush(self._jobs, (self._done + seconds, self._time.number(), process, happen, args))
        self._set_alarm()

    def leave(self, process: Receiver) -> None:
        """A process has died: the others get its part."""
        if any(job[2] is process for job in self._jobs):
            self._pass()
            self._jobs = [job for job in self._jobs if job[2] is not process]
            heapq.heapify(self._jobs)
            self._set_alarm()

    @property
    def _pace(self) -> float:
        return min(1.0, self._abreast / len(self._jobs))

    def _pass(self) -> None:
        """Bring the work up to now."""
        if self._jobs:
            self._done += (self._time.now - self._seen_at) * self._pace
        self._seen_at = self._time.now

    def _set_alarm(self) -> None:
        self._turn += 1
        if self._jobs:
            self._time.after(max(0.0, self._jobs[0][0] - self._done) / self._pace, self._look, self._turn)

    def _look(self, turn: int) -> None:
        if turn == self._turn:
            self._pass()
            while self._jobs and self._jobs[0][0] <= self._done + EARLY:
                _, _, process, happen, args = heapq.heappop(self._jobs)
                self._time.reach(0.0, process, happen, *args)
            self._set_alarm()
