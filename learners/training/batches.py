"""Batches built ahead of their steps, in a thread beside the training loop.

A prediction decides only when a batch is built: its content follows from (start, count) alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from learners.training.devices import cores

AHEAD_MAX = 2  # batches that are built, or being built, and not yet taken


class Batches:
    """`build(start, count)` runs in one thread at a time. The methods belong to the training loop."""

    def __init__(self, build: Callable[[int, int], Any]) -> None:
        self._build = build
        self._building = threading.Lock()
        self._thread: ThreadPoolExecutor | None = None  # from the first prediction on
        self._ahead: dict[tuple[int, int], Future[Any]] = {}

    def expect(self, starts: Sequence[int], count: int) -> None:
        """Begin to build the batches of the next steps, in this order; what is no longer expected is dropped."""
        wanted = dict.fromkeys((start, count) for start in starts[:AHEAD_MAX])
        for key in [key for key in self._ahead if key not in wanted]:
            self._ahead.pop(key).cancel()
        for key in wanted:
            if key not in self._ahead:
                if self._thread is None:
                    self._thread = ThreadPoolExecutor(1, "batch", initializer=cores.leave)
                self._ahead[key] = self._thread.submit(self._one, *key)

    def ready(self, start: int, count: int, wait_s: float) -> bool:
        """Begin to build the batch of the next step, and wait so long for it. Returns whether it can be taken."""
        if (start, count) not in self._ahead:
            self.expect([start], count)
        return bool(futures.wait([self._ahead[start, count]], wait_s).done)

    def take(self, start: int, count: int) -> Any:
        """The batch of a step. An exception of `build` is raised here, at the step that needs the batch."""
        ahead = self._ahead.pop((start, count), None)
        return self._one(start, count) if ahead is None else ahead.result()

    def _one(self, start: int, count: int) -> Any:
        with self._building:
            return self._build(start, count)
