"""A hostile store: slow, failing, full, listing what is old, losing and damaging what it has acknowledged.

The production journal writes and reads it. Whether a request of a process that has died was on its way is drawn, too.
"""

from __future__ import annotations

import errno
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from orchestrator.eventlog.compactor import segment_in, segments_folder
from orchestrator.simulation.context import Key
from orchestrator.simulation.objects import MemoryObjects, StoreBroken
from outer.journal.chain import group_key
from outer.journal.framing import MAGIC
from outer.journal.groups import FACTS, SNAPSHOT, SYNCER
from outer.journal.journal_writer import FOLDER
from outer.journal.object_store import Bytes

Header = Mapping[str, Any]


class Store(MemoryObjects):
    """Objects of all epochs, and the store's present faults."""

    def __init__(
        self, rng: Random, fault_counts: Counter[str], append_s: float, taken: Callable[[Header], None]
    ) -> None:
        """`taken` is told the header of each group of the journal that is created and has a record, or may open."""
        super().__init__()
        self._random = rng.random
        self.heal()
        self.segmented: Callable[[], object] = lambda: None  # is called once a segment of the log is there
        self.damaged = False  # something at rest was damaged or lost
        self._half = False  # of the group that a dead process writes at this moment only the beginning is written
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
        self._half = self.tearing and self._random() < 0.7
        return self._half or self._random() < 0.5

    def whole(self) -> None:
        """The moment at which a dead process may have written is over."""
        self._half = False

    # -------------------------------------------------------------- requests

    def _fails(self, share: float = 1.0) -> bool:
        if not self.failing or self._random() >= share * self.failing:
            return False
        self._fault_counts["storage_failing"] += 1
        return True

    def create(self, name: str, parts: Sequence[Bytes]) -> None:
        if self._half and _is_group(name):
            self._half, whole = False, b"".join(parts)
            super().create(name, [whole[: int(self._random() * len(whole))]])
            self._fault_counts["storage_torn"] += 1
            raise OSError(errno.EIO, "no answer")
        if self.full:
            self._fault_counts["storage_full"] += 1
            raise OSError(errno.ENOSPC, "no space left")
        failed = self._fails()
        if not failed or self._random() < 0.5:  # an error does not say that nothing happened
            super().create(name, parts)
            if _is_group(name) and any(mark in bytes(parts[0]) for mark in (b'"sequence":', b'"opening"')):
                self._taken(header_of(parts[0]))
            elif name.startswith(segments_folder(SYNCER)):
                self.segmented()
        if failed:
            raise OSError(errno.EIO, "no answer") if self._random() < 0.9 else StoreBroken("broken")

    def read(self, name: str) -> bytes:
        if self._fails(0.3):
            raise OSError(errno.EIO, "no answer")
        return super().read(name)

    def names(self, prefix: str) -> list[str]:
        if self._fails(0.3):
            raise OSError(errno.EIO, "no answer")
        names = super().names(prefix)
        if self.stale and names and self._random() < 0.8:
            self._fault_counts["storage_stale"] += 1
            return names[: int(self._random() * len(names))]
        return names

    def remove(self, name: str) -> None:
        if self._fails(0.3):
            raise OSError(errno.EIO, "no answer")
        super().remove(name)

    # -------------------------------------------------------------- a lying store

    def compacted(self) -> list[str]:
        """The journal's groups from the newest snapshot on, if a segment of the log has the facts of each."""
        names, wanted = [*filter(_is_group, MemoryObjects.names(self, FOLDER))], list[str]()
        segment = segment_in(MemoryObjects.read(self, MemoryObjects.names(self, segments_folder(SYNCER))[-1]))
        for name in names if names[-1] == group_key(FOLDER, segment.last) else ():
            snapshot = header_of(MemoryObjects.read(self, name)).get("kind") == SNAPSHOT
            wanted = [name] if snapshot else [*wanted, name]
        return wanted

    def _newest(self) -> tuple[str, Header] | None:
        """The newest group of the journal."""
        names = [*filter(_is_group, MemoryObjects.names(self, FOLDER))]
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
            lost, self.damaged = lost + 1, True
        return lost

    def damage(self, name: str) -> None:
        """Of an object at rest a byte changes, or it loses its end, or it is gone."""
        content, chance = MemoryObjects.read(self, name), self._random()
        at, self.damaged = int(self._random() * len(content)), True
        MemoryObjects.remove(self, name)
        if chance < 0.75:
            rest = [bytes(each ^ 1 for each in content[at : at + 1]), content[at + 1 :]] if chance < 0.5 else []
            MemoryObjects.create(self, name, [content[:at], *rest])

    def heal(self) -> None:
        self.slow_s = 0.0  # further delay of every request, up to this
        self.failing = 0.0  # share of requests that give an error
        self.full = self.losing = self.tearing = self.stale = False


def header_of(content: Bytes) -> Header:
    """The header of a group, from its first bytes; empty if they are not there, or damaged."""
    begin = len(MAGIC) + 8
    size = int.from_bytes(content[len(MAGIC) : begin], "big")
    try:
        header: Header = json.loads(bytes(content[begin : begin + size])) if 0 < size <= len(content) - begin else {}
        return header
    except ValueError:
        return {}


def _is_group(name: str) -> bool:
    return name.startswith(FOLDER) and name[-1].isdecimal()


def _plain(header: Header) -> bool:
    return bool(header) and header["kind"] == FACTS and not any(isinstance(item, dict) for item in header["items"])
