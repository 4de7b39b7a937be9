"""Virtual time: what happens next, and when. Knows nothing of what it is."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any, Protocol


class Process(Protocol):
    """What things happen to."""

    running: bool  # alive, and not frozen

    def take(self, happen: Callable[..., Any], *args: Any) -> None:
        """It happens while this is not running."""


class Timeline:
    """Events of the same instant happen in the order in which they were put in.

    What reaches a process waits for it where it is frozen, and is lost on it where it is dead.
    """

    def __init__(self) -> None:
        self.now = 0.0  # virtual seconds
        self.halted = False
        self.queue: list[tuple[float, int, Process | None, Callable[..., Any], tuple[Any, ...]]] = []
        self.number = itertools.count().__next__  # whoever is in a hurry puts into the queue what `reach` would

    def __len__(self) -> int:
        return len(self.queue)

    def at(self, time: float, happen: Callable[..., Any], *args: Any) -> None:
        heapq.heappush(self.queue, (time, self.number(), None, happen, args))

    def after(self, seconds: float, happen: Callable[..., Any], *args: Any) -> None:
        heapq.heappush(self.queue, (self.now + seconds, self.number(), None, happen, args))

    def reach(self, seconds: float, process: Process, happen: Callable[..., Any], *args: Any) -> None:
        """So many seconds later it comes to this process."""
        heapq.heappush(self.queue, (self.now + seconds, self.number(), process, happen, args))

    def run(self, until: float) -> None:
        """Let everything happen up to that time, unless somebody halts it."""
        queue, pop = self.queue, heapq.heappop
        while queue and not self.halted and queue[0][0] <= until:
            self.now, _, process, happen, args = pop(queue)
            if process is None or process.running:
                happen(*args)
            else:
                process.take(happen, *args)
        if not self.halted:
            self.now = max(self.now, until)
