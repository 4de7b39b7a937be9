"""The one slot for a copy of a learner's whole state, which checkpoints and joiners share.

A copy in the slot stays on the devices until it is packed. It never meets another one there: who comes meanwhile waits
for a limited time, then has the state copied to the host while the training loop stands still.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from learners.training.state_arrays import Arrays
    from learners.training.trainer import Trainer


class Captured:
    """The leaves of parameters and inner state as of one step boundary, for any thread to pack.

    They leave the slot with `pack`, or when nothing refers to this object any more.
    """

    def __init__(
        self,
        leaves: list[Any],
        packed: Callable[[list[Any]], Arrays],
        released: Callable[[], None] = lambda: None,
    ) -> None:
        self._leaves, self._packed = leaves, packed
        self._released = weakref.finalize(self, released)  # runs once, whichever comes first

    def pack(self) -> Arrays:
        """The leaves on the host, as state_arrays.pack has them. Call it once: they are needed no more."""
        try:
            return self._packed(self._leaves)
        finally:
            self._leaves = []
            self._released()


class SnapshotSlot:
    """`take` belongs to the training loop. `wait_s`: how long it waits for an earlier copy to leave the slot."""

    def __init__(self, trainer: Trainer, wait_s: float) -> None:
        self._trainer, self._wait_s = trainer, wait_s
        self._freed = threading.Condition(threading.RLock())  # a finalizer may run in any thread, at any time
        self._holders = 0  # of the copy in the slot
        self._leaves: list[Any] = []
        self._generation = -1  # of the trainer's state, that the copy has

    def take(self) -> Captured:
        """The state as of now: a copy on the devices if there is room and the slot is free, else on the host."""
        generation = self._trainer.generation
        with self._freed:
            if self._holders and self._generation != generation:
                self._wait()
            if self._holders and self._generation != generation:
                return Captured(self._trainer.captured_on_host(), self._trainer.packed)
            if not self._holders:
                self._leaves, self._generation = self._trainer.capture(), generation
            self._holders += 1
            return Captured(self._leaves, self._trainer.packed, self._release)

    def _wait(self) -> None:
        give_up_at = time.monotonic() + self._wait_s
        while self._holders and (left_s := give_up_at - time.monotonic()) > 0.0:
            self._freed.wait(left_s)

    def _release(self) -> None:
        with self._freed:
            self._holders -= 1
            if not self._holders:
                self._leaves = []
                self._freed.notify_all()
