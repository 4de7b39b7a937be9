"""Writes the journal and the log in a background thread: everything that arrives during a write forms the next group.

A record is written at once, with all facts that wait; facts alone wait for at most `FLUSH_S`. It retries for ever.
While the store is full, slow or unreachable nothing is acknowledged, and `view` says why. After any other error the
epoch writes nothing more, for that would be behind a gap: the next epoch gets all that was not acknowledged again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from outer.background import Background, Failed
from outer.journal.chain import Segmented, Segmenter
from outer.journal.groups import SYNCER, Arrays, FactRun, Item, JournalCut, Logged, Value
from outer.journal.journal import Opened, StaleEpoch, StoredJournal
from outer.journal.object_store import Objects
from outer.journal.values import Stored
from outer.ports import now
from outer.protocol.facts import StateRebuilt
from outer.protocol.recorder import Numbered, Recorded
from outer.protocol.recovery import Entry, JournalReplay, Recovered

FOLDER = "journal"
FLUSH_S, FLUSH_REMOTE_S = 0.25, 1.0  # for which facts may wait: on a disk; where requests are dear
WAITING_FACTS_MAX = 2**17  # then `full`: learners keep theirs. Also of the syncer's own; then the epoch ends
WAITED_S = 2.0  # for which a write may take without being told
BACKOFF_S, BACKOFF_S_MAX = 0.05, 2.0  # between two attempts to write; doubles


class JournalWriter:
    """The journal of one epoch, for the syncer's shell. Call it in the event loop's thread."""

    def __init__(
        self,
        store: Objects,
        epoch: int,
        fragments: int,
        durable: Callable[[int], object],
        deposed: Callable[[str], None],
        failed: Failed,
        reach: Callable[[str], None],
        persistent: bool = True,
        recorded: Callable[[Sequence[Recorded]], None] = lambda _: None,
        segmenter: Segmenter | None = None,
        apart: bool = False,
        waited: Callable[[float, str], object] = lambda seconds, why: None,
    ) -> None:
        """`recorded(runs)`: these facts are durable. `durable(n)`: all entries up to sequence n are; said after it.

        `deposed(reason)`: a newer epoch has opened. `failed(error)`: this one cannot go on. `reach(name)` is called at
        "journaling" and "journaled".
        `waited(seconds, why)`: a write took longer than WAITED_S. `persistent`, `segmenter`, `apart`: as for
        StoredJournal.
        """
        self._journal = StoredJournal(store, FOLDER, epoch, fragments, persistent, segmenter, apart)
        self._durable, self._deposed, self._reach, self._recorded = durable, deposed, reach, recorded
        self._waited = waited
        self._executor = ThreadPoolExecutor(1, "journal")
        self._upkeep_executor = ThreadPoolExecutor(1, "segments")
        self._waiting: list[Item] = []
        self._facts_waiting = self._own_waiting = 0  # of them, those of the syncer
        self._flush_s = FLUSH_REMOTE_S if store.retries else FLUSH_S
        self._urgent = False  # whether a record waits
        self._broken = False  # a write failed, and not because the store is away
        self._background = Background(failed)
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._upkeep: asyncio.Task[None] | None = None
        self._since: float | None = None  # when the oldest record that is not durable arrived
        self._trouble = self._upkeep_trouble = ""
        self._damage: list[str] = []
        self._write_s = 0.0  # duration of the last write

    @property
    def run(self) -> str:
        """The journal's identity."""
        return self._journal.run

    @property
    def full(self) -> bool:
        """Whether so many facts wait that learners must keep theirs."""
        return self._facts_waiting >= WAITING_FACTS_MAX

    async def open(self) -> Opened:
        """Open the epoch. Raises as StoredJournal.open."""
        opened = await asyncio.get_running_loop().run_in_executor(self._executor, self._journal.open)
        self._damage = opened.damage
        return opened

    async def seed(self, replay: JournalReplay, values: Mapping[int, Value], rebuilt: StateRebuilt) -> Recovered:
        """Start over from this state, as StoredJournal.seed. Call it after `open`."""
        seed = partial(self._journal.seed, replay, values, rebuilt)
        return await asyncio.get_running_loop().run_in_executor(self._executor, seed)

    def append(self, entry: Entry, arrays: Arrays, number: int, at: float, stored: Stored | None = None) -> None:
        """Make a record durable, as the syncer's fact of this number and time; `durable` reports it."""
        self._waiting.append(Logged(entry, number, at, arrays, stored))
        self._count(1, own=True)
        self._urgent = True
        if self._since is None:
            self._since = now()
        self._begin()

    def note(self, writer: str, incarnation: int, facts: Sequence[Numbered]) -> None:
        """Make facts durable; `recorded` reports them. Numbered without a gap. Not a learner's while it is `full`.

        Raises OverflowError when too many of the syncer's own wait: the store has refused everything for hours.
        """
        if not facts:
            return
        self._waiting.append(FactRun(writer, incarnation, facts))
        self._count(len(facts), own=writer == SYNCER)
        if self._own_waiting > WAITING_FACTS_MAX:
            raise OverflowError(f"{self._own_waiting} facts of the syncer wait for the store: {self._trouble}")
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._flush_s, self._flush)

    def _count(self, facts: int, own: bool) -> None:
        self._facts_waiting += facts
        self._own_waiting += facts if own else 0

    def _flush(self) -> None:
        self._timer = None
        self._urgent = True
        self._begin()

    def _begin(self) -> None:
        if self._writing is None and not self._broken:
            self._writing = self._background.spawn(self._write())

    def cut(self) -> asyncio.Future[JournalCut]:
        """Everything durable by now, perhaps including the group being written, but no later entry."""
        return asyncio.ensure_future(asyncio.get_running_loop().run_in_executor(self._executor, self._journal.cut))

    async def finish(self) -> Segmented:
        """Write what waits, and bring all of it into segments; returns where the log ends. Nothing may follow.

        Waits as long as the store refuses. Raises RuntimeError if this epoch cannot write any more.
        """
        while not self._broken and (self._waiting or self._writing is not None):
            self._flush()
            assert self._writing is not None
            await asyncio.wait([self._writing])
        if self._broken:
            raise RuntimeError(f"this epoch writes nothing more: {self._trouble}")
        if self._upkeep is not None:
            await asyncio.wait([self._upkeep])
        await self._persist(self._upkeep_executor, self._journal.finish)
        return self._journal.segmented

    def view(self) -> dict[str, Any]:
        """For status pages: how long records have been waiting, how many facts wait, and why."""
        journal = self._journal
        return {
            "waiting_s": 0.0 if self._since is None else now() - self._since,
            "facts_waiting": self._facts_waiting,
            "full": self.full,
            "trouble": self._trouble or self._upkeep_trouble,
            "damage": self._damage,
            "bytes": journal.bytes_written,
            "groups": journal.groups_written,
            "facts": journal.rows,
            "segments": journal.segmented.segments,
            "write_s": self._write_s,
        }

    async def _write(self) -> None:
        try:
            while self._waiting and self._urgent:
                items, self._waiting = self._waiting, []
                self._urgent = False
                if self._timer is not None:
                    self._timer.cancel()
                    self._timer = None
                await self._write_group(items)
                if self._journal.needs_compaction:
                    self._keep_up(await self._persist(self._executor, self._journal.compact))
        except StaleEpoch as error:
            self._deposed(str(error))
        except Exception as error:
            self._broken, self._trouble = True, f"{type(error).__name__}: {error}"
            raise
        finally:
            self._writing = None

    async def _write_group(self, items: Sequence[Item]) -> None:
        logged = [item for item in items if isinstance(item, Logged)]
        if logged:
            self._reach("journaling")
        began = now()
        runs = await self._persist(self._executor, self._journal.write, items)
        self._write_s = now() - began
        for item in items:
            facts = 1 if isinstance(item, Logged) else len(item.facts)
            self._count(-facts, own=isinstance(item, Logged) or item.writer == SYNCER)
        self._recorded(runs)
        if logged:
            self._reach("journaled")
            waits = any(isinstance(item, Logged) for item in self._waiting)
            self._since = now() if waits else None
            self._durable(logged[-1].entry.sequence)

    def _keep_up(self, removable: Sequence[int]) -> None:
        """Remove groups and make segments beside the writing, one such task at a time."""
        if self._upkeep is None:
            self._upkeep = self._background.spawn(self._maintain(removable))

    async def _maintain(self, removable: Sequence[int]) -> None:
        journal, loop = self._journal, asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._upkeep_executor, journal.remove, removable)
            if journal.needs_segment:
                await loop.run_in_executor(self._upkeep_executor, journal.segment)
            self._upkeep_trouble = ""
        except Exception as error:  # tried again after the next snapshot
            self._upkeep_trouble = f"{type(error).__name__}: {error}"
        finally:
            self._upkeep = None

    async def _persist(self, executor: ThreadPoolExecutor, work: Callable[..., Any], *arguments: Any) -> Any:
        """Retry `work` until it succeeds. Raises StaleEpoch."""
        backoff_s, began = BACKOFF_S, now()
        while True:
            try:
                done = await asyncio.get_running_loop().run_in_executor(executor, work, *arguments)
                waited_s, why, self._trouble = now() - began, self._trouble, ""
                if waited_s > WAITED_S and executor is self._executor:
                    self._waited(waited_s, why or "it did not answer")
                return done
            except OSError as error:
                self._trouble = f"{type(error).__name__}: {error}"
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)
