"""The log of a process that writes alone: the orchestrator's, and the chaos actor's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter

from orchestrator.eventlog.compactor import Compactor
from orchestrator.eventlog.events import Event
from outer.journal.chain import Segmented
from outer.journal.groups import SYNCER, FactRun
from outer.journal.journal import StoredJournal
from outer.journal.object_store import Objects

LOGS = (SYNCER, "orchestrator", "chaos")


def groups_folder(log: str) -> str:
    """Where the groups of a log are; the syncer's are its journal."""
    return "journal" if log == SYNCER else f"log/{log}/groups"


class LogWriter:
    """Appends events to a chain of its own: each call one group, durable when the call returns."""

    def __init__(self, store: Objects, log: str, incarnation: int) -> None:
        """Opening it fences the writers of earlier incarnations. Raises as StoredJournal.open."""
        self._chain = StoredJournal(store, groups_folder(log), incarnation, 0, False, Compactor(store, log))
        self._chain.open()
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


def _run(events: list[Event]) -> FactRun:
    return FactRun(events[0].writer, events[0].incarnation, [(each.sequence, each.at, each.fact) for each in events])
