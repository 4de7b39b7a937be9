"""Simulated hosts and the processes on them: alive or dead, running or frozen, each with its host's clocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from orchestrator.simulation.timeline import Timeline


class Host:
    """A machine's clocks. The monotonic one never falls; the wall clock dates facts and may jump either way."""

    __slots__ = ("jumped", "name", "offset_s", "rate", "slowdown", "wall_s")

    def __init__(self, name: str, rate: float = 1.0, offset_s: float = 0.0, wall_s: float = 0.0) -> None:
        self.name = name
        self.rate, self.offset_s = rate, offset_s  # monotonic seconds = offset + rate * virtual seconds
        self.wall_s = wall_s  # the wall clock's lead over virtual time
        self.jumped = False  # the wall clock jumped, and no fact was dated since
        self.slowdown = 1.0  # factor on every step

    def set_rate(self, now: float, rate: float) -> None:
        """Change the clock's rate from this virtual second on. The clock does not jump."""
        self.offset_s += (self.rate - rate) * now
        self.rate = rate


class Process:
    """One process on a host. While frozen it queues what arrives, and handles it when it thaws."""

    def __init__(self, time: Timeline, host: Host, key: tuple[str, int]) -> None:
        self.time, self.host, self.key = time, host, key
        self.label = f"{key[0]} {key[1]}"
        self.alive = True
        self.running = True  # alive, and not frozen
        self.thawed_at = 0.0  # virtual seconds
        self.handled = 0  # events handed to its machine
        self._queued: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    def clock(self) -> float:
        """This host's monotonic clock, in seconds."""
        return self.host.offset_s + self.host.rate * self.time.now

    def after(self, seconds: float, happen: Callable[..., Any], *args: Any) -> None:
        """Schedule a callback in so many seconds of this host's monotonic clock."""
        self.time.reach(seconds / self.host.rate, self, happen, *args)

    def deliver(self, happen: Callable[..., Any], *args: Any) -> None:
        """Run the callback now, queue it if the process is frozen, or drop it if the process is dead."""
        if self.running:
            happen(*args)
        elif self.alive:
            self._queued.append((happen, args))
        else:
            fail_call(args)

    def freeze(self) -> None:
        self.running = False

    def thaw(self) -> int:
        """Resume a frozen process and handle what it queued. Returns how many callbacks that were."""
        if not self.alive or self.running:
            return 0
        self.running, self.thawed_at = True, self.time.now
        queued, self._queued = self._queued, []
        for happen, args in queued:
            self.deliver(happen, *args)  # one of them may end the process
        return len(queued)

    def die(self) -> None:
        self.alive = self.running = False
        queued, self._queued = self._queued, []
        for _, args in queued:
            fail_call(args)


def fail_call(args: tuple[Any, ...]) -> None:
    """If a dropped callback carries a call, tell its caller that the callee is dead."""
    if args and (died := getattr(args[0], "died", None)) is not None:
        died()
