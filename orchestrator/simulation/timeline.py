"""Virtual time: a queue of callbacks, run in order of their times."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any


class Timeline:
    """Callbacks of the same instant run in the order in which they were scheduled.

    One that is addressed to a process waits while the process is frozen, and is dropped when it is dead.
    """

    def __init__(self) -> None:
        self.now = 0.0  # virtual seconds
        self.halted = False
        self.processes: list[Any] = []  # all that there ever were
        self.inside: Any = None  # the process that is in the midst of a callback
        self.queue: list[tuple[float, int, Any, Callable[..., Any], tuple[Any, ...]]] = []  # third: process or None
        self.number = itertools.count().__next__  # hot paths push onto `queue` themselves, as `reach` does

    def close(self) -> None:
        """The world is over: its processes end."""
        for process in self.processes:
            process.loop.close()

    def at(self, time: float, happen: Callable[..., Any], *args: Any) -> None:
        heapq.heappush(self.queue, (time, self.number(), None, happen, args))

    def after(self, seconds: float, happen: Callable[..., Any], *args: Any) -> None:
        heapq.heappush(self.queue, (self.now + seconds, self.number(), None, happen, args))

    def reach(self, seconds: float, process: Any, happen: Callable[..., Any], *args: Any) -> None:
        """Schedule a callback that is addressed to a process; None: as `after`."""
        heapq.heappush(self.queue, (self.now + seconds, self.number(), process, happen, args))

    def run(self, until: float) -> None:
        """Run every callback up to that time, unless `halted` is set on the way."""
        queue, pop = self.queue, heapq.heappop
        while queue and not self.halted and queue[0][0] <= until:
            self.now, _, process, happen, args = pop(queue)
            if process is None:
                happen(*args)
            elif process.running:
                process.run(happen, args)
            else:
                process.deliver(happen, *args)
        if not self.halted:
            self.now = max(self.now, until)
