"""What is being done to a learner from within: the faults that need its own help, each with its own end.

A fault heals even if whoever began it is dead by then. Does not know by whom, nor what a step or a message is:
the learner's shell asks at the right places, and does as it is told. Any thread may call.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

KINDS = ("slow", "straggle", "link", "corrupt", "non_finite")
STRAGGLING = 0.2  # share of the steps that a straggler is late with


@dataclass(frozen=True)
class _Fault:
    until: float  # on the clock
    delay_s: float
    chance: Random


class FaultEffects:
    """Nothing, until `begin`. `clock`: seconds, monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._faults: dict[str, _Fault] = {}
        self._poisoned = False

    def begin(self, kind: str, duration_s: float, delay_s: float = 0.0, seed: str = "") -> None:
        """A fault from now on. One of the same kind under way takes the new delay, and ends no sooner than it would.

        `delay_s`: of every step (slow), or of a step on average (straggle). `non_finite` strikes once and has no
        duration. Raises ValueError for a kind that is not in KINDS.
        """
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is no disturbance of a learner; there are {', '.join(KINDS)}")
        with self._lock:
            if kind == "non_finite":
                self._poisoned = True
                return
            until = self._clock() + duration_s
            if (before := self._faults.get(kind)) is not None:
                until = max(until, before.until)
            self._faults[kind] = _Fault(until, delay_s, Random(seed))

    def delay_s(self) -> float:
        """How much longer the step at hand is to last: asked once for each. No fault's delay outlasts the fault."""
        with self._lock:
            delay = 0.0
            if (left := self._left("slow")) > 0.0:
                delay += min(left, self._faults["slow"].delay_s)
            if (left := self._left("straggle")) > 0.0:
                fault = self._faults["straggle"]
                if fault.chance.random() < STRAGGLING:
                    # Exponential, by random() alone, whose values Python promises to keep.
                    late = -fault.delay_s / STRAGGLING * math.log(1.0 - fault.chance.random())
                    delay += min(left, late)
            return delay

    def link_down_s(self) -> float:
        """For how long nothing will get through yet; 0 when the link is up."""
        with self._lock:
            return self._left("link")

    def corrupts(self) -> bool:
        """Whether what is sent now is damaged on the way."""
        with self._lock:
            return self._left("corrupt") > 0.0

    def pop_poison(self) -> bool:
        """Whether the parameters are to be spoiled: true once."""
        with self._lock:
            poisoned, self._poisoned = self._poisoned, False
            return poisoned

    def _left(self, kind: str) -> float:
        fault = self._faults.get(kind)
        return 0.0 if fault is None else max(0.0, fault.until - self._clock())


def flipped(payload: Any) -> Any:
    """A copy of a NumPy array with one bit flipped: the lowest of the byte in its middle."""
    damaged = payload.copy()
    damaged.view("u1")[damaged.nbytes // 2] ^= 1
    return damaged
