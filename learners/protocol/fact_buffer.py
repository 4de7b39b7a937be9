"""A learner's facts on their way to the log: numbered, and kept until the syncer has recorded them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any


class FactBuffer:
    """Bounded: beyond `limit` unacknowledged facts nothing new is taken along, but nothing is forgotten either."""

    def __init__(self, clock: Callable[[], float], limit: int = 512, first: int = 0) -> None:
        self._clock, self._limit = clock, limit
        self._next = first
        self._facts: deque[tuple[int, float, Any]] = deque()
        self._lock = threading.Lock()

    @property
    def recorded(self) -> int | None:
        """How many facts there were, if all of them are recorded; None while some are not."""
        with self._lock:
            return None if self._facts else self._next

    def add(self, fact: Any) -> None:
        with self._lock:
            self._facts.append((self._next, self._clock(), fact))
            self._next += 1

    def pending(self, everything: bool = False) -> list[tuple[int, float, Any]]:
        """The oldest unacknowledged facts, to go along with a message; all of them where it must not be without."""
        with self._lock:
            return list(self._facts) if everything else list(self._facts)[: self._limit]

    def acknowledge(self, sequence: int) -> None:
        """Everything up to and including this number is recorded."""
        with self._lock:
            while self._facts and self._facts[0][0] <= sequence:
                self._facts.popleft()
