"""Buffers a learner's numbered facts until the syncer has recorded them. They travel with its messages."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any


class FactBuffer:
    """A message carries at most `limit` facts; all others wait. No fact is dropped. Any thread may call."""

    def __init__(self, clock: Callable[[], float], limit: int = 512, first: int = 0) -> None:
        self._clock, self._limit = clock, limit
        self._next = first
        self._facts: deque[tuple[int, float, Any]] = deque()
        self._lock = threading.Lock()

    @property
    def recorded(self) -> int | None:
        """The number of facts so far, if all are recorded; None while some are not."""
        with self._lock:
            return None if self._facts else self._next

    def add(self, fact: Any) -> None:
        with self._lock:
            self._facts.append((self._next, self._clock(), fact))
            self._next += 1

    def pending(self, everything: bool = False) -> list[tuple[int, float, Any]]:
        """(number, time, fact) of the oldest unrecorded facts, for one message; `everything`: of all of them."""
        with self._lock:
            return list(self._facts) if everything else list(self._facts)[: self._limit]

    def acknowledge(self, sequence: int) -> None:
        """The facts up to and including this number are recorded."""
        with self._lock:
            while self._facts and self._facts[0][0] <= sequence:
                self._facts.popleft()
