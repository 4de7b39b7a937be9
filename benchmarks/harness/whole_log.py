"""Writes a whole log at once, as segments: of a run that was made in one process, and has no journal."""

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


def write_log(store: Objects, events: Iterable[Event]) -> dict[str, Segmented]:
    """Write events in the log's order; returns where each part ends.

    Raises OSError, and FileExistsError where another log is.
    """
    parts: dict[str, list[Event]] = {log: [] for log in LOGS}
    for event in events:
        parts[event.writer if event.writer in LOGS else SYNCER].append(event)
    return {log: _write_part(store, log, part) for log, part in parts.items()}


def _write_part(store: Objects, log: str, events: list[Event]) -> Segmented:
    end = Segmented(run=uuid.uuid4().hex)
    for first in range(0, len(events), SEGMENT_ROWS):
        rows = Rows(end.rows)
        for event in events[first : first + SEGMENT_ROWS]:
            rows.add(event)
        place = Segment(log, end.run, end.segments, end.seal, end.segments, end.segments, "", end.rows, len(rows))
        end = segmented(create(store, place, rows.part()))
    return end
