"""A hostile store for the syncer's journal: slow, failing, full, and losing what it has not acknowledged.

The store takes an entry only from the newest epoch and only in order. The writer of one epoch puts entries in one by
one, and retries what failed.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from outer.protocol.events_effects import Append

BACKOFF_S, BACKOFF_S_MAX = 0.05, 1.0  # between two attempts to write; doubles


class Write(NamedTuple):
    """One entry of the journal and its position."""

    epoch: int
    sequence: int
    entry: Any


class Store:
    """Durable entries of all epochs, in order, and the store's present faults."""

    def __init__(
        self, rng: Random, fault_counts: Counter[str], append_s: float, taken: Callable[[Write], None]
    ) -> None:
        """`taken` is told of each entry as it becomes durable."""
        self.entries: list[Write] = []
        self.epoch = 0  # the newest that was opened
        self.slow_s = 0.0  # further delay of every write, up to this
        self.failing = 0.0  # share of writes that give an error
        self.full = self.losing = self.tearing = self.stale = False
        self.random = rng.random
        self._fault_counts, self._append_s, self._taken = fault_counts, append_s, taken

    def write_s(self) -> float:
        """How long the next write takes."""
        if self.slow_s:
            self._fault_counts["storage_slow"] += 1
        return self._append_s * (0.5 + self.random()) + self.slow_s * self.random()

    def put(self, write: Write) -> str:
        """Take it, if it is the next one of the newest epoch, or there already. Returns ok | error | stale_epoch."""
        if write.epoch != self.epoch:
            return "stale_epoch"
        last = self.entries[-1] if self.entries else None
        expected = last.sequence + 1 if last is not None and last.epoch == self.epoch else 0
        if last is not None and write == last:
            return "ok"  # it was taken before, and its acknowledgement was lost
        if write.sequence != expected:
            return "stale_epoch"
        if self.full:
            self._fault_counts["storage_full"] += 1
            return "error"
        failed = self.random() < self.failing
        if failed:
            self._fault_counts["storage_failing"] += 1
        if not failed or self.random() < 0.5:  # an error does not say that nothing happened
            self.entries.append(write)
            self._taken(write)
        return "error" if failed else "ok"

    def crashed(self, write: Write) -> None:
        """Its writer died while this was under way."""
        if self.losing and self.random() < 0.7:
            self._fault_counts["storage_lost"] += 1
        elif self.tearing and self.random() < 0.7:
            self._fault_counts["storage_torn"] += (
                1  # half a record is there: its checksum does not match, it is dropped
            )
        elif self.random() < 0.5 and not self.full:
            self.put(write)

    def read(self) -> list[Write]:
        """The entries as a reader sees them: under a fault an old prefix."""
        if self.stale and self.entries and self.random() < 0.8:
            seen = int(self.random() * len(self.entries))
            self._fault_counts["storage_stale"] += 1
            return self.entries[:seen]
        return list(self.entries)

    def open(self, epoch: int, seen: list[Write]) -> bool:
        """Begin an epoch, if what its opener has read is all there is."""
        if epoch <= self.epoch or len(seen) != len(self.entries):
            return False
        self.epoch = epoch
        return True

    def heal(self) -> None:
        self.slow_s = self.failing = 0.0
        self.full = self.losing = self.tearing = self.stale = False


class Writer:
    """The journal of one epoch, as its shell writes it: one entry at a time, in order."""

    def __init__(
        self, store: Store, owner: Any, durable: Callable[[int], None], refused: Callable[[int], None]
    ) -> None:
        self.queue: deque[Write] = deque()
        self._store, self._owner = store, owner
        self._durable, self._refused = durable, refused
        self._under_way: Write | None = None
        self._backoff_s = BACKOFF_S

    def put(self, effect: Append) -> None:
        self.queue.append(Write(self._owner.epoch, effect.sequence, effect))
        if len(self.queue) == 1:
            self._begin()

    def crash(self) -> None:
        """The process is dead: the write under way may land or not, what waits is lost."""
        write, self._under_way = self._under_way, None
        self.queue.clear()
        if write is not None:
            self._store.crashed(write)

    def _begin(self) -> None:
        if self.queue and self._under_way is None:
            self._under_way = self.queue[0]
            self._owner.time.after(self._store.write_s(), self._land, self.queue[0])

    def _land(self, write: Write) -> None:
        """The store is reached, whether or not the writer still runs."""
        if self._under_way is not write:
            return  # it died first
        self._under_way = None
        self._owner.deliver(self._acknowledge, write, self._store.put(write))

    def _acknowledge(self, write: Write, result: str) -> None:
        if result == "error":
            self._owner.after(self._backoff_s, self._begin)
            self._backoff_s = min(2 * self._backoff_s, BACKOFF_S_MAX)
        elif result == "ok":
            self._backoff_s = BACKOFF_S
            self.queue.popleft()
            self._durable(write.sequence)
            self._begin()
        else:
            self.queue.clear()
            self._refused(write.sequence)
