"""The orchestrator as a detached Ray actor: creates the run's actors, keeps them alive, evaluates, closes the books.

The controller decides; this shell creates, kills, waits with deadlines, and writes down. It never stands between
a learner and the syncer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import time
import traceback
from dataclasses import replace
from typing import Any

import ray

from learners.checkpoint_writer import SavedPart
from orchestrator.accounting.summary import summarise
from orchestrator.checkers.suite import check
from orchestrator.eventlog.facts import (
    Evaluated,
    OrchestratorFollowed,
    ReferenceLosses,
    RunFinished,
    RunResumed,
    RunStarted,
)
from orchestrator.eventlog.seal import SEAL_FILE, seal
from orchestrator.eventlog.segments import EventEmitter, SegmentWriter, ends, read_run
from orchestrator.recipe.config import Recipe
from orchestrator.report.write import attempt
from orchestrator.runtime.checkpointer import REQUEST_FILE, Checkpointer
from orchestrator.runtime.evaluator import EvaluatorActor
from orchestrator.runtime.learner_manager import LearnerManager, learner_spec, shared
from orchestrator.runtime.placement import RunPlacement, agent_name, control, named
from orchestrator.runtime.ray_await import CALL_S, gist, within
from orchestrator.runtime.syncer_manager import NoSyncer, SyncerManager
from orchestrator.store import checkpoints
from orchestrator.store.export import write_final
from orchestrator.store.readers import STATUS_FILE, object_of, status_if_any
from orchestrator.store.run_store import RunStore
from orchestrator.store.status_model import ProgressTracker, RunInfo, model
from outer.actor import SyncerSpec
from outer.journal.identity import identity
from outer.journal.object_store import objects
from outer.journal.writer import FOLDER as JOURNAL
from outer.numeric import codec as codecs
from outer.protocol.manifest import code_digest
from outer.protocol.syncer import Budget

POLL_S = 0.2
STATUS_S = 0.5
EVALUATION_S = 300.0
SNAPSHOT_S = 600.0  # the last one: the whole run depends on it
LEAVE_S = 30.0  # for learners to return once the run is over
LINGER_S = 60.0
EVALUATOR_CPUS, ORCHESTRATOR_CPUS = 0.5, 0.1


class RunFailed(Exception):
    """The run cannot go on; the message says why."""


class OrchestratorActor:
    def __init__(self, recipe: Recipe, run_dir: str, place: RunPlacement) -> None:
        self._recipe, self._place = recipe, place
        self._store = RunStore(run_dir)
        self._code = code_digest()
        self._segment = SegmentWriter(self._store.path("events/orchestrator.jsonl"))
        self._journalist = EventEmitter("orchestrator", self._store.grant("incarnation", "orchestrator"), time.time)
        self._kept = objects(recipe.durability.store or self._store.root)
        self._crew = LearnerManager(recipe, place, self._store, self._code, self._say, lambda: self._over, self._kept)
        self._checkpointer: Checkpointer | None = None
        self._view: dict[str, Any] = {}
        self._overall = ProgressTracker(time.monotonic)
        self._state, self._reason = "starting", ""
        self._stop_reason = ""
        self._started_at = time.time()
        self._eval_loss: float | None = None
        self._digest = ""  # of the final parameters
        self._evaluation: asyncio.Task[None] | None = None
        self._evaluated_at = 0
        self._main: asyncio.Task[dict[str, Any]] | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._succession: SyncerManager | None = None
        self._evaluator: Any = None

    def __repr__(self) -> str:
        return "orchestrator"

    # -------------------------------------------------------------- called from outside

    async def learners(self) -> list[dict[str, Any]]:
        """Living incarnations: where a fault can strike."""
        return self._crew.living()

    async def syncer(self) -> dict[str, Any]:
        """Where a fault can strike the syncer, and where the run is: `clock`, as of the last look."""
        assert self._succession is not None
        down = self._succession.down_s > 0.0
        return {
            "name": "syncer",
            "incarnation": self._succession.epoch,
            "clock": {key: self._view.get(key) for key in ("running_s", "syncer_step", "finished")},
            **({"pid": None, "node": None} if down else self._succession.info),
        }

    async def misconfigure(self, learner: str, incarnation: int) -> bool:
        """For chaos: the next incarnation comes with another recipe. False: this one is gone."""
        return self._crew.misconfigure(learner, incarnation)

    async def stop(self, reason: str) -> None:
        self._stop_reason = self._stop_reason or reason

    async def begin(self) -> None:
        """Start the run; it goes on whether or not anyone waits for it."""
        self._main = asyncio.create_task(self._run())

    async def result(self) -> dict[str, Any]:
        """The summary, once the run has ended."""
        assert self._main is not None, "the run has not begun"
        return await asyncio.shield(self._main)

    async def _run(self) -> dict[str, Any]:
        try:
            await self._begin()
            await self._watch()
            self._state = "stopped" if self._stop_reason else "finished"
            self._reason = self._stop_reason or self._view["finished"]
            await self._end()
        except Exception as error:
            self._state = "failed"
            self._reason = str(error) if isinstance(error, RunFailed) else traceback.format_exc()
        try:
            return await self._close()
        finally:
            self._dismiss()
            self._leaving = asyncio.create_task(self._leave())

    async def _leave(self) -> None:
        """Whoever waits for the summary ends this actor; if nobody does, it ends itself after a while."""
        await asyncio.sleep(LINGER_S)
        ray.kill(ray.get_runtime_context().current_actor)

    # -------------------------------------------------------------- begin

    async def _begin(self) -> None:
        recipe = self._recipe
        self._say(RunStarted(recipe.name, recipe.config_hash, recipe.seed, _versions() | {"code": self._code}))
        self._write_status()
        spec = SyncerSpec(
            epoch=0,
            sync=recipe.sync,
            outer=recipe.outer,
            learners={name: pool.batch_size for name, pool in recipe.learners.items()},
            quorum=recipe.quorum,
            span_steps=recipe.data.span_steps,
            ahead_s=recipe.data.ahead_s,
            budget=Budget(recipe.budget.tokens, recipe.budget.syncer_steps),
            shared=shared(recipe),
            code=self._code,
            store=self._kept,
            durability=recipe.durability.mode,
        )
        epochs = self._store.granted("epoch", "syncer")
        self._succession = SyncerManager(
            recipe,
            self._place,
            self._store,
            spec,
            self._say,
            self._crew.expected,
            self._follow,
            self._crew.handles_alive,
        )
        if epochs and await self._take_over(epochs):
            return
        saved = await self._resume(epochs) if epochs else {}
        self._crew.start(self._succession, saved)  # learners come up beside the syncer, which is to hear of them all
        self._succession.begin()

    async def _take_over(self, epoch: int) -> bool:
        """Go on with what trains without an orchestrator. False: nothing does."""
        assert self._succession is not None
        rows = (status_if_any(self._store) or {}).get("learners") or []
        learners = await self._crew.find({row["name"]: row for row in rows})
        served = await self._succession.adopt(epoch)
        if not learners and not served:
            return False
        self._say(OrchestratorFollowed(epoch if served else 0, tuple(learners)))
        self._crew.start(self._succession, {})
        if served:
            await asyncio.sleep(0)  # for the crew to take them over
            self._crew.follow(self._succession.handle)  # some may not have heard of it yet
        else:
            self._succession.begin()
        return True

    async def _resume(self, epochs: int) -> dict[str, SavedPart]:
        """What learners start from, in a run that was begun before."""
        run = await asyncio.to_thread(identity, self._kept, JOURNAL)
        found = await asyncio.to_thread(checkpoints.resumption, self._kept, run)
        damaged = tuple(f"checkpoint {snapshot}: {wrong}" for snapshot, wrong in found.damage)
        if (manifest := found.manifest) is None:
            self._say(RunResumed(epochs, 0, (), damaged))
            return {}
        newest = {name: self._store.granted("incarnation", name) for name in manifest.learners}
        exact = set() if found.damage else set(checkpoints.exact_learners(manifest, epochs, newest))
        self._say(RunResumed(epochs, manifest.snapshot, tuple(sorted(exact)), damaged))
        return {
            name: SavedPart(manifest.snapshot, part.part, part.seal, part.incarnation, name in exact)
            for name, part in manifest.learners.items()
        }

    def _follow(self, outer: Any) -> None:
        """Another epoch of the syncer serves."""
        self._crew.follow(outer)
        if self._evaluator is not None:
            self._evaluator.turn_to.remote(outer)

    async def _tell(self, method: str, *arguments: Any, patience_s: float, call_s: float = CALL_S) -> Any:
        """What the syncer answers, or its successor."""
        assert self._succession is not None
        await self._look()  # nobody else would notice that it is silent
        try:
            return await self._succession.tell(method, *arguments, patience_s=patience_s, call_s=call_s)
        except NoSyncer as error:
            raise RunFailed(str(error)) from error

    # -------------------------------------------------------------- the run

    @property
    def _over(self) -> bool:
        return bool(self._stop_reason or self._view.get("finished"))

    async def _watch(self) -> None:
        assert self._succession is not None
        status_at, moved_at = 0.0, time.monotonic() + self._recipe.run.start_s  # learners have to come up first
        self._state = "running"
        while True:
            served = await self._look()
            if self._crew.failure is not None or self._view.get("failure"):
                raise RunFailed(self._view.get("failure") or repr(self._crew.failure))
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
            if now - moved_at > run.idle_s:
                faults = "; ".join(f"{name}: {fault}" for name, fault in self._crew.faults.items()) or "none"
                raise RunFailed(f"no syncer step for {run.idle_s:.0f} s; last faults: {faults}")
            self._crew.watch(self._view["learners"] if served else ())
            if served:
                await self._succession.keep_replica()
            if served and self._view["running_s"] is not None:
                self._checkpoints.heed(object_of(self._store, REQUEST_FILE))
            if served:
                self._evaluate_if_due()
            await asyncio.sleep(POLL_S)

    @property
    def _checkpoints(self) -> Checkpointer:
        assert self._succession is not None
        if self._checkpointer is None:
            run = str(self._succession.info["run"])
            self._checkpointer = Checkpointer(
                self._recipe, run, self._store, self._kept, self._succession, self._crew.savers, self._say
            )
        return self._checkpointer

    async def _look(self) -> bool:
        """Whether a syncer serves; how it sees the run. What the last has shown stays until then."""
        assert self._succession is not None
        try:
            view = await self._succession.view()
        except NoSyncer as error:
            raise RunFailed(str(error)) from error
        if view is not None:
            self._view = self._overall.of(view)
        return view is not None

    def _requested_stop(self) -> str:
        """Why the run is to stop. Whatever is in the file, that it is there asks for it."""
        request = object_of(self._store, "stop")
        return "" if request is None else str(request.get("reason") or "stop was requested")

    # -------------------------------------------------------------- evaluation

    def _evaluate_if_due(self) -> None:
        """At the first step, for the learners need the cores for their own start, and then every so often."""
        every, now = self._recipe.eval.every, self._view["syncer_step"]
        if self._view["running_s"] is None or (self._evaluation is not None and not self._evaluation.done()):
            return
        if self._evaluation is None:
            first = self._store.granted("incarnation", "orchestrator") == 1
            self._evaluation = asyncio.create_task(self._evaluate(initial=first))
        elif every and now // every > self._evaluated_at // every:
            self._evaluated_at = now
            self._evaluation = asyncio.create_task(self._evaluate())

    async def _evaluate(self, initial: bool = False, last: bool = False) -> None:
        """One evaluation, and after the last one what to compare it with: counting takes as long as many evaluations.

        An evaluator that dies is replaced at the next; the learners do not notice.
        """
        try:
            if self._evaluator is None:
                name = f"evaluator.{self._store.grant('incarnation', 'evaluator')}"
                options = named(name, self._place.namespace, EVALUATOR_CPUS)
                options |= control(self._recipe.run.control, anywhere=self._place.local)
                pool = self._recipe.pools[0]
                spec = learner_spec(self._recipe, self._code, "evaluator", 0, pool, core=None)
                spec = replace(spec, accelerated=False)
                evaluator = ray.remote(EvaluatorActor).options(**options)
                assert self._succession is not None
                self._evaluator = evaluator.remote(spec, self._succession.handle, self._recipe.eval.sequences)
            await self._measure((self._evaluator.initial if initial else self._evaluator.current).remote())
            if last and self._recipe.eval.ngrams:
                await self._compare(self._evaluator.references.remote())
            self._crew.faults.pop("evaluator", None)
        except (ray.exceptions.RayError, TimeoutError) as error:
            self._crew.faults["evaluator"] = gist(error)
            if self._evaluator is not None:
                ray.kill(self._evaluator)
                self._evaluator = None

    async def _measure(self, ref: Any) -> None:
        syncer_step, self._eval_loss, tokens, unit = await within(EVALUATION_S, ref)
        self._say(Evaluated(syncer_step, self._eval_loss, tokens, unit))

    async def _compare(self, ref: Any) -> None:
        if (tables := await within(EVALUATION_S, ref)) is not None:
            self._say(ReferenceLosses(*tables))

    # -------------------------------------------------------------- the end

    async def _end(self) -> None:
        """The budget is reached or a stop was asked for: everyone leaves, the result is evaluated and written."""
        if self._stop_reason and self._recipe.sync.overlap == "free":
            await self._suspend()
        else:
            if self._stop_reason:
                await self._tell("stop", self._stop_reason, patience_s=SNAPSHOT_S)
            await self._crew.leave(LEAVE_S)
        if self._evaluation is not None:
            await self._evaluation
        await self._evaluate(last=True)
        syncer_step, thetas, fragments = await self._tell("snapshot", patience_s=SNAPSHOT_S, call_s=SNAPSHOT_S)
        write_final(self._store, syncer_step, fragments, thetas)
        self._digest = codecs.digest(*thetas)

    async def _suspend(self) -> None:
        """Everybody saves and leaves, so that the run can go on another time as if nothing had been."""
        while not await self._look():
            await asyncio.sleep(POLL_S)
        await self._checkpoints.rest()
        identifier = await self._checkpoints.cut(final=self._stop_reason)
        await self._crew.leave(LEAVE_S)
        if identifier is not None:
            await self._checkpoints.gather(identifier, self._crew.savers(gone=True), final=True)

    async def _close(self) -> dict[str, Any]:
        """Whatever happened: stop injecting, end who writes, merge the log and seal it, check it, and sum it up."""
        self._crew.cancel()
        with contextlib.suppress(ValueError, TimeoutError, ray.exceptions.RayError):  # none, or dead: faults heal
            await within(CALL_S, ray.get_actor("chaos", self._place.namespace).stop.remote())
        if self._succession is not None:  # a late report would stand in the syncer's segment behind the seal
            with contextlib.suppress(TimeoutError, ray.exceptions.RayError):  # it is dead, or about to be
                await self._succession.close()
        self._dismiss()
        self._say(RunFinished(self._state, self._reason, self._digest))
        self._segment.close()
        self._write_status()
        events = read_run(self._store.root)
        self._store.write_text("events.jsonl", "".join(event.to_json() + "\n" for event in events))
        self._store.write_json(SEAL_FILE, seal(ends(events)))
        summary = summarise(events, self._recipe, check(events))
        self._store.write_json("summary.json", summary)
        await asyncio.to_thread(attempt, self._store, events)
        return summary

    def _dismiss(self) -> None:
        """End every actor of the run but this one, and give up its places."""
        handles = [*self._crew.handles, self._evaluator]
        if self._succession is not None:
            handles += [self._succession.handle, self._succession.replica]
        names = {"chaos"} | {agent_name(node) for node in self._crew.nodes}
        for name in names:
            with contextlib.suppress(ValueError):
                handles.append(ray.get_actor(name, self._place.namespace))
        for handle in handles:
            if handle is not None:
                ray.kill(handle)
        self._crew.give_up_places()

    # -------------------------------------------------------------- saying

    def _say(self, fact: Any) -> None:
        self._segment.write([self._journalist.say(fact)])

    def _syncer_status(self) -> dict[str, Any]:
        if self._succession is None:
            return {}
        replica = {"replica": self._succession.replica_info}
        return {**self._succession.info, **replica, "epoch": self._succession.epoch, "down_s": self._succession.down_s}

    def _write_status(self) -> None:
        crew = self._crew
        newest = self._checkpointer.newest if self._checkpointer is not None else None
        when = (self._started_at, time.time())
        about = RunInfo(self._state, self._reason, *when, self._eval_loss, dict(crew.pools), os.getpid(), newest)
        self._store.write_json(STATUS_FILE, model(self._recipe, about, self._view, self._syncer_status(), crew.placed))


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    packages = {name: version(name) for name in ("ray", "jax", "jaxlib", "optax", "numpy")}
    return packages | {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }
