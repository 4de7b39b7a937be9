"""The syncer's parts of checkpoints: cut at once, in order with the commits, and written when they are asked for."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray

from outer.journal import checkpoint_parts
from outer.journal.groups import JournalCut
from outer.journal.journal_writer import JournalWriter
from outer.journal.object_store import Objects, StoreAway, needing_the_store
from outer.ports import now
from outer.protocol.fragments import Fragment

if TYPE_CHECKING:
    from outer.bulk import Bulk

POLL_S = 0.05
CUTS_MAX = 2  # cuts that wait to be written; each keeps the values of a whole model alive


class _Cut(NamedTuple):
    committed: asyncio.Future[JournalCut]
    bulk: Bulk
    initial: Mapping[int, NDArray[Any]]  # by fragment: without a commit so far


class Snapshots:
    """The cuts of one epoch; `store` is where checkpoints are. Of cuts that nobody wrote, only the newest are kept."""

    def __init__(
        self,
        epoch: int,
        fragments: Sequence[Fragment],
        store: Objects,
        journal: JournalWriter,
        left_out: Mapping[str, str] | None = None,  # leaves that are in no fragment, by name
    ) -> None:
        self._epoch, self._fragments, self._store, self._journal = epoch, fragments, store, journal
        self._left_out = left_out
        self._cuts: dict[int, _Cut] = {}  # by snapshot, oldest first, until they are written
        self._taken = 0  # the newest
        self.expected = 0  # the newest that this epoch was asked to take

    def cut(self, snapshot: int, bulk: Bulk) -> None:
        """Everything committed so far belongs to the snapshot."""
        self._cuts[snapshot] = _Cut(self._journal.cut(), bulk, bulk.mark(snapshot))
        self._taken = snapshot
        while len(self._cuts) > CUTS_MAX:
            self._cuts.pop(next(iter(self._cuts))).committed.cancel()

    async def write(self, snapshot: int, deadline_s: float, over: Callable[[], bool]) -> dict[str, Any]:
        """Write the part, after those of the shards; returns their descriptions, and the place in the run. Nothing is
        cut once the run is `over`.

        Raises TimeoutError, RuntimeError, LookupError, OSError, FileExistsError; StoreAway: it can be called again.
        """
        give_up_at = now() + deadline_s
        while snapshot not in self._cuts:  # a commit under way comes first
            if snapshot <= self._taken:
                raise OSError(f"snapshot {snapshot} is written, or was dropped for newer ones: {self._taken} is taken")
            if snapshot != self.expected or over():
                raise OSError(f"snapshot {snapshot} was asked of an earlier epoch, or the run was over before it")
            if now() >= give_up_at:
                raise TimeoutError(f"snapshot {snapshot} was not taken within {deadline_s:g} s")
            await asyncio.sleep(POLL_S)
        committed, bulk, initial = taken = self._cuts.pop(snapshot)
        cut = await asyncio.wait_for(committed, max(0.0, give_up_at - now()))
        left_s = max(0.0, give_up_at - now())
        try:
            with needing_the_store():
                apart = await asyncio.wait_for(bulk.save(snapshot, cut.state["versions"]), left_s)
                header, arrays = cut.part(self._epoch, snapshot, self._fragments, initial, self._left_out, apart)
                write = functools.partial(
                    checkpoint_parts.write, self._store, snapshot, checkpoint_parts.SYNCER, header, arrays
                )
                described = await asyncio.get_running_loop().run_in_executor(None, write)
        except StoreAway:
            self._cuts[snapshot] = taken
            raise
        for older in [each for each in self._cuts if each < snapshot]:  # while it was written, the store was away
            self._cuts.pop(older).committed.cancel()
        where = {"syncer_step": max(cut.state["versions"]), "tokens_committed": cut.state["tokens_committed"]}
        return {"parts": [described, *apart], "epoch": self._epoch, **where}
