"""A hostile store for the syncer's journal: slow, failing, full, and losing what it has not acknowledged.

The store takes a group only from the newest epoch and only in order. The writer of one epoch puts groups in one by
one, and retries what failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, NamedTuple

from orchestrator.simulation.context import Key, SimGroup

BACKOFF_S, BACKOFF_S_MAX = 0.05, 1.0  # between two attempts to write; doubles


class Write(NamedTuple):
    """One group of the journal and its position."""

    epoch: int
    sequence: int  # among the epoch's groups
    group: SimGroup


class Store:
    """Durable groups of all epochs, in order, and the store's present faults."""

    def __init__(
        self, rng: Random, fault_counts: Counter[str], append_s: float, taken: Callable[[Write], None]
    ) -> None:
        """`taken` is told of each group as it becomes durable."""
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
        """Take it, if it is the next one of the newest epoch, or there already.

        Returns ok | error | broken, which is no error of a store that is away | stale_epoch.
        """
        if write.epoch != self.epoch:
            return "stale_epoch"
        last = self.entries[-1] if self.entries else None
        expected = last.sequence + 1 if last is not None and last.epoch == self.epoch else 0
        if write is last:
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
        if not failed:
            return "ok"
        return "error" if self.random() < 0.9 else "broken"

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

    def force(self, write: Write) -> None:
        """Take it in spite of all faults, unless it is there already or another epoch has opened."""
        if write.epoch == self.epoch and write not in self.entries[-1:]:
            self.entries.append(write)
            self._taken(write)

    def tail_known(self, acknowledged: Mapping[Key, int]) -> bool:
        """Whether the newest group has no record, and a fact that its writer was told to be durable."""
        newest = self.entries[-1].group if self.entries else SimGroup()
        known = (acknowledged.get((run.writer, run.incarnation), -1) >= run.last for run in newest.runs)
        return not newest.records and any(known)

    def lose_tail(self, groups: int) -> list[Write]:
        """The newest groups are lost, at most so many, and none that has a record."""
        kept = len(self.entries)
        while groups and kept and not self.entries[kept - 1].group.records:
            kept, groups = kept - 1, groups - 1
        lost = self.entries[kept:]
        del self.entries[kept:]
        return lost

    def read(self) -> list[Write]:
        """The groups as a reader sees them: under a fault an old prefix."""
        if self.stale and self.entries and self.random() < 0.8:
            seen = int(self.random() * len(self.entries))
            self._fault_counts["storage_stale"] += 1
            return self.entries[:seen]
        return list(self.entries)

    def open(self, epoch: int, seen: list[Write]) -> bool:
        """Begin an epoch, if what its opener has read is all there is."""
        if epoch <= self.epoch or len(seen) != len(self.entries):
            return False
        if self.full:  # an opening is written, too
            self._fault_counts["storage_full"] += 1
            return False
        self.epoch = epoch
        return True

    def heal(self) -> None:
        self.slow_s = self.failing = 0.0
        self.full = self.losing = self.tearing = self.stale = False


class Writer:
    """The journal of one epoch, as its shell writes it: one group at a time, in order."""

    def __init__(
        self, store: Store, owner: Any, durable: Callable[[SimGroup], None], refused: Callable[[], None]
    ) -> None:
        self._store, self._owner = store, owner
        self._durable, self._refused = durable, refused
        self._write: Write | None = None  # the next, until it is acknowledged
        self._under_way = False
        self._groups = 0
        self._backoff_s = BACKOFF_S

    def put(self, group: SimGroup) -> None:
        assert self._write is None
        self._write = Write(self._owner.epoch, self._groups, group)
        self._groups += 1
        self._begin()

    def finish(self, group: SimGroup) -> None:
        if self._write is not None:
            self._store.force(self._write)
        self._store.force(Write(self._owner.epoch, self._groups, group))
        self._write = None

    def crash(self) -> None:
        """The process is dead: the group under way may land or not."""
        write, self._write = self._write, None
        if write is not None and self._under_way:
            self._store.crashed(write)

    def _begin(self) -> None:
        self._under_way = True
        self._owner.time.after(self._store.write_s(), self._land, self._write)

    def _land(self, write: Write) -> None:
        """The store is reached, whether or not the writer still runs."""
        if self._write is not write:
            return  # it died first
        self._under_way = False
        self._owner.deliver(self._acknowledge, write, self._store.put(write))

    def _acknowledge(self, write: Write, result: str) -> None:
        if result == "error":
            self._owner.after(self._backoff_s, self._begin)
            self._backoff_s = min(2 * self._backoff_s, BACKOFF_S_MAX)
            return
        self._write = None
        if result == "broken":
            self._owner.crash()  # nothing may be written behind the gap
        elif result == "ok":
            self._backoff_s = BACKOFF_S
            self._durable(write.group)
        else:
            self._refused()
