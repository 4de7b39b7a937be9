"""Injected faults that a learner's own process carries out: slowness, link loss, corruption, non-finite parameters.

Each fault ends by itself, even if its injector is dead. The learner's shell asks at the right places. Any thread may
call.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

KINDS = ("slow", "straggle", "link", "corrupt", "non_finite")
STRAGGLING = 0.2  # share of steps that a straggler delays


@dataclass(frozen=True)
class _Fault:
    until: float  # on the clock
    delay_s: float
    rng: Random


class FaultEffects:
    """The active faults of one learner. `clock`: monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._faults: dict[str, _Fault] = {}
        self._poisoned = False

    def begin(self, kind: str, duration_s: float, delay_s: float = 0.0, seed: str = "") -> None:
        """Start a fault. An active fault of the same kind gets the new delay and ends no earlier than before.

        `delay_s`: for every step (slow), or the average per step (straggle). `non_finite` acts once, without
        duration. Raises ValueError for a kind that is not in KINDS.
        """
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is not a fault that a learner can carry out; known are {', '.join(KINDS)}")
        with self._lock:
            if kind == "non_finite":
                self._poisoned = True
                return
            until = self._clock() + duration_s
            if (before := self._faults.get(kind)) is not None:
                until = max(until, before.until)
            self._faults[kind] = _Fault(until, delay_s, Random(seed))

    def begin_by(self, wall: float, kind: str, duration_s: float, delay_s: float, seed: str, expires_at: float) -> bool:
        """The same, but False and no fault after `expires_at` in Unix seconds, as is `wall`: the caller has given up,
        and has reported that there was no fault.
        """
        if wall < expires_at:
            self.begin(kind, duration_s, delay_s, seed)
        return wall < expires_at

    def end(self) -> None:
        """End every fault."""
        with self._lock:
            self._faults.clear()

    def delay_s(self) -> float:
        """The delay of this step in seconds. Call it once per step. No delay outlasts its fault."""
        with self._lock:
            delay = 0.0
            if (left := self._left("slow")) > 0.0:
                delay += min(left, self._faults["slow"].delay_s)
            if (left := self._left("straggle")) > 0.0:
                fault = self._faults["straggle"]
                if fault.rng.random() < STRAGGLING:
                    # Exponential, from random() alone: Python guarantees that its values never change.
                    late = -fault.delay_s / STRAGGLING * math.log(1.0 - fault.rng.random())
                    delay += min(left, late)
            return delay

    def link_down_s(self) -> float:
        """Seconds until the link is up again; 0 when it is up."""
        with self._lock:
            return self._left("link")

    def corrupts(self) -> bool:
        """Whether a payload sent now must be corrupted."""
        with self._lock:
            return self._left("corrupt") > 0.0

    def pop_poison(self) -> bool:
        """Whether to make parameters non-finite now. True once per fault."""
        with self._lock:
            poisoned, self._poisoned = self._poisoned, False
            return poisoned

    def _left(self, kind: str) -> float:
        fault = self._faults.get(kind)
        return 0.0 if fault is None else max(0.0, fault.until - self._clock())


def flipped(payload: Any) -> Any:
    """A copy of a NumPy array with one bit flipped: the lowest bit of its middle byte."""
    damaged = payload.copy()
    damaged.view("u1")[damaged.nbytes // 2] ^= 1
    return damaged
