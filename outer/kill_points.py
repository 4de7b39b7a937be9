"""Where chaos can kill a process of the syncer, in the order in which a commit passes them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial

RECEIVED, MERGING, MERGED, JOURNALING, JOURNALED, APPLIED, ANNOUNCED = POINTS = (
    "received",  # a contribution has arrived
    "merging",  # a merge is being computed; with shards, the one that computes it dies
    "merged",
    "journaling",  # the record is about to be written
    "journaled",  # the record is durable, and not announced
    "applied",
    "announced",
)


class KillPoints:
    """The points at which one process is to die. `die` kills it."""

    def __init__(self) -> None:
        self.die: Callable[[], object] = partial(os.kill, os.getpid(), signal.SIGKILL)
        self._dies_at: dict[str, int] = {}  # at which point, passed so many times from now

    def arm(self, point: str, times: int) -> None:
        """Kill this process when it passes this point for the nth time."""
        assert point in POINTS, point
        self._dies_at[point] = times

    def reach(self, point: str) -> None:
        """Die here if chaos asked for it."""
        if point in self._dies_at:
            self._dies_at[point] -= 1
            if self._dies_at[point] <= 0:
                self.die()
