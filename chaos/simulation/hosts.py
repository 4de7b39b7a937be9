"""Hosts and their processes: alive or dead, running or frozen, each with clocks of its own.

Knows nothing of what a process does. Whatever is to reach one goes through `take`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from orchestrator.simulation.timeline import Timeline


class Host:
    """A machine's clocks. The monotonic one never falls; the wall clock dates facts and may jump either way."""

    __slots__ = ("jumped", "name", "offset_s", "rate", "slowdown", "wall_s")

    def __init__(self, name: str, rate: float = 1.0, offset_s: float = 0.0, wall_s: float = 0.0) -> None:
        self.name = name
        self.rate, self.offset_s = rate, offset_s  # monotonic: offset + rate * virtual time
        self.wall_s = wall_s  # wall: so far ahead of virtual time
        self.jumped = False  # the wall clock did, and nothing was dated since
        self.slowdown = 1.0  # of every step

    def set_rate(self, now: float, rate: float) -> None:
        """From this virtual second on; the clock does not jump."""
        self.offset_s += (self.rate - rate) * now
        self.rate = rate


class Process:
    """One process on a host. Frozen, it keeps what comes, and takes it all at once when it thaws."""

    def __init__(self, time: Timeline, host: Host) -> None:
        self.time, self.host = time, host
        self.alive = True
        self.running = True  # alive, and not frozen
        self.thawed_at = 0.0  # virtual seconds
        self.handled = 0  # events handed to its machine
        self._kept: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    def clock(self) -> float:
        """Monotonic seconds of this host."""
        return self.host.offset_s + self.host.rate * self.time.now

    def after(self, seconds: float, happen: Callable[..., Any], *args: Any) -> None:
        """So many seconds later, on this host's monotonic clock."""
        self.time.reach(seconds / self.host.rate, self, happen, *args)

    def take(self, happen: Callable[..., Any], *args: Any) -> None:
        """Something reaches this process."""
        if self.running:
            happen(*args)
        elif self.alive:
            self._kept.append((happen, args))
        else:
            unheard(args)

    def freeze(self) -> None:
        self.running = False

    def thaw(self) -> int:
        """Go on, with all that has come meanwhile. Returns how much that was."""
        if not self.alive or self.running:
            return 0
        self.running, self.thawed_at = True, self.time.now
        kept, self._kept = self._kept, []
        for happen, args in kept:
            self.take(happen, *args)  # one of them may have ended it
        return len(kept)

    def die(self) -> None:
        self.alive = self.running = False
        kept, self._kept = self._kept, []
        for _, args in kept:
            unheard(args)


def unheard(args: tuple[Any, ...]) -> None:
    """A call that reaches a dead process is answered: whoever asked is told."""
    if args and (died := getattr(args[0], "died", None)) is not None:
        died()
