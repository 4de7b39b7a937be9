"""The orchestrator's shell: it starts a run's processes, keeps them alive, and ends the run.

Learners and the syncer talk to each other directly, never through it: training continues while it is dead, and the next
one takes over what lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import traceback
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from learners.checkpoint_writer import SavedPart
from orchestrator.eventlog.facts import OrchestratorFollowed, RunFinished, RunResumed, RunStarted, SyncerLost
from orchestrator.lifecycle.checkpointer import REQUEST_FILE, Checkpointer
from orchestrator.lifecycle.learner_manager import STARTS, LearnerManager
from orchestrator.lifecycle.patience import Patience
from orchestrator.lifecycle.ports import Ports
from orchestrator.lifecycle.requests import STOP_FILE
from orchestrator.lifecycle.syncer_manager import RunFailed, SyncerManager
from orchestrator.recipe.config import Recipe
from orchestrator.store import checkpoints
from orchestrator.store import status_text as words
from orchestrator.store.readers import STATUS_FILE, object_of
from orchestrator.store.status_model import ENDING, ProgressTracker, RunInfo, model, store_trouble
from outer.background import Background, tell
from outer.journal.chain import Segmented, identity
from outer.journal.journal_writer import FOLDER as JOURNAL
from outer.ports import NoAnswer, Peer, now
from outer.protocol.facts import StoreWaited
from outer.spec import SyncerSpec

STATUS_S = 0.5
SNAPSHOT_S = 600.0  # the last one: the whole run depends on it
LEAVE_S = 30.0  # for learners to return once the run is over
CLOSE_S = 60.0  # for what waits to be written to a log, and for that to become segments


class OrchestratorShell:
    """One orchestrator of a run; `number`: which. What of a run is beside its learners and syncer, subclasses add."""

    poll_s = 0.2

    def __init__(
        self,
        recipe: Recipe,
        ports: Ports,
        spec: SyncerSpec,
        number: int,
        versions: dict[str, str],
        waited: StoreWaited | None = None,
    ) -> None:
        """`spec` holds for every epoch, except for its number; `versions`: what the run is made with; `waited`: for so
        long no orchestrator could start, because the store was away.
        """
        self._recipe, self._ports, self._number, self._versions, self._waited = recipe, ports, number, versions, waited
        self._records, self._objects, self._emit = ports.records, ports.objects, ports.emit
        self._patience, self._unwritten = Patience(), ""  # why the newest status could not be written
        self._unsure = set[str]()  # learners that an earlier orchestrator left where nobody answers
        self._learners = LearnerManager(recipe, ports, lambda: self._over, self._patience, number)
        asked = self._learners.expected, self._reached, lambda: tuple(peer for _, _, peer in self._learners.savers())
        self._syncer = SyncerManager(recipe.run, ports, spec, *asked, self._patience, number)
        self._checkpoints = Checkpointer(
            recipe.durability,
            recipe.config_hash,
            partial(self._records.grant, "checkpoint", "run"),
            self._objects,
            self._syncer,
            self._learners.savers,
            self._emit,
            self._patience,
        )
        self._view: dict[str, Any] = {}
        self._progress = ProgressTracker(now)
        self._state, self._reason = "starting", ""
        self._stop_reason = ""
        self._faults: Mapping[str, int] = {}  # injected, by kind
        self._started_at = time.time()
        self._digest = ""  # of the final parameters
        self._background = Background(tell)
        self._main: asyncio.Task[dict[str, Any]] | None = None

    # -------------------------------------------------------------- called from outside

    async def stop(self, reason: str) -> None:
        self._stop_reason = self._stop_reason or reason

    async def begin(self) -> None:
        """Start the run, which goes on even if nobody waits for it."""
        self._main = self._background.spawn(self._run())

    async def result(self) -> dict[str, Any]:
        """The summary, once the run has ended."""
        assert self._main is not None, "the run has not begun"
        return await asyncio.shield(self._main)

    async def _run(self) -> dict[str, Any]:
        outcome, beating = "failed", None
        try:
            await self._begin()
            await self._watch()
            self._reason = self._stop_reason or self._view["finished"]
            beating = self._background.spawn(self._beat())
            await self._end()
            outcome = "stopped" if self._stop_reason else "finished"
        except Exception as error:
            self._reason = str(error) if isinstance(error, RunFailed) else traceback.format_exc()
        beating = beating or self._background.spawn(self._beat())
        try:
            return await self._close(outcome)
        finally:
            beating.cancel()
            self._state = outcome
            self._write_status()
            self._dismiss()
            await self._ended()

    async def _beat(self) -> None:
        """Keep the status fresh while the run ends: who follows it sees that it is not lost."""
        self._state = ENDING
        while True:
            self._write_status()
            await asyncio.sleep(STATUS_S)

    # -------------------------------------------------------------- what a subclass adds

    async def _tidy(self) -> None:
        """Remove what earlier processes left unfinished in the store."""

    def _beside(self) -> None:
        """A syncer serves, and learners step. Called several times a second."""

    async def _conclude(self) -> None:
        """The learners have left: evaluate and write the result."""

    async def _end_others(self) -> None:
        """End what else writes a log."""

    async def _sum_up(self, syncer: Segmented | None) -> dict[str, Any]:
        """Close the orchestrator's log, and write the summary. `syncer`: where the syncer's log ends."""
        return {}

    async def _ended(self) -> None:
        """The run is over, and its processes are ended."""

    def _other_faults(self) -> dict[str, str]:
        """The last thing that went wrong with each further process."""
        return {}

    # -------------------------------------------------------------- begin

    async def _begin(self) -> None:
        recipe = self._recipe
        left = object_of(self._records, STATUS_FILE) or {}  # before another replaces it
        ended = words.part(left, "run").get("state") in words.ENDED  # then what lingers was told to end
        self._emit(RunStarted(recipe.name, recipe.config_hash, recipe.seed, self._versions))
        if self._waited is not None:
            self._emit(self._waited)
        self._write_status()
        await self._tidy()
        epochs = await self._patience.stored(self._records.granted, "epoch", "syncer")
        if await self._patience.stored(checkpoints.suspended, self._objects, epochs):
            await self._end_left(epochs)
        elif epochs and not ended and await self._take_over(epochs, left.get("learners") or []):
            return
        saved = await self._resume(epochs) if epochs else {}
        epoch = await self._syncer.grant()
        self._learners.start(self._syncer, saved, again=epochs > 0)  # beside the syncer, which has to expect them
        self._syncer.begin(epoch)

    async def _end_left(self, epoch: int) -> None:
        """End what a suspended session has left: its orchestrator may have died before it did."""
        await self._patience.until(self._learners.find, {})
        self._learners.give_up()
        if (syncer := self._ports.processes.left_syncer(epoch)) is not None:
            self._ports.processes.end(syncer)

    async def _take_over(self, epoch: int, rows: Sequence[Mapping[str, Any]]) -> bool:
        """Take over learners and syncer that an earlier orchestrator has left; `rows`: its last status of learners.

        False: there are none.
        """
        learners = await self._patience.until(self._learners.find, {row["name"]: row for row in rows})
        served = await self._syncer.adopt(epoch)
        if not served and not set(learners) - (silent := self._learners.silent()):
            self._learners.give_up()
            self._unsure = silent
            return False
        next_epoch = epoch if served else await self._syncer.grant()
        if not served:
            self._emit(SyncerLost(epoch, "died", "an orchestrator that followed another found it so"))
        self._emit(OrchestratorFollowed(epoch if served else 0, tuple(learners)))
        self._learners.start(self._syncer, {}, again=True)
        if served:
            await asyncio.sleep(0)  # for the learner manager to take them over
            assert self._syncer.peer is not None
            self._learners.reattach(self._syncer.peer)  # some may not have attached to it yet
        else:
            self._syncer.begin(next_epoch)
        return True

    async def _resume(self, epochs: int) -> dict[str, SavedPart]:
        """Return the state that learners start from in a resumed run."""
        run = await self._patience.stored(identity, self._objects, JOURNAL)
        found = await self._patience.stored(checkpoints.resumption, self._objects, run)
        damaged = tuple(f"checkpoint {snapshot}: {wrong}" for snapshot, wrong in found.damage)
        if (manifest := found.manifest) is None:
            self._emit(RunResumed(epochs, 0, (), damaged))
            return {}
        newest = {name: self._records.granted("incarnation", name) for name in manifest.learners}
        exact = set() if found.damage else set(checkpoints.exact_learners(manifest, epochs, newest)) - self._unsure
        self._emit(RunResumed(epochs, manifest.snapshot, tuple(sorted(exact)), damaged))
        return {
            name: SavedPart(manifest.snapshot, part.part, part.seal, part.incarnation, name in exact)
            for name, part in manifest.learners.items()
        }

    def _reached(self, syncer: Peer) -> None:
        """Another epoch of the syncer serves."""
        self._learners.reattach(syncer)

    # -------------------------------------------------------------- the run

    @property
    def _over(self) -> bool:
        return bool(self._stop_reason or self._view.get("finished"))

    async def _watch(self) -> None:
        status_at = waited_at = 0.0
        moved_at = now() + self._recipe.run.start_s  # learners have to come up first
        self._state = "running"
        while True:
            served = await self._look()
            if (failure := self._learners.failure) is not None:
                raise RunFailed("".join(traceback.format_exception(failure)))
            at = now()
            if at - status_at >= STATUS_S:
                status_at = at
                self._write_status()
            self._stop_reason = self._stop_reason or self._requested_stop()
            if self._over:
                return
            run = self._recipe.run
            if served and (age := self._view["moved_s_ago"]) is not None:  # a new epoch does not know of any
                moved_at = at - age
            away = self._away or (served and store_trouble(self._view))
            starts = any(row["alive"] and row["phase"] in STARTS for row in self._view.get("learners", ()))
            if away or (starts and not self._learners.faults) or not self._learners.controller.quorum_possible:
                waited_at = at  # for a store that is away, for places and slow starts it waits for as long as they take
            if at - max(moved_at, waited_at) > run.idle_s:
                every = self._learners.faults | self._other_faults() | {"syncer": self._syncer.fault}
                faults = "; ".join(f"{name}: {fault}" for name, fault in every.items() if fault) or "none"
                raise RunFailed(f"no syncer step for run.idle_s = {run.idle_s:g} s; last faults: {faults}")
            self._learners.watch(self._view["learners"] if served else ())
            if served and self._view["running_s"] is not None:
                self._checkpoints.start_if_due(object_of(self._records, REQUEST_FILE))
                self._beside()
            await asyncio.sleep(self.poll_s)

    async def _look(self) -> bool:
        """Fetch the syncer's status; the last one stays while none serves. Returns whether one does."""
        view = await self._syncer.view()
        if view is not None:
            self._view = self._progress.of(view)
        return view is not None

    def _requested_stop(self) -> str:
        """Why the run is to stop; empty if it is not. The file requests a stop, whatever is in it."""
        request = object_of(self._records, STOP_FILE)
        return "" if request is None else str(request.get("reason") or "stop was requested")

    # -------------------------------------------------------------- the end

    async def _end(self) -> None:
        """After the budget is reached or a stop was requested: learners leave, the result is evaluated and written."""
        if self._stop_reason and self._recipe.sync.overlap == "free":
            await self._suspend()
        else:
            if self._stop_reason:
                await self._look()  # else a silent syncer would not be noticed
                await self._syncer.call("stop", self._stop_reason, patience_s=SNAPSHOT_S)
            await self._left()
        await self._look()  # what the learners said last is in the final status
        await self._conclude()

    async def _left(self) -> None:
        """Wait until the learners have left, for LEAVE_S, and for as long as the store refuses their last facts."""
        while await self._learners.leave(LEAVE_S) and await self._look():
            if not (self._view["journal"]["trouble"] or store_trouble(self._view)):
                return

    async def _suspend(self) -> None:
        """Every learner saves its state and leaves, so that the run can be resumed exactly."""
        self._checkpoints.cancel()  # a learner that missed its cut may let it wait for minutes
        epoch, identifier, give_up_at = 0, None, now() + SNAPSHOT_S
        while not ((served := await self._look()) and (self._view["suspended"] or self._view["finished"])):
            if served and self._syncer.epoch != epoch:  # the first, or the one that was asked died before the cut
                epoch, identifier = self._syncer.epoch, await self._checkpoints.cut(final=self._stop_reason)
            if identifier is None and served:
                epoch = 0  # it is asked again
                if now() >= give_up_at:
                    break
            await asyncio.sleep(self.poll_s)  # a commit under way comes first, and perhaps its store
        suspended = self._view["suspended"]
        await self._left()
        if identifier is not None and suspended:
            await self._checkpoints.gather(identifier, self._learners.savers(gone=True), final=True)

    async def _close(self, outcome: str) -> dict[str, Any]:
        """In every case: end all writers, and sum up."""
        self._learners.cancel()
        self._checkpoints.cancel()
        await self._end_others()
        end = None
        with contextlib.suppress(TimeoutError, NoAnswer):  # it is dead, or about to be
            end = await self._syncer.close(CLOSE_S)  # no late report may follow the seal of its log
        self._dismiss()
        self._emit(RunFinished(outcome, self._reason, self._digest))
        return await self._sum_up(end)

    def _dismiss(self) -> None:
        """End every process of the run except this one, and give their places back."""
        syncer = self._syncer.peer
        for process in [*self._learners.peers, *([] if syncer is None else [syncer])]:
            self._ports.processes.end(process)
        self._learners.processes.release_all()

    # -------------------------------------------------------------- status

    def _syncer_status(self) -> dict[str, Any]:
        """Empty before the first epoch."""
        syncer = self._syncer
        return {**syncer.info, "epoch": syncer.epoch, "down_s": syncer.down_s} if syncer.epoch else {}

    @property
    def _away(self) -> str:
        """What a store says that is away, for which the orchestrator or the next epoch waits; empty if none does."""
        return self._unwritten or self._syncer.away

    def _about(self) -> RunInfo:
        run = self._state, self._reason, self._started_at, time.time(), None, self._learners.controller.pools.members
        return RunInfo(*run, os.getpid(), self._checkpoints.newest, self._away, faults=self._faults)

    def _write_status(self) -> None:
        """Write the status, if its folder takes it: else the next one says why."""
        status = model(self._recipe, self._about(), self._view, self._syncer_status(), self._learners.placed)
        try:
            self._records.write_json(STATUS_FILE, status)
            self._unwritten = ""
        except OSError as error:
            self._unwritten = f"{type(error).__name__}: {error}"
