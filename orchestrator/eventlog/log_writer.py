"""The log of a process that writes alone: the orchestrator's, and the chaos actor's."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from itertools import groupby
from operator import attrgetter
from typing import Any

from orchestrator.eventlog.compactor import Compactor
from orchestrator.eventlog.events import Event
from outer.background import Failed, thread
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


GATHER_S = 0.25  # facts of this long form a group
BACKOFF_S = 2.0  # between two attempts, while the store refuses
WAITING_MAX = 100_000  # facts that wait for the store; then the process has to end


class FactLog:
    """`log`: orchestrator or chaos, which is also the writer's name. Any thread may call.

    `failed` hears, in the writing thread, of the error after which nothing is written any more: StaleEpoch where a
    later incarnation writes the log.
    """

    def __init__(self, store: Objects, log: str, incarnation: int, failed: Failed) -> None:
        """Opens the log, which fences earlier incarnations. Raises as StoredJournal.open."""
        self._writer = LogWriter(store, log, incarnation)
        self._source, self._emitted = (log, incarnation), 0
        self._waiting: list[Event] = []
        self._wake = threading.Condition()
        self._closing = False
        self._end: Segmented | None = None
        self.trouble = ""  # why nothing is written at present
        self._thread = thread(f"{log}'s log", self._run, failed)

    def emit(self, fact: Any) -> None:
        """Log a fact. Raises OverflowError when the store has refused for so long that too many wait."""
        with self._wake:
            if self._closing:
                return
            if len(self._waiting) >= WAITING_MAX:
                raise OverflowError(f"{WAITING_MAX} facts wait for the store: {self.trouble}")
            self._waiting.append(Event(*self._source, self._emitted, time.time(), fact))
            self._emitted += 1
            self._wake.notify()

    def close(self, deadline_s: float) -> Segmented | None:
        """Write what waits and take nothing more; returns where the log ends, None if the store refuses for so long."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(deadline_s)
        return self._end

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._waiting or self._closing)
                closing = self._closing
            if not closing:
                time.sleep(GATHER_S)
            self._write()
            if closing:
                self._persist(self._close)
                return

    def _write(self) -> None:
        with self._wake:
            events, self._waiting = self._waiting, []
        batches = [events]  # after an error the writer has them already
        self._persist(lambda: self._writer.write(batches.pop() if batches else []))

    def _close(self) -> None:
        self._end = self._writer.close()

    def _persist(self, work: Callable[[], None]) -> None:
        """Retry until the store takes it. Raises StaleEpoch."""
        while True:
            try:
                work()
                self.trouble = ""
                return
            except OSError as error:
                self.trouble = f"{type(error).__name__}: {error}"
                time.sleep(BACKOFF_S)
