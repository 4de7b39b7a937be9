"""Writes the journal beside the event loop: whatever has come meanwhile goes into one group.

Never gives up: while the store is full, slow or away, nothing is acknowledged, and `view` says so. Knows nothing of
what the records mean.
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
    """All but `open` is called in the event loop's thread."""

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
        """`durable` is told of each sequence up to which all is; `deposed`, that a newer epoch has opened."""
        self._place = (FOLDER, epoch, fragments, persistent)
        self._journal = StoredJournal(store, *self._place)
        self._durable, self._deposed, self._reach = durable, deposed, reach
        self._executor = ThreadPoolExecutor(1, "journal")
        self._waiting: list[tuple[Entry, Arrays]] = []
        self._writing: asyncio.Task[None] | None = None
        self._since: float | None = None  # when the oldest that is not durable came
        self._trouble = ""
        self._damage: list[str] = []
        self._write_s = 0.0  # the last write's

    @property
    def run(self) -> str:
        """The journal's identity."""
        return self._journal.run

    def open(self) -> Opened:
        """Raises as StoredJournal.open."""
        opened = self._journal.open()
        self._damage = opened.damage
        return opened

    def seed(self, replay: JournalReplay, values: Mapping[int, Value]) -> Recovered:
        """As StoredJournal.seed, once `open` has returned."""
        return self._journal.seed(replay, values)

    async def move(self, store: Objects) -> None:
        """Go on in another store, with everything that is durable in the one before. Raises as StoredJournal.open."""
        await asyncio.get_running_loop().run_in_executor(self._executor, self._begin_anew, store)

    def _begin_anew(self, store: Objects) -> None:
        journal = StoredJournal(store, *self._place)
        journal.open()
        journal.copy_from(self._journal)
        self._journal = journal

    # After a move it is another journal that what waits goes to.

    def _put(self, group: list[tuple[Entry, Arrays]]) -> None:
        self._journal.write(group)

    def _compact(self) -> None:
        self._journal.compact()

    def append(self, entry: Entry, arrays: Arrays) -> None:
        """Have it made durable."""
        self._waiting.append((entry, arrays))
        if self._since is None:
            self._since = time.monotonic()
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write())

    def cut(self) -> asyncio.Future[Cut]:
        """What is durable by now: nothing that is kept from here on, perhaps what is being written."""
        return asyncio.ensure_future(asyncio.get_running_loop().run_in_executor(self._executor, self._journal.cut))

    def view(self) -> dict[str, Any]:
        """For status pages: what is not durable yet, since when, and why."""
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
        except Exception as error:  # nobody reads this task's: the status has to tell why nothing commits
            self._trouble = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._writing = None

    async def _persist(self, work: Callable[..., None], *arguments: Any) -> None:
        """Until it is done. Raises StaleEpoch."""
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
