"""A hostile store: slow, failing, full, listing what is old, and losing what it has acknowledged.

The production journal writes and reads it. Whether a request of a process that has died was on its way is drawn, too.
"""

from __future__ import annotations

import errno
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from orchestrator.simulation.context import Key
from orchestrator.simulation.objects import MemoryObjects, StoreBroken
from outer.journal.framing import MAGIC
from outer.journal.groups import FACTS
from outer.journal.journal_writer import FOLDER
from outer.journal.object_store import Bytes

Header = Mapping[str, Any]


class Store(MemoryObjects):
    """Objects of all epochs, and the store's present faults."""

    def __init__(
        self, rng: Random, fault_counts: Counter[str], append_s: float, taken: Callable[[Header], None]
    ) -> None:
        """`taken` is told the header of each group of the journal that is created."""
        super().__init__()
        self.slow_s = 0.0  # further delay of every request, up to this
        self.failing = 0.0  # share of requests that give an error
        self.full = self.losing = self.tearing = self.stale = False
        self._random = rng.random
        self._fault_counts, self._append_s, self._taken = fault_counts, append_s, taken

    def write_s(self) -> float:
        """How long the next write takes."""
        if self.slow_s:
            self._fault_counts["storage_slow"] += 1
        return self._append_s * (0.5 + self._random()) + self.slow_s * self._random()

    def outlives(self) -> bool:
        """Whether a request of a process that has stopped was on its way."""
        if self.losing and self._random() < 0.7:
            self._fault_counts["storage_lost"] += 1
            return False
        if self.tearing and self._random() < 0.7:
            self._fault_counts["storage_torn"] += 1  # half an object is no object: creation is all or nothing
            return False
        return self._random() < 0.5

    # -------------------------------------------------------------- requests

    def _fails(self, share: float = 1.0) -> bool:
        if not self.failing or self._random() >= share * self.failing:
            return False
        self._fault_counts["storage_failing"] += 1
        return True

    def create(self, name: str, parts: Sequence[Bytes]) -> None:
        if self.full:
            self._fault_counts["storage_full"] += 1
            raise OSError(errno.ENOSPC, "no space left", name)
        failed = self._fails()
        if not failed or self._random() < 0.5:  # an error does not say that nothing happened
            super().create(name, parts)
            if name.startswith(FOLDER) and name[-1].isdecimal():
                self._taken(header_of(parts[0]))
        if failed:
            raise OSError(errno.EIO, "no answer", name) if self._random() < 0.9 else StoreBroken(name)

    def read(self, name: str) -> bytes:
        if self._fails(0.3):
            raise OSError(errno.EIO, "no answer", name)
        return super().read(name)

    def names(self, prefix: str) -> list[str]:
        if self._fails(0.3):
            raise OSError(errno.EIO, "no answer", prefix)
        names = super().names(prefix)
        if self.stale and names and self._random() < 0.8:
            self._fault_counts["storage_stale"] += 1
            return names[: int(self._random() * len(names))]
        return names

    def remove(self, name: str) -> None:
        if self._fails(0.3):
            raise OSError(errno.EIO, "no answer", name)
        super().remove(name)

    # -------------------------------------------------------------- a lying store

    def _newest(self) -> tuple[str, Header] | None:
        """The newest group of the journal."""
        names = [name for name in MemoryObjects.names(self, FOLDER) if name[-1].isdecimal()]
        return (names[-1], header_of(MemoryObjects.read(self, names[-1]))) if names else None

    def tail_known(self, acknowledged: Mapping[Key, int]) -> bool:
        """Whether the newest group has no record, and a fact that its writer was told to be durable."""
        newest = self._newest()
        if newest is None or not _plain(newest[1]):
            return False
        runs = (item for item in newest[1]["items"] if not isinstance(item, dict))
        return any(acknowledged.get((who, which), -1) >= first + len(facts) - 1 for who, which, first, facts in runs)

    def lose_tail(self, groups: int) -> int:
        """The newest groups are lost, at most so many, and none that has a record. Returns how many."""
        lost = 0
        while lost < groups and (newest := self._newest()) is not None and _plain(newest[1]):
            MemoryObjects.remove(self, newest[0])
            lost += 1
        return lost

    def heal(self) -> None:
        self.slow_s = self.failing = 0.0
        self.full = self.losing = self.tearing = self.stale = False


def header_of(content: Bytes) -> Header:
    """The header of a group, from its first bytes."""
    begin = len(MAGIC) + 8
    size = int.from_bytes(content[len(MAGIC) : begin], "big")
    header: Header = json.loads(bytes(content[begin : begin + size]))
    return header


def _plain(header: Header) -> bool:
    return header["kind"] == FACTS and not any(isinstance(item, dict) for item in header["items"])
