"""Writes the facts of a process that has a log of its own, in a thread: no caller waits for the store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from orchestrator.eventlog.events import Event
from orchestrator.eventlog.log_writer import LogWriter
from outer.background import Failed, thread
from outer.journal.chain import Segmented
from outer.journal.object_store import Objects

GATHER_S = 0.25  # facts of this long form a group
BACKOFF_S = 2.0  # between two attempts, while the store refuses
WAITING_MAX = 100_000  # facts that wait for the store; then the process has to end


class FactLog:
    """`log`: orchestrator or chaos, which is also the writer's name. Any thread may call.

    `failed` hears, in the writing thread, of the error after which nothing is written any more: StaleEpoch where a
    later incarnation writes the log.
    """

    def __init__(
        self,
        store: Objects,
        log: str,
        incarnation: int,
        failed: Failed,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Opens the log, which fences earlier incarnations. Raises as StoredJournal.open."""
        self._writer = LogWriter(store, log, incarnation)
        self._source, self._emitted, self._clock = (log, incarnation), 0, clock
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
            self._waiting.append(Event(*self._source, self._emitted, self._clock(), fact))
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
