"""The orchestrator as a detached Ray actor: it starts a run's actors, keeps them alive, and ends and sums up the run.

Learners and the syncer talk to each other directly, never through it: training continues while it is dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import ray

from learners.checkpoint_writer import SavedPart
from orchestrator.eventlog.fact_log import FactLog
from orchestrator.eventlog.facts import OrchestratorFollowed, RunFinished, RunResumed, RunStarted, SyncerLost
from orchestrator.eventlog.log_writer import LOGS
from orchestrator.eventlog.reader import CHAOS, SEAL_FILE, SYNCER, seal
from orchestrator.lifecycle.checkpointer import REQUEST_FILE, Checkpointer
from orchestrator.lifecycle.patience import Patience
from orchestrator.recipe.config import Recipe
from orchestrator.runtime import run_accounts
from orchestrator.runtime.evaluator import Evaluations
from orchestrator.runtime.learner_manager import LearnerManager
from orchestrator.runtime.placement import RunPlacement, agent_name
from orchestrator.runtime.ray_await import CALL_S, within
from orchestrator.runtime.specs import syncer_spec, versions
from orchestrator.runtime.syncer_manager import NoSyncer, SyncerManager
from orchestrator.store import checkpoints
from orchestrator.store.export import write_final
from orchestrator.store.readers import STATUS_FILE, object_of, status_if_any
from orchestrator.store.run_lock import RunLock
from orchestrator.store.run_store import RunStore
from orchestrator.store.status_model import ENDING, ProgressTracker, RunInfo, model, store_trouble
from outer import heap
from outer.background import Background, end_process, tell
from outer.journal.chain import Segmented, identity
from outer.journal.journal_writer import FOLDER as JOURNAL
from outer.journal.object_store import DRAFT_S, Folder, needing_the_store, objects, sweep
from outer.numeric import codec as codecs
from outer.protocol.facts import StoreWaited
from outer.protocol.manifest import code_digest

POLL_S = 0.2
STATUS_S = 0.5
SNAPSHOT_S = 600.0  # the last one: the whole run depends on it
LEAVE_S = 30.0  # for learners to return once the run is over
CLOSE_S = 60.0  # for what waits to be written to a log, and for that to become segments
LINGER_S = 60.0
NAME = "orchestrator"
ORCHESTRATOR_CPUS = 0.1
OFTEN = ray.method(enable_task_events=False)  # Ray's control store would keep a row of every call


class RunFailed(Exception):
    """The run cannot go on; the message says why."""


class OrchestratorActor:
    """Created detached and named; `run_dir` is the run's store."""

    def __init__(
        self, recipe: Recipe, run_dir: str, placement: RunPlacement, lock: RunLock, waited: StoreWaited | None = None
    ) -> None:
        """`waited`: for so long no orchestrator could start, because the store was away."""
        heap.keep_small()
        self._waited = waited
        self._lock = lock
        self._recipe, self._placement = recipe, placement
        self._store = RunStore(run_dir)
        self._code = code_digest()
        self._objects = objects(recipe.durability.store or self._store.root)
        with needing_the_store():
            self._number = self._store.grant("incarnation", NAME)
            self._log = FactLog(self._objects, NAME, self._number, end_process)
        self._patience, self._unwritten = Patience(), ""  # why the newest status could not be written
        self._learners = LearnerManager(
            recipe,
            placement,
            self._store,
            self._code,
            self._emit,
            lambda: self._over,
            self._objects,
            self._patience,
            self._number,
        )
        self._evaluations = Evaluations(recipe, placement, self._store, self._code, self._emit)
        self._syncer = SyncerManager(
            recipe,
            placement,
            self._store,
            syncer_spec(recipe, self._code, self._objects),
            self._emit,
            self._learners.expected,
            self._reattach,
            self._learners.living_peers,
            self._patience,
            self._number,
            self._replaced,
        )
        self._checkpoints = Checkpointer(
            recipe.durability,
            recipe.config_hash,
            partial(self._store.grant, "checkpoint", "run"),
            self._objects,
            self._syncer,
            self._learners.savers,
            self._emit,
            self._patience,
        )
        self._view: dict[str, Any] = {}
        self._progress = ProgressTracker(time.monotonic)
        self._state, self._reason = "starting", ""
        self._stop_reason = ""
        self._faults: Counter[str] = Counter()  # injected, by kind
        self._started_at = time.time()
        self._digest = ""  # of the final parameters
        self._background = Background(tell)
        self._main: asyncio.Task[dict[str, Any]] | None = None

    def __repr__(self) -> str:
        return NAME

    # -------------------------------------------------------------- called from outside

    @OFTEN
    async def learners(self) -> list[dict[str, Any]]:
        """Running incarnations: the targets of faults."""
        return self._learners.controller.running()

    @OFTEN
    async def syncer(self) -> dict[str, Any]:
        """The syncer as a target of faults; `clock`: where the run is, as of the last look."""
        down = self._syncer.down_s > 0.0
        return {
            "name": "syncer",
            "incarnation": self._syncer.epoch,
            "clock": {key: self._view.get(key) for key in ("running_s", "syncer_step", "finished")},
            **({"pid": None, "node": None} if down else self._syncer.info),
        }

    async def misconfigure(self, learner: str, incarnation: int) -> bool:
        """For chaos: give the next incarnation another recipe. False: this one is gone."""
        return self._learners.misconfigure(learner, incarnation)

    async def injected(self, kind: str) -> None:
        """Chaos has injected a fault."""
        self._faults[kind] += 1

    async def stop(self, reason: str) -> None:
        self._stop_reason = self._stop_reason or reason

    async def begin(self) -> None:
        """Start the run, which goes on even if nobody waits for it. Raises InputError where another works on it."""
        await asyncio.to_thread(self._lock.take)
        self._lock.keep(self._replaced)
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
            await asyncio.to_thread(self._lock.release)
            self._background.spawn(self._leave())

    async def _beat(self) -> None:
        """Keep the status fresh while the run ends: who follows it sees that it is not lost."""
        self._state = ENDING
        while True:
            self._write_status()
            await asyncio.sleep(STATUS_S)

    async def _leave(self) -> None:
        """The process that waits for the summary ends this actor; without one, it ends itself after a while."""
        await asyncio.sleep(LINGER_S)
        ray.kill(ray.get_runtime_context().current_actor)

    # -------------------------------------------------------------- begin

    async def _begin(self) -> None:
        recipe = self._recipe
        left = (status_if_any(self._store) or {}).get("learners") or []  # before the first status replaces it
        self._emit(RunStarted(recipe.name, recipe.config_hash, recipe.seed, versions(self._code)))
        if self._waited is not None:
            self._emit(self._waited)
        self._write_status()
        with contextlib.suppress(OSError):  # the next orchestrator tries it again
            for store in (self._objects, Folder(self._store.root)):
                await asyncio.to_thread(sweep, store, older_s=DRAFT_S)
        epochs = await self._patience.stored(self._store.granted, "epoch", "syncer")
        if epochs and await self._take_over(epochs, left):
            return
        saved = await self._resume(epochs) if epochs else {}
        epoch = await self._syncer.grant()
        self._learners.start(self._syncer, saved, again=epochs > 0)  # beside the syncer, which has to expect them
        self._syncer.begin(epoch)

    async def _take_over(self, epoch: int, rows: Sequence[Mapping[str, Any]]) -> bool:
        """Take over learners and syncer that an earlier orchestrator has left; `rows`: its last status of learners.

        False: there are none.
        """
        learners = await self._patience.until(self._learners.find, {row["name"]: row for row in rows})
        served = await self._syncer.adopt(epoch)
        if not learners and not served:
            return False
        next_epoch = epoch if served else await self._syncer.grant()
        if not served:
            self._emit(SyncerLost(epoch, "died", "an orchestrator that followed another found it so"))
        self._emit(OrchestratorFollowed(epoch if served else 0, tuple(learners)))
        self._learners.start(self._syncer, {}, again=True)
        if served:
            await asyncio.sleep(0)  # for the learner manager to take them over
            self._learners.reattach(self._syncer.handle)  # some may not have attached to it yet
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
        newest = {name: self._store.granted("incarnation", name) for name in manifest.learners}
        exact = set() if found.damage else set(checkpoints.exact_learners(manifest, epochs, newest))
        self._emit(RunResumed(epochs, manifest.snapshot, tuple(sorted(exact)), damaged))
        return {
            name: SavedPart(manifest.snapshot, part.part, part.seal, part.incarnation, name in exact)
            for name, part in manifest.learners.items()
        }

    def _reattach(self, syncer: Any) -> None:
        """Another epoch of the syncer serves."""
        self._learners.reattach(syncer)
        self._evaluations.reattach(syncer)

    async def _call(self, method: str, *arguments: Any, patience_s: float, call_s: float = CALL_S) -> Any:
        """The answer of the syncer, of this epoch or the next."""
        await self._look()  # else a silent syncer would not be noticed
        try:
            return await self._syncer.call(method, *arguments, patience_s=patience_s, call_s=call_s)
        except NoSyncer as error:
            raise RunFailed(str(error)) from error

    # -------------------------------------------------------------- the run

    @property
    def _over(self) -> bool:
        return bool(self._stop_reason or self._view.get("finished"))

    async def _watch(self) -> None:
        status_at = waited_at = 0.0
        moved_at = time.monotonic() + self._recipe.run.start_s  # learners have to come up first
        self._state = "running"
        while True:
            served = await self._look()
            if (failure := self._learners.failure) is not None:
                raise RunFailed("".join(traceback.format_exception(failure)))
            now = time.monotonic()
            if now - status_at >= STATUS_S:
                status_at = now
                self._write_status()
            self._stop_reason = self._stop_reason or self._requested_stop()
            if self._over:
                return
            run = self._recipe.run
            if served and (age := self._view["moved_s_ago"]) is not None:  # a new epoch does not know of any
                moved_at = now - age
            away = self._away or (served and store_trouble(self._view))
            if away or not self._learners.controller.quorum_possible:
                waited_at = now  # a run whose store is away, or learners have no place, waits for as long as that takes
            if now - max(moved_at, waited_at) > run.idle_s:
                every = self._learners.faults | {"evaluator": self._evaluations.fault, "syncer": self._syncer.fault}
                faults = "; ".join(f"{name}: {fault}" for name, fault in every.items() if fault) or "none"
                raise RunFailed(f"no syncer step for {run.idle_s:.0f} s; last faults: {faults}")
            self._learners.watch(self._view["learners"] if served else ())
            if served and self._view["running_s"] is not None:
                self._checkpoints.start_if_due(object_of(self._store, REQUEST_FILE))
                self._evaluations.start_if_due(self._syncer.handle, self._view["syncer_step"], self._number == 1)
            await asyncio.sleep(POLL_S)

    async def _look(self) -> bool:
        """Fetch the syncer's status; the last one stays while none serves. Returns whether one does."""
        try:
            view = await self._syncer.view()
        except NoSyncer as error:
            raise RunFailed(str(error)) from error
        if view is not None:
            self._view = self._progress.of(view)
        return view is not None

    def _requested_stop(self) -> str:
        """Why the run is to stop; empty if it is not. The file requests a stop, whatever is in it."""
        request = object_of(self._store, "stop")
        return "" if request is None else str(request.get("reason") or "stop was requested")

    # -------------------------------------------------------------- the end

    async def _end(self) -> None:
        """After the budget is reached or a stop was requested: learners leave, the result is evaluated and written."""
        if self._stop_reason and self._recipe.sync.overlap == "free":
            await self._suspend()
        else:
            if self._stop_reason:
                await self._call("stop", self._stop_reason, patience_s=SNAPSHOT_S)
            await self._left()
        await self._look()  # what the learners said last is in the final status
        await self._evaluations.finish(self._syncer.handle)
        syncer_step, thetas, fragments = await self._syncer.newest(SNAPSHOT_S)
        left_out = (self._syncer_status().get("task") or {}).get("left_out") or {}
        unsent = await self._evaluations.unsent() if left_out else {}
        await self._patience.stored(write_final, self._store, syncer_step, fragments, thetas, left_out, unsent)
        self._digest = await asyncio.to_thread(codecs.digest, *thetas)

    async def _left(self) -> None:
        """Wait until the learners have left, for LEAVE_S, and for as long as the store refuses their last facts."""
        while await self._learners.leave(LEAVE_S) and await self._look():
            if not (self._view["journal"]["trouble"] or store_trouble(self._view)):
                return

    async def _suspend(self) -> None:
        """Every learner saves its state and leaves, so that the run can be resumed exactly."""
        while not await self._look():
            await asyncio.sleep(POLL_S)
        await self._checkpoints.finish()
        epoch, identifier = self._syncer.epoch, await self._checkpoints.cut(final=self._stop_reason)
        while identifier is not None and self._syncer.epoch == epoch:
            if await self._look() and (self._view["suspended"] or self._view["finished"]):
                break  # a commit under way came first, and perhaps its store
            await asyncio.sleep(POLL_S)
        await self._left()
        if identifier is not None:
            await self._checkpoints.gather(identifier, self._learners.savers(gone=True), final=True)

    async def _close(self, outcome: str) -> dict[str, Any]:
        """In every case: stop chaos and all writers, merge, seal and check the log, and write the summary."""
        self._learners.cancel()
        self._checkpoints.cancel()
        ends: dict[str, Segmented | None] = {CHAOS: None}  # where each log ends
        with contextlib.suppress(ValueError, TimeoutError, ray.exceptions.RayError):  # none, or dead
            ends[CHAOS] = await within(CLOSE_S, ray.get_actor(CHAOS, self._placement.namespace).stop.remote())
        if ends[CHAOS] is None:
            ends[CHAOS] = await self._patience.stored(self._end_of_chaos)
        with contextlib.suppress(TimeoutError, ray.exceptions.RayError):  # it is dead, or about to be
            ends[SYNCER] = await self._syncer.close(CLOSE_S)  # no late report may follow the seal of its log
        self._dismiss()
        self._emit(RunFinished(outcome, self._reason, self._digest))
        while (end := await asyncio.to_thread(self._log.close, CLOSE_S)) is None and self._log.trouble:
            pass  # the store is away
        ends[NAME] = end
        if len(known := {log: end for log, end in ends.items() if end is not None}) == len(LOGS):
            await self._patience.stored(self._store.write_json, SEAL_FILE, seal(known))
        return await self._patience.stored(run_accounts.finish, self._store)

    def _end_of_chaos(self) -> Segmented | None:
        """Where the log ends that a chaos actor has left, perhaps of an earlier session; fences it, if it lives."""
        if not self._store.granted("incarnation", CHAOS):
            return Segmented()
        log = FactLog(self._objects, CHAOS, self._store.grant("incarnation", CHAOS), tell)
        return log.close(CLOSE_S)

    def _dismiss(self) -> None:
        """End every actor of the run except this one, and give their places back."""
        handles = [*self._learners.handles, self._syncer.handle]
        names = {"chaos"} | {agent_name(node["NodeID"]) for node in ray.nodes() if node["Alive"]}
        with contextlib.suppress(OSError):
            names.add(self._evaluations.name)
        for name in names:
            with contextlib.suppress(ValueError):
                handles.append(ray.get_actor(name, self._placement.namespace))
        for handle in handles:
            if handle is not None:
                ray.kill(handle)
        self._learners.actors.release_all()

    # -------------------------------------------------------------- log and status

    def _emit(self, fact: Any) -> None:
        self._log.emit(fact)

    def _replaced(self, why: str) -> None:
        """Another process has the lock, and has taken the run over."""
        print(f"{NAME}: {why}", flush=True)  # in the actor's own log
        os._exit(0)

    def _syncer_status(self) -> dict[str, Any]:
        """Empty before the first epoch."""
        syncer = self._syncer
        return {**syncer.info, "epoch": syncer.epoch, "down_s": syncer.down_s} if syncer.epoch else {}

    @property
    def _away(self) -> str:
        """What a store says that is away, for which the orchestrator or the next epoch waits; empty if none does."""
        return self._unwritten or self._syncer.away or self._log.trouble

    def _write_status(self) -> None:
        """Write the status, if its folder takes it: else the next one says why."""
        learners = self._learners
        about = RunInfo(
            self._state,
            self._reason,
            self._started_at,
            time.time(),
            self._evaluations.loss,
            learners.controller.pools.members,
            os.getpid(),
            self._checkpoints.newest,
            self._away,
            self._evaluations.fault,
            dict(self._evaluations.counts),
            dict(self._faults),
        )
        status = model(self._recipe, about, self._view, self._syncer_status(), learners.placed)
        try:
            self._store.write_json(STATUS_FILE, status)
            self._unwritten = ""
        except OSError as error:
            self._unwritten = f"{type(error).__name__}: {error}"
