"""Writes the journal in a background thread: all entries that arrive during a write form the next group.

It retries for ever. While the store is full, slow or unreachable nothing is acknowledged, and `view` says why.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from outer.journal.journal import Arrays, Cut, Opened, StaleEpoch, StoredJournal, Value
from outer.journal.object_store import Objects
from outer.protocol.recovery import Entry, JournalReplay, Recovered

FOLDER = "journal"
BACKOFF_S, BACKOFF_S_MAX = 0.05, 2.0  # between two attempts to write; doubles


class JournalWriter:
    """The journal of one epoch, for the syncer's shell. Call everything except `open` in the event loop's thread."""

    def __init__(
        self,
        store: Objects,
        epoch: int,
        fragments: int,
        durable: Callable[[int], None],
        deposed: Callable[[str], None],
        reach: Callable[[str], None],
        persistent: bool = True,
    ) -> None:
        """`durable(n)`: all entries up to sequence n are durable. `deposed(reason)`: a newer epoch has opened.

        `reach(name)` is called at "journaling" and "journaled". `persistent`: as for StoredJournal.
        """
        self._arguments = (FOLDER, epoch, fragments, persistent)
        self._journal = StoredJournal(store, *self._arguments)
        self._durable, self._deposed, self._reach = durable, deposed, reach
        self._executor = ThreadPoolExecutor(1, "journal")
        self._waiting: list[tuple[Entry, Arrays]] = []
        self._writing: asyncio.Task[None] | None = None
        self._since: float | None = None  # when the oldest entry that is not durable arrived
        self._trouble = ""
        self._damage: list[str] = []
        self._write_s = 0.0  # duration of the last write

    @property
    def run(self) -> str:
        """The journal's identity."""
        return self._journal.run

    def open(self) -> Opened:
        """Open the epoch. Raises as StoredJournal.open."""
        opened = self._journal.open()
        self._damage = opened.damage
        return opened

    def seed(self, replay: JournalReplay, values: Mapping[int, Value]) -> Recovered:
        """As StoredJournal.seed. Call it after `open`."""
        return self._journal.seed(replay, values)

    async def move(self, store: Objects) -> None:
        """Continue in another store, starting with everything durable so far. Raises as StoredJournal.open."""
        await asyncio.get_running_loop().run_in_executor(self._executor, self._open_in, store)

    def _open_in(self, store: Objects) -> None:
        journal = StoredJournal(store, *self._arguments)
        journal.open()
        journal.copy_from(self._journal)
        self._journal = journal

    # Looked up at each call: after `move`, waiting entries go to the new journal.

    def _put(self, group: list[tuple[Entry, Arrays]]) -> None:
        self._journal.write(group)

    def _compact(self) -> None:
        self._journal.compact()

    def append(self, entry: Entry, arrays: Arrays) -> None:
        """Make an entry durable; `durable` reports it."""
        self._waiting.append((entry, arrays))
        if self._since is None:
            self._since = time.monotonic()
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write())

    def cut(self) -> asyncio.Future[Cut]:
        """Everything durable by now, perhaps including the group being written, but no later entry."""
        return asyncio.ensure_future(asyncio.get_running_loop().run_in_executor(self._executor, self._journal.cut))

    def view(self) -> dict[str, Any]:
        """For status pages: how long entries have been waiting, and why."""
        return {
            "waiting_s": 0.0 if self._since is None else time.monotonic() - self._since,
            "trouble": self._trouble,
            "damage": self._damage,
            "bytes": self._journal.bytes_written,
            "groups": self._journal.groups_written,
            "write_s": self._write_s,
        }

    async def _write(self) -> None:
        try:
            while self._waiting:
                group, self._waiting = self._waiting, []
                self._reach("journaling")
                began = time.monotonic()
                await self._persist(self._put, group)
                self._write_s = time.monotonic() - began
                self._reach("journaled")
                self._since = time.monotonic() if self._waiting else None
                self._durable(group[-1][0].sequence)
                if self._journal.needs_compaction:
                    await self._persist(self._compact)
        except StaleEpoch as error:
            self._deposed(str(error))
        except Exception as error:  # no one awaits this task; `view` has to say why nothing commits
            self._trouble = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._writing = None

    async def _persist(self, work: Callable[..., None], *arguments: Any) -> None:
        """Retry `work` until it succeeds. Raises StaleEpoch."""
        backoff_s = BACKOFF_S
        while True:
            try:
                await asyncio.get_running_loop().run_in_executor(self._executor, work, *arguments)
                self._trouble = ""
                return
            except OSError as error:
                self._trouble = f"{type(error).__name__}: {error}"
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)
