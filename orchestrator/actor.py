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
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any

import ray

from learners.actor import GROUPS, EvaluatorActor, LearnerActor, LearnerSpec
from learners.initial import InitialState
from orchestrator import controller, final
from orchestrator.checkers.suite import check
from orchestrator.config import PoolConfig, Recipe
from orchestrator.events import (
    Evaluated,
    Journalist,
    LearnerLost,
    LearnerRequested,
    LearnerStarted,
    NodePreempted,
    PoolScaled,
    ReferenceLosses,
    RunFinished,
    RunStarted,
    SegmentRecorder,
    SegmentWriter,
    read_run,
)
from orchestrator.overview import About, Placed, model
from orchestrator.placement import (
    control,
    draining_nodes,
    hand,
    hand_name,
    inside,
    label,
    remove_placement_group,
    reserve,
    why_not,
)
from orchestrator.report.write import attempt
from orchestrator.scaling import SCALE, requested
from orchestrator.store import RunStore
from orchestrator.summary import summarise
from outer.actor import OuterActor, OuterSpec
from outer.manifest import code_digest
from outer.signals import DrainRequested, Expect
from outer.syncer import Budget

POLL_S = 0.2
STATUS_S = 0.5
CALL_S = 10.0
OUTER_START_S = 120.0
EVALUATION_S = 300.0
SNAPSHOT_S = 600.0  # the last one: the whole run depends on it
LEAVE_S = 30.0  # for learners to return once the run is over
LINGER_S = 60.0
NOTICES_S = 1.0  # between two looks for nodes that are to go
NOTICE_MARGIN_S = 2.0  # a node is left so long before it goes
DRAINED = "drained"
OUTER_CPUS, EVALUATOR_CPUS, ORCHESTRATOR_CPUS = 0.5, 0.5, 0.1
SHARED = ("seed", "task", "model", "data", "inner", "sync")  # what every learner must agree on


@dataclass(frozen=True)
class Place:
    """Where and how this run's actors live."""

    namespace: str
    cores: int  # of the one host, to pin learners to; 0 on clusters

    @property
    def local(self) -> bool:
        return self.cores > 0


@dataclass
class _Running:
    """A learner's newest incarnation, as the shell knows it."""

    incarnation: int
    handle: Any = None
    pid: int | None = None
    node: str | None = None
    ended: str = ""  # why it was ended by us
    leaving: str = ""  # why it was asked to leave


class RunFailed(Exception):
    """The run cannot go on; the message says why."""


class OrchestratorActor:
    def __init__(self, recipe: Recipe, run_dir: str, place: Place) -> None:
        self._recipe, self._place = recipe, place
        self._store = RunStore(run_dir)
        self._code = code_digest()
        self._segment = SegmentWriter(self._store.path("events/orchestrator.jsonl"))
        self._journalist = Journalist("orchestrator", self._store.grant("incarnation", "orchestrator"), time.time)
        run = recipe.run
        self._pools = {pool.name: pool.learners for pool in recipe.pools}  # learners wanted
        self._controller = controller.Controller(recipe.learners, backoff_s=run.restart_backoff_s, hang_s=run.hang_s)
        self._units: dict[str, _Running] = {}
        self._groups: dict[str, Any] = {}
        self._nodes: set[str] = set()  # where learners have been
        self._faults: dict[str, str] = {}
        self._misconfigured: set[str] = set()  # whose next incarnation comes with another recipe
        self._tasks: set[asyncio.Task[None]] = set()
        self._view: dict[str, Any] = {}
        self._state, self._reason = "starting", ""
        self._stop_reason = ""
        self._started_at = time.time()
        self._eval_loss: float | None = None
        self._evaluation: asyncio.Task[None] | None = None
        self._evaluated_at = 0
        self._failure: BaseException | None = None
        self._main: asyncio.Task[dict[str, Any]] | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._outer: Any = None
        self._outer_info: dict[str, Any] = {}
        self._evaluator: Any = None

    def __repr__(self) -> str:
        return "orchestrator"

    # -------------------------------------------------------------- called from outside

    async def learners(self) -> list[dict[str, Any]]:
        """Living incarnations: where a fault can strike."""
        return [
            {"name": name, "incarnation": unit.incarnation, "pid": unit.pid, "node": unit.node}
            for name, unit in self._units.items()
            if unit.pid is not None and self._controller.units[name].state is controller.State.RUNNING
        ]

    async def misconfigure(self, learner: str, incarnation: int) -> bool:
        """Let the incarnation after this one, and only that, come with another recipe. False: this one is gone."""
        unit = self._units.get(learner)
        if unit is None or unit.incarnation != incarnation:
            return False
        self._misconfigured.add(learner)
        return True

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
        self._say(RunStarted(recipe.name, recipe.config_hash, recipe.seed, _versions()))
        self._write_status()
        spec = OuterSpec(
            epoch=self._store.grant("epoch", "syncer"),
            sync=recipe.sync,
            outer=recipe.outer,
            learners={name: pool.batch_size for name, pool in recipe.learners.items()},
            quorum=recipe.quorum,
            span_steps=recipe.data.span_steps,
            budget=Budget(recipe.budget.tokens, recipe.budget.syncer_steps),
            shared=self._shared,
            code=self._code,
        )
        initial = InitialState(recipe.task, recipe.model, recipe.data, recipe.seed, recipe.sync, recipe.warm_start)
        recorder = SegmentRecorder(self._store.path("events/syncer.jsonl"))
        options = self._named("outer", OUTER_CPUS) | control(recipe.run.control, anywhere=self._place.local)
        self._outer = ray.remote(OuterActor).options(**options).remote(spec, initial, recorder)
        self._advance()  # learners come up beside the syncer
        self._outer_info = await _within(OUTER_START_S, self._outer.start.remote())

    @property
    def _shared(self) -> Mapping[str, Any]:
        return {key: value for key, value in self._recipe.canonical().items() if key in SHARED}

    def _named(self, name: str, cpus: float) -> dict[str, Any]:
        return {
            "name": name,
            "namespace": self._place.namespace,
            "lifetime": "detached",
            "num_cpus": cpus,
            "max_restarts": 0,
        }

    def _spec(self, name: str, incarnation: int, pool: PoolConfig, index: int) -> LearnerSpec:
        recipe = self._recipe
        return LearnerSpec(
            name=name,
            incarnation=incarnation,
            task=recipe.task,
            model=recipe.model,
            data=recipe.data,
            inner=recipe.inner,
            sync=recipe.sync,
            seed=recipe.seed,
            batch_size=pool.batch_size,
            slowdown=pool.slowdown,
            start_s=recipe.run.start_s,
            shared=self._shared,
            code=self._code,
            core=index % self._place.cores if self._place.cores else None,
            accelerated=pool.accelerated,
            warm_start=recipe.warm_start,
            devices=pool.devices or (None if pool.accelerated else 1),
            model_parallel=pool.model_parallel,
        )

    # -------------------------------------------------------------- learners

    def _advance(self) -> None:
        self._act(self._controller.advance(time.monotonic()))

    def _act(self, actions: list[controller.Action]) -> None:
        for action in actions:
            match action:
                case controller.Start(name):
                    self._spawn(self._start(name))
                case controller.Drain():
                    self._spawn(self._drain(action, self._recipe.sync.drain_s))
                case controller.End():
                    self._spawn(self._kill(action))

    async def _start(self, name: str) -> None:
        """From the grant of an incarnation to the end of its training loop."""
        recipe, pool = self._recipe, self._recipe.pool_of(name)
        incarnation = self._store.grant("incarnation", name)
        self._controller.started(name, incarnation)
        unit = self._units[name] = _Running(incarnation)
        self._say(LearnerRequested(name, incarnation, pool.name, pool.region))
        try:
            expected = self._outer.expect.remote(
                Expect(name, incarnation, recipe.run.start_s, pool.batch_size, pool.region or "")
            )
            if name not in self._groups:
                self._groups[name] = reserve(name, pool, anywhere=self._place.local)
            group = self._groups[name]
            await _within(recipe.run.start_s, group.ready())
            if unit.ended == DRAINED:  # it was to leave before there was a place for it
                self._left(name, unit)
                return
            index = list(self._controller.units).index(name)
            options = self._named(label(name, incarnation), 0) | inside(group, pool)
            spec = self._spec(name, incarnation, pool, index)
            if name in self._misconfigured:
                self._misconfigured.discard(name)
                # As if its node had an old recipe: it trains the same, and says that it does not.
                spec = replace(spec, shared={**spec.shared, "seed": recipe.seed + 1})
            unit.handle = (
                ray.remote(concurrency_groups=GROUPS)(LearnerActor).options(**options).remote(spec, self._outer)
            )
            info = await _within(recipe.run.start_s, unit.handle.identify.remote())
            unit.pid, unit.node = info["pid"], info["node"]
            self._nodes.add(info["node"])
            self._say(LearnerStarted(name, incarnation, unit.pid, unit.node))
            self._controller.answered(name, incarnation)
            await _within(OUTER_START_S, expected)
            ended = await unit.handle.run.remote()
            if ended.startswith("drained"):
                self._left(name, unit)
            else:
                self._controller.finished(name, incarnation)
        except ray.exceptions.RayTaskError as error:
            await self._lost(name, unit, "failed", _gist(error))
        except ray.exceptions.RayError as error:
            if unit.ended == DRAINED:
                self._left(name, unit)
                return
            await self._lost(name, unit, "lease_expired" if unit.ended else "died", unit.ended or _gist(error))
        except TimeoutError:
            if unit.ended == DRAINED:
                self._left(name, unit)
                return
            why = why_not(self._groups[name], pool, anywhere=self._place.local)
            await self._lost(name, unit, "failed", f"not placed and started within {recipe.run.start_s:g} s{why}")

    async def _lost(self, name: str, unit: _Running, cause: str, detail: str) -> None:
        wait_s = self._controller.lost(time.monotonic(), name, unit.incarnation)
        if wait_s is None:
            return
        self._say(LearnerLost(name, unit.incarnation, cause, detail))
        self._faults[name] = f"{cause}: {detail}"
        if unit.handle is not None:
            ray.kill(unit.handle)  # ends a living actor whose loop failed; no harm to a dead one
        reason = {"died": "killed"}.get(cause, cause)
        await _within(CALL_S, self._outer.fence.remote(name, unit.incarnation, reason))
        if name not in self._controller.wanted:
            self._give_up_place(name)
        if not self._over:
            self._advance()

    async def _drain(self, action: controller.Drain, deadline_s: float) -> None:
        """Ask a learner to leave. One that does not step yet has nothing to lose, and is ended at once."""
        unit = self._units[action.learner]
        unit.leaving = action.reason
        request = DrainRequested(action.learner, unit.incarnation, action.reason, deadline_s)
        if not await _within(CALL_S, self._outer.drain.remote(request)):
            unit.ended = DRAINED
            if unit.handle is not None:
                ray.kill(unit.handle)

    def _left(self, name: str, unit: _Running) -> None:
        """It is gone and has lost nothing. Its place is given back: it may be on a node that goes too."""
        self._controller.left(name, unit.incarnation)
        if unit.handle is not None:
            ray.kill(unit.handle)
        self._give_up_place(name)
        self._faults[name] = f"drained: {unit.leaving or 'its process was told to end'}"
        if not self._over:
            self._advance()

    def _give_up_place(self, name: str) -> None:
        if (group := self._groups.pop(name, None)) is not None:
            remove_placement_group(group)

    def _scale(self) -> None:
        """Make the pools as large as was asked for last."""
        for pool in self._recipe.pools:
            wanted = requested(self._store.read_json(SCALE), pool.name, self._pools[pool.name])
            before, self._pools[pool.name] = self._pools[pool.name], wanted
            added, removed = pool.names(wanted)[before:], pool.names(before)[wanted:]
            if not added and not removed:
                continue
            self._say(PoolScaled(pool.name, wanted, tuple(added), tuple(removed)))
            for name in added:
                self._controller.want(name)
            for name in reversed(removed):
                self._act(self._controller.unwant(name, f"pool {pool.name} is scaled to {wanted}"))

    def _heed_notices(self) -> None:
        """Drain the learners of nodes that have announced their end."""
        for node, remaining_s in draining_nodes().items():
            here = [name for name, unit in self._units.items() if unit.node == node and not unit.leaving]
            actions = [action for name in here for action in self._controller.drain(name, "its node is to go")]
            if actions:
                names = tuple(action.learner for action in actions)
                self._say(NodePreempted(node, names, remaining_s))
            deadline_s = self._recipe.sync.drain_s
            if remaining_s is not None:
                deadline_s = max(1.0, min(deadline_s, remaining_s - NOTICE_MARGIN_S))
            for action in actions:
                assert isinstance(action, controller.Drain)
                self._spawn(self._drain(action, deadline_s))

    async def _kill(self, action: controller.End) -> None:
        """End a process that does not answer. Its training loop's call then fails, and `_start` goes on from there."""
        unit = self._units[action.learner]
        unit.ended = action.reason
        if unit.handle is not None:
            ray.kill(unit.handle)
        try:
            if unit.pid is not None and unit.node is not None:
                await _within(CALL_S, hand(unit.node, self._place.namespace).kill.remote(unit.pid))
        except (ray.exceptions.RayError, TimeoutError) as error:
            await self._lost(action.learner, unit, "lease_expired", f"{action.reason}; {type(error).__name__}")

    # -------------------------------------------------------------- the run

    @property
    def _over(self) -> bool:
        return bool(self._stop_reason or self._view.get("finished"))

    async def _watch(self) -> None:
        status_at, heeded_at, idle_since = 0.0, 0.0, time.monotonic()
        self._state = "running"
        while True:
            try:
                self._view = await _within(CALL_S, self._outer.view.remote())
            except (ray.exceptions.RayError, TimeoutError) as error:
                raise RunFailed(f"the outer optimizer does not answer: {type(error).__name__}") from error
            if self._failure is not None or self._view["failure"]:
                raise RunFailed(self._view["failure"] or repr(self._failure))
            now = time.monotonic()
            if now - status_at >= STATUS_S:
                status_at = now
                self._write_status()
            self._stop_reason = self._stop_reason or self._requested_stop()
            if self._over:
                return
            age, run = self._view["moved_s_ago"], self._recipe.run
            if (now - idle_since - run.start_s if age is None else age) > run.idle_s:
                faults = "; ".join(f"{name}: {fault}" for name, fault in self._faults.items()) or "none"
                raise RunFailed(f"no syncer step for {run.idle_s:.0f} s; last faults: {faults}")
            self._end_silent()
            self._scale()
            if now - heeded_at >= NOTICES_S:
                heeded_at = now
                self._heed_notices()
            self._advance()
            self._evaluate_if_due()
            await asyncio.sleep(POLL_S)

    def _end_silent(self) -> None:
        for row in self._view["learners"]:
            if row["alive"] or row["lease_age_s"] is None:
                continue
            self._faults[row["name"]] = f"silent for {row['lease_age_s']:.1f} s"
            self._act(self._controller.silent(row["name"], row["incarnation"], row["lease_age_s"]))

    def _requested_stop(self) -> str:
        request = self._store.read_json("stop")
        return str(request.get("reason") or "stop was requested") if request else ""

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._failure = self._failure or task.exception()

    # -------------------------------------------------------------- evaluation

    def _evaluate_if_due(self) -> None:
        """At the first step, for the learners need the cores for their own start, and then every so often."""
        every, now = self._recipe.eval.every, self._view["syncer_step"]
        if self._view["running_s"] is None or (self._evaluation is not None and not self._evaluation.done()):
            return
        if self._evaluation is None:
            self._evaluation = asyncio.create_task(self._evaluate(initial=True))
        elif every and now // every > self._evaluated_at // every:
            self._evaluated_at = now
            self._evaluation = asyncio.create_task(self._evaluate())

    async def _evaluate(self, initial: bool = False) -> None:
        """One evaluation. An evaluator that dies is replaced at the next; the learners do not notice."""
        try:
            if self._evaluator is None:
                options = self._named(f"evaluator.{self._store.grant('incarnation', 'evaluator')}", EVALUATOR_CPUS)
                options |= control(self._recipe.run.control, anywhere=self._place.local)
                spec = replace(self._spec("evaluator", 0, self._recipe.pools[0], 0), core=None, accelerated=False)
                evaluator = ray.remote(EvaluatorActor).options(**options)
                self._evaluator = evaluator.remote(spec, self._outer, self._recipe.eval.sequences)
            if initial:
                await self._measure(self._evaluator.initial.remote())
                if self._recipe.eval.ngrams:
                    await self._compare(self._evaluator.references.remote())
            else:
                await self._measure(self._evaluator.current.remote())
            self._faults.pop("evaluator", None)
        except (ray.exceptions.RayError, TimeoutError) as error:
            self._faults["evaluator"] = _gist(error)
            if self._evaluator is not None:
                ray.kill(self._evaluator)
                self._evaluator = None

    async def _measure(self, ref: Any) -> None:
        syncer_step, self._eval_loss, tokens = await _within(EVALUATION_S, ref)
        self._say(Evaluated(syncer_step, self._eval_loss, tokens))

    async def _compare(self, ref: Any) -> None:
        if (tables := await _within(EVALUATION_S, ref)) is not None:
            self._say(ReferenceLosses(*tables))

    # -------------------------------------------------------------- the end

    async def _end(self) -> None:
        """The budget is reached or a stop was asked for: everyone leaves, the result is evaluated and written."""
        if self._stop_reason:
            await _within(CALL_S, self._outer.stop.remote(self._stop_reason))
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=LEAVE_S)
        if self._evaluation is not None:
            await self._evaluation
        await self._evaluate()
        syncer_step, thetas, fragments = await _within(SNAPSHOT_S, self._outer.snapshot.remote())
        final.write(self._store, syncer_step, fragments, thetas)

    async def _close(self) -> dict[str, Any]:
        """Whatever happened: stop injecting, merge the log, check it, and sum it up."""
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(ValueError, TimeoutError, ray.exceptions.RayError):  # none, or dead: faults heal
            await _within(CALL_S, ray.get_actor("chaos", self._place.namespace).stop.remote())
        self._say(RunFinished(self._state, self._reason))
        self._segment.close()
        self._write_status()
        events = read_run(self._store.root)
        self._store.write_text("events.jsonl", "".join(event.to_json() + "\n" for event in events))
        summary = summarise(events, self._recipe, check(events))
        self._store.write_json("summary.json", summary)
        await asyncio.to_thread(attempt, self._store, events)
        return summary

    def _dismiss(self) -> None:
        """End every actor of the run but this one, and give up its places."""
        handles = [unit.handle for unit in self._units.values()] + [self._outer, self._evaluator]
        names = {"chaos"} | {hand_name(node) for node in self._nodes}
        for name in names:
            with contextlib.suppress(ValueError):
                handles.append(ray.get_actor(name, self._place.namespace))
        for handle in handles:
            if handle is not None:
                ray.kill(handle)
        for group in self._groups.values():
            remove_placement_group(group)

    # -------------------------------------------------------------- saying

    def _say(self, fact: Any) -> None:
        self._segment.write([self._journalist.say(fact)])

    def _write_status(self) -> None:
        placed = {name: Placed(unit.pid, unit.node, self._faults.get(name)) for name, unit in self._units.items()}
        about = About(self._state, self._reason, self._started_at, time.time(), self._eval_loss, dict(self._pools))
        self._store.write_json("status.json", model(self._recipe, about, self._view, self._outer_info, placed))


async def _within(seconds: float, ref: Any) -> Any:
    """The value of an object reference, or TimeoutError."""

    async def value() -> Any:
        return await ref

    return await asyncio.wait_for(value(), seconds)


def _gist(error: Exception) -> str:
    """What Ray says of an actor's end, in one line: an exception's own words stand last, a killed process has none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines or "worker process has died" in str(error):
        return "its process ended"
    return lines[-1][:200]


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    packages = {name: version(name) for name in ("ray", "jax", "jaxlib", "optax", "numpy")}
    return packages | {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }
