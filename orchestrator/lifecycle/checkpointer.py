"""Takes checkpoints of a running job: a consistent cut, a part from each learner and the syncer, and a manifest.

Nothing stops for it. A learner that does not write its part in time is left out. The format is in
orchestrator/store/checkpoints.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from orchestrator.eventlog.facts import CheckpointFailed, CheckpointWritten
from orchestrator.lifecycle.patience import Patience
from orchestrator.lifecycle.ports import CALL_S, gist
from orchestrator.lifecycle.syncer_manager import SyncerManager
from orchestrator.recipe.config import DurabilityConfig
from orchestrator.store import checkpoints
from orchestrator.store.checkpoints import CheckpointManifest, CheckpointPart
from outer.background import Background, tell
from outer.journal.object_store import Objects, StoreAway
from outer.ports import NoAnswer, Peer, Raised, now

SAVE_S = 120.0  # for a part to be written
AGAIN_S = 1.0  # between two attempts to have a final part written
SYNCER_S = 60.0  # for a syncer to take the cut
REQUEST_FILE = checkpoints.REQUEST_FILE
Savers = Callable[[], Sequence[tuple[str, int, Peer]]]  # (learner, incarnation, process) of those with a state


class Checkpointer:
    """Takes one checkpoint at a time, once a syncer serves. `grant` gives the next one's number."""

    def __init__(
        self,
        durability: DurabilityConfig,
        config_hash: str,
        grant: Callable[[], int],
        store: Objects,
        syncer: SyncerManager,
        savers: Savers,
        emit: Callable[[Any], None],
        patience: Patience,
    ) -> None:
        self.newest: dict[str, Any] | None = None  # as `checkpoints.describe`, for status pages
        self._durability, self._config_hash, self._grant, self._store = durability, config_hash, grant, store
        self._syncer, self._savers, self._emit, self._patience = syncer, savers, emit, patience
        self._due_at: float | None = None  # the first one, so long after the first look
        self._requested: Any = None  # the last request that was carried out
        self._background = Background(tell)
        self._task: asyncio.Task[None] | None = None

    def start_if_due(self, request: Any) -> None:
        """Take a checkpoint when it is time, or when a new request is there. Called several times a second."""
        if self._task is not None:
            if not self._task.done():
                return
            self._task = None
        at, every_s = now(), self._durability.every_s
        if self._due_at is None:
            self._due_at = at + every_s
        asked = request is not None and request != self._requested
        if asked or (every_s and at >= self._due_at):
            self._requested = request
            self._task = self._background.spawn(self._take())

    def cancel(self) -> None:
        """The run is over, or its last checkpoint comes: give up the one under way, if any."""
        if self._task is not None:
            self._task.cancel()

    async def _take(self) -> None:
        try:
            savers, identifier = list(self._savers()), await self.cut()
            if identifier is not None:
                await self.gather(identifier, savers)
        finally:
            self._due_at = now() + self._durability.every_s

    async def cut(self, final: str = "") -> int | None:
        """Begin a snapshot; returns its number, or None if there is no syncer or the run is over."""
        identifier = await self._patience.stored(self._grant)
        try:
            taken = await self._syncer.call("snapshot_now", identifier, final, patience_s=SYNCER_S)
        except Exception as error:
            self._emit(CheckpointFailed(identifier, gist(error)))
            return None
        return identifier if taken else None

    async def gather(self, identifier: int, savers: Sequence[tuple[str, int, Any]], final: bool = False) -> bool:
        """Collect the parts of a snapshot, and write the manifest. False: it failed, and the log says why."""
        began = now()
        try:
            ask = partial(self._syncer.call, "kept", identifier, SAVE_S, patience_s=SAVE_S, call_s=SAVE_S)
            kept = await self._asked(ask, final)
            given = await asyncio.gather(*(self._part(peer, identifier, final) for _, _, peer in savers))
            parts = [CheckpointPart(**each) for each in kept["parts"]]
            parts += [CheckpointPart(**each) for each in given if each is not None]
            manifest = CheckpointManifest(
                snapshot=identifier,
                run=self._syncer.run,
                config_hash=self._config_hash,
                final=final,
                epoch=kept["epoch"],
                syncer_step=kept["syncer_step"],
                tokens_committed=kept["tokens_committed"],
                created_at=time.time(),
                parts=parts,
                omitted=[name for (name, _, _), each in zip(savers, given, strict=True) if each is None],
            )
            write = partial(asyncio.to_thread, checkpoints.write, self._store, manifest)
            await (self._patience.until(write) if final else write())
        except Exception as error:
            self._emit(CheckpointFailed(identifier, gist(error)))
            return False
        seconds = now() - began
        self._emit(
            CheckpointWritten(
                identifier, manifest.syncer_step, final, manifest.bytes, tuple(manifest.omitted), round(seconds, 3)
            )
        )
        self.newest = {"snapshot": identifier, "at": manifest.created_at, "syncer_step": manifest.syncer_step}
        try:
            await asyncio.to_thread(checkpoints.retire, self._store, self._durability.keep)
        except OSError as error:  # too many checkpoints do no harm
            self._emit(CheckpointFailed(identifier, f"older ones could not be removed: {error}"))
        return True

    async def _asked(self, ask: Callable[[], Awaitable[Any]], final: bool) -> Any:
        """An answer. For a final part, which nothing follows, the store is waited for."""
        while True:
            try:
                return await ask()
            except (StoreAway, Raised) as error:
                if not final or not isinstance(error.__cause__ if isinstance(error, Raised) else error, StoreAway):
                    raise
            await asyncio.sleep(AGAIN_S)

    async def _part(self, peer: Peer, identifier: int, final: bool) -> dict[str, Any] | None:
        """The description of a learner's part; None if there is none."""

        def ask() -> Awaitable[Any]:
            return asyncio.wait_for(peer.ask("saved", identifier, SAVE_S), SAVE_S + CALL_S)

        try:
            described: dict[str, Any] | None = await self._asked(ask, final)
            return described
        except (NoAnswer, TimeoutError):
            return None  # dead, frozen, or unable to write: it recovers from a peer instead
