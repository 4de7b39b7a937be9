"""Where commits become durable before anyone is told: the interface, and the version that lives in memory."""

from __future__ import annotations

from typing import Any, Protocol

from outer.facts import Committed, Record


class StaleEpoch(Exception):
    """An append that was not the next one of the newest epoch: another syncer has taken over."""


class Journal(Protocol):
    """An append is conditional on (epoch, sequence) and returns once the record is durable."""

    def append(self, epoch: int, sequence: int, record: Record, proposal: Any) -> None:
        """Raise StaleEpoch, and change nothing, unless this is the next record of the newest epoch."""
        ...


class MemoryJournal:
    """Survives nothing: durable only in the sense that it refuses what does not follow.

    Keeps the newest record of each fragment, so its size does not grow with the run.
    """

    def __init__(self) -> None:
        self._epoch, self._next = 0, 0
        self.newest: dict[int, Committed] = {}

    def append(self, epoch: int, sequence: int, record: Record, proposal: Any) -> None:
        expected = 0 if epoch > self._epoch else self._next
        if epoch < self._epoch or sequence != expected:
            raise StaleEpoch(f"append ({epoch}, {sequence}) after ({self._epoch}, {self._next - 1})")
        self._epoch, self._next = epoch, sequence + 1
        if isinstance(record, Committed):
            self.newest[record.fragment] = record
