"""Takes facts into the log: the syncer's own, and those that learners' messages carry.

Which facts are new, missing or durable is decided by outer/protocol/recorder.py; the journal's chain makes them
durable. The syncer actor calls this in its event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from outer.journal.groups import SYNCER, Arrays
from outer.journal.journal_writer import JournalWriter
from outer.journal.values import Stored
from outer.ports import now
from outer.protocol.facts import Record
from outer.protocol.recorder import Numbered, Recorded, Recorder
from outer.protocol.recovery import Entry


class LogFeed:
    """One epoch's. Give `recorded` to its JournalWriter, and call `begin` once that is open. `wall`: Unix seconds."""

    def __init__(self, epoch: int, wall: Callable[[], float]) -> None:
        self._epoch, self._wall = epoch, wall
        self._said = 0  # facts of this epoch's own
        self._closed = False
        self._recorder = Recorder()  # until `begin` nothing is known to be durable
        self._news = asyncio.Event()  # set, and replaced, when more is durable

    def begin(self, journal: JournalWriter, writers: Iterable[Sequence[Any]]) -> None:
        """`writers`: up to which fact of whom the log goes, as the journal has found it."""
        self._journal, self._recorder = journal, Recorder(writers)

    # -------------------------------------------------------------- the syncer's own

    def log(self, fact: Any) -> None:
        """Log a fact of the syncer."""
        self._journal.note(SYNCER, self._epoch, [(self._number(), self._wall(), fact)])

    def append(self, sequence: int, record: Record, arrays: Arrays, stored: Stored | None = None) -> None:
        """Log a record, and make it durable at once, with the value that belongs to it or where that is stored."""
        self._journal.append(Entry(self._epoch, sequence, record), arrays, self._number(), self._wall(), stored)

    def _number(self) -> int:
        self._said += 1
        return self._said - 1

    # -------------------------------------------------------------- learners'

    def take(self, writer: str, incarnation: int, facts: Sequence[Numbered], oldest: int) -> bool:
        """Take the new facts of a message; `oldest`: the oldest number that its sender still has.

        False: nothing is taken, because too much waits for the store, or because this epoch is over.
        """
        if self._closed or self._journal.full:
            return False
        fresh, lost = self._recorder.take(writer, incarnation, oldest, facts)
        if lost is not None:
            self.log(lost)
        self._journal.note(writer, incarnation, fresh)
        return True

    def durable(self, writer: str, incarnation: int) -> int:
        """Return the number to acknowledge: facts up to it are durable, or logged as lost; -1: none."""
        return -1 if self._closed else self._recorder.durable(writer, incarnation)

    async def made_durable(self, writer: str, incarnation: int, last: int, deadline_s: float) -> int:
        """Wait until fact `last` is durable, for at most `deadline_s` seconds; then return what `durable` does."""
        give_up_at = now() + deadline_s
        while self.durable(writer, incarnation) < last and not self._closed:
            try:
                await asyncio.wait_for(self._news.wait(), give_up_at - now())
            except TimeoutError:
                break
        return self.durable(writer, incarnation)

    def recorded(self, runs: Sequence[Recorded]) -> None:
        """The journal has made these facts durable."""
        self._recorder.mark_durable(runs)
        self._news.set()
        self._news = asyncio.Event()

    def close(self) -> None:
        """Take and acknowledge nothing any more."""
        self._closed = True
