"""The syncer's parts of checkpoints: cut at once, in order with the commits, and written when they are asked for."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from outer.journal import checkpoint_parts
from outer.journal.journal import Cut
from outer.journal.object_store import Objects
from outer.journal.writer import JournalWriter
from outer.protocol.fragments import Fragment

if TYPE_CHECKING:
    from outer.numeric.parameters import GlobalParameters

POLL_S = 0.05


class Snapshots:
    """Of one epoch; `store` is where checkpoints are."""

    def __init__(self, epoch: int, fragments: Sequence[Fragment], store: Objects, journal: JournalWriter) -> None:
        self._epoch, self._fragments, self._store, self._journal = epoch, fragments, store, journal
        self._cuts: dict[int, asyncio.Future[Cut]] = {}  # by snapshot, until they are written
        self._initial: dict[int, dict[int, NDArray[Any]]] = {}  # by snapshot, then fragment: without a commit so far

    def cut(self, snapshot: int, parameters: GlobalParameters) -> None:
        """Everything committed so far belongs to the snapshot."""
        self._cuts[snapshot] = self._journal.cut()
        versions, thetas = parameters.versions, parameters.thetas
        self._initial[snapshot] = {n: thetas[n] for n, version in enumerate(versions) if version == 0}

    async def write(self, snapshot: int, deadline_s: float) -> dict[str, Any]:
        """Write the part; returns its seal, size and place in the run.

        Raises TimeoutError, OSError, FileExistsError.
        """
        give_up_at = time.monotonic() + deadline_s
        while snapshot not in self._cuts:  # a commit under way comes first
            if time.monotonic() >= give_up_at:
                raise TimeoutError(f"snapshot {snapshot} was not taken within {deadline_s:g} s")
            await asyncio.sleep(POLL_S)
        cut = await asyncio.wait_for(self._cuts.pop(snapshot), max(0.0, give_up_at - time.monotonic()))
        header, arrays = cut.part(self._epoch, snapshot, self._fragments, self._initial.pop(snapshot))
        write = functools.partial(
            checkpoint_parts.write, self._store, snapshot, checkpoint_parts.SYNCER, header, arrays
        )
        described = await asyncio.get_running_loop().run_in_executor(None, write)
        where = {"syncer_step": max(cut.state["versions"]), "tokens_committed": cut.state["tokens_committed"]}
        return described | where | {"epoch": self._epoch}
