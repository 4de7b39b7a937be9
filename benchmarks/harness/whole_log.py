"""Writes a log as segments: of a run that was made in one process, and has no journal."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from orchestrator.eventlog.compactor import Segment, create, segmented
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.log_writer import LOGS
from orchestrator.eventlog.tables import Rows
from outer.journal.chain import SEGMENT_ROWS, Segmented
from outer.journal.groups import SYNCER
from outer.journal.object_store import Objects


class WholeLog:
    """A log that nobody else writes; `ends`: where each of its parts ends."""

    def __init__(self, store: Objects) -> None:
        self._store = store
        self.ends = {log: Segmented(run=uuid.uuid4().hex) for log in LOGS}

    @property
    def rows(self) -> int:
        return sum(end.rows for end in self.ends.values())

    def append(self, events: Iterable[Event]) -> None:
        """Write events in the log's order. Raises OSError, and FileExistsError where another log is."""
        parts: dict[str, list[Event]] = {log: [] for log in LOGS}
        for event in events:
            parts[event.writer if event.writer in LOGS else SYNCER].append(event)
        for log, part in parts.items():
            for first in range(0, len(part), SEGMENT_ROWS):
                self._append(log, part[first : first + SEGMENT_ROWS])

    def _append(self, log: str, events: list[Event]) -> None:
        end = self.ends[log]
        rows = Rows(end.rows)
        for event in events:
            rows.add(event)
        place = Segment(log, end.run, end.segments, end.seal, end.segments, end.segments, "", end.rows, len(rows))
        self.ends[log] = segmented(create(self._store, place, rows.part()))


def write_log(store: Objects, events: Iterable[Event]) -> dict[str, Segmented]:
    """A whole log at once; returns where each part ends. Raises as `append`."""
    log = WholeLog(store)
    log.append(events)
    return log.ends
