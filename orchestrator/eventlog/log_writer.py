"""The log of a process that writes alone: the orchestrator's, and the chaos actor's."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter

from orchestrator.eventlog.block import block_of
from orchestrator.eventlog.compactor import Compactor, segment_key
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import REGISTRY
from orchestrator.eventlog.segment_codec import Segment, encode
from outer.journal.chain import SEGMENT_ROWS, Segmented
from outer.journal.groups import SYNCER, FactRun
from outer.journal.journal import StoredJournal
from outer.journal.object_store import Objects
from outer.journal.saving import saved
from outer.protocol.facts import Participant

for _kind in (Segmented, Event, Participant, *REGISTRY.values()):
    saved(_kind)  # a GrowingLog holds them

LOGS = (SYNCER, "orchestrator", "chaos")


def groups_folder(log: str) -> str:
    """Where the groups of a log are; the syncer's are its journal."""
    return "journal" if log == SYNCER else f"log/{log}/groups"


class LogWriter:
    """Appends events to a chain of its own: each call one group, durable when the call returns."""

    def __init__(self, store: Objects, log: str, incarnation: int) -> None:
        """Opening it fences the writers of earlier incarnations. Raises as StoredJournal.open."""
        self._chain = StoredJournal(store, groups_folder(log), incarnation, 0, False, Compactor(store, log))
        self.writers = self._chain.open().writers
        self._waiting: list[Event] = []
        self._group: list[FactRun] = []  # being written; after an error its outcome is unknown

    def write(self, events: Iterable[Event]) -> None:
        """Raises StaleEpoch if a later incarnation writes; OSError: the next call writes these events too."""
        self._waiting += events
        if not self._group:  # else its outcome is unknown: it comes first, as a snapshot does
            self._keep_up()
        while self._group or self._waiting:
            if not self._group:
                waiting, self._waiting = self._waiting, []
                self._group = [_run(list(run)) for _, run in groupby(waiting, attrgetter("writer", "incarnation"))]
            self._chain.write(self._group)
            self._group = []
        with contextlib.suppress(OSError):
            self._keep_up()

    def _keep_up(self) -> None:
        if self._chain.needs_compaction:
            self._chain.remove(self._chain.compact())
            if self._chain.needs_segment:
                self._chain.segment()

    def close(self) -> Segmented:
        """Bring everything into segments; returns where the log ends. Raises as `write`."""
        self.write([])
        self._chain.finish()
        return self._chain.segmented


def write_log(store: Objects, events: Iterable[Event]) -> dict[str, Segmented]:
    """A whole log at once, as segments, of events in the log's order; returns where each part ends. Raises OSError."""
    log = GrowingLog()
    log.add(store, events)
    return log.close(store)


@saved
class GrowingLog:
    """A log that is written as segments, for a process that simulates a run and can repeat it.

    What is in no segment yet is in memory. It may be saved (outer/journal/saving.py) and written on from there: what it
    writes a second time has to be the same.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, list[Event]] = {log: [] for log in LOGS}
        self._ends = {log: Segmented(run=uuid.uuid4().hex) for log in LOGS}

    def add(self, store: Objects, events: Iterable[Event]) -> None:
        """Events in the log's order. Raises OSError, and FileExistsError where another log is."""
        for event in events:
            self._waiting[event.writer if event.writer in LOGS else SYNCER].append(event)
        for log, waiting in self._waiting.items():
            while len(waiting) >= SEGMENT_ROWS:
                self._write(store, log)

    def close(self, store: Objects) -> dict[str, Segmented]:
        """Bring everything into segments; returns where each part ends. Raises as `add`."""
        for log, waiting in self._waiting.items():
            while waiting:
                self._write(store, log)
        return dict(self._ends)

    def _write(self, store: Objects, log: str) -> None:
        end, waiting = self._ends[log], self._waiting[log]
        block = block_of(waiting[:SEGMENT_ROWS], end.rows)
        place = Segment(log, end.run, end.segments, end.seal, end.segments, end.segments, "", end.rows, block.rows)
        content, segment = encode(place, block)
        key = segment_key(log, segment.number)
        try:
            store.create(key, content)
        except FileExistsError:
            if store.read(key) != b"".join(content):
                raise
        self._ends[log] = Segmented(segment.number + 1, segment.seal, end.run, segment.last, "", block.stop)
        del waiting[:SEGMENT_ROWS]


def _run(events: list[Event]) -> FactRun:
    return FactRun(events[0].writer, events[0].incarnation, [(each.sequence, each.at, each.fact) for each in events])
