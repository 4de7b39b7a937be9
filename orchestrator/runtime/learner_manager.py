"""The learner units as Ray actors: placed, started, watched, asked to leave, ended and replaced.

The controller decides whom; this shell carries it out, waits with deadlines, and says what happened. Knows nothing
of evaluation, of the run's end or of its books.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ray

from learners.actor import GROUPS, LearnerActor, LearnerSpec
from learners.checkpoint_writer import SavedPart
from orchestrator.eventlog.events import LearnerLost, LearnerRequested, LearnerStarted, NodePreempted, PoolScaled
from orchestrator.lifecycle import controller
from orchestrator.lifecycle.scaling import request_file, requested
from orchestrator.recipe.config import PoolConfig, Recipe
from orchestrator.runtime.placement import (
    RunPlacement,
    draining_nodes,
    get_placement_group,
    hand,
    inside,
    label,
    named,
    pending_reason,
    remove_placement_group,
    reserve,
)
from orchestrator.runtime.ray_await import CALL_S, gist, within
from orchestrator.runtime.syncer_manager import SyncerManager
from orchestrator.store.readers import object_of
from orchestrator.store.run_store import RunStore
from orchestrator.store.status_model import Placed
from outer.journal.object_store import Objects
from outer.protocol.events_effects import DrainRequested, Expect

SYNCER_S = 240.0  # for a syncer to be there and hear of a learner
REATTACH_S = 60.0
MISCONFIGURED_S = 30.0  # chaos ends the incarnation at once; if it does not, the fault heals by itself
NOTICES_S = 1.0  # between two looks for nodes that are to go
NOTICE_MARGIN_S = 2.0  # a node is left so long before it goes
DRAINED, FINISHED = "drained", "finished"  # how an incarnation ends that is no loss
NOTICE = "its node is to go"
SHARED = ("seed", "task", "model", "data", "inner", "sync")  # what every learner must agree on


@dataclass
class Unit:
    """A learner's newest incarnation, as the shell knows it."""

    incarnation: int
    saved: SavedPart | None = None  # what it starts from
    handle: Any = None
    outer: Any = None  # the epoch that it was told of last
    pid: int | None = None
    node: str | None = None
    ended: str = ""  # why it was ended by us
    leaving: str = ""  # why it was asked to leave
    leave_by: float = 0.0  # monotonic seconds
    noticed: bool = False  # that its node is to go
    dismissed: asyncio.Event = field(default_factory=asyncio.Event)  # to leave before it has begun
    gone: bool = False  # what follows from its end is under way, or done


class LearnerManager:
    """`say` writes a fact to the log; `over` tells whether the run is, so that nobody is replaced any more;
    `kept` is where learners save their state.
    """

    def __init__(
        self,
        recipe: Recipe,
        place: RunPlacement,
        store: RunStore,
        code: str,
        say: Callable[[Any], None],
        over: Callable[[], bool],
        kept: Objects,
    ) -> None:
        run = recipe.run
        self.faults: dict[str, str] = {}  # what last befell each
        self.pools = {pool.name: pool.learners for pool in recipe.pools}  # learners wanted
        self.failure: BaseException | None = None  # of this shell itself
        self._recipe, self._place, self._store, self._code = recipe, place, store, code
        self._say, self._over, self._objects = say, over, kept
        self._controller = controller.Controller(recipe.learners, backoff_s=run.restart_backoff_s, hang_s=run.hang_s)
        self._succession: SyncerManager | None = None
        self._units: dict[str, Unit] = {}
        self._groups: dict[str, Any] = {}
        self._nodes: set[str] = set()  # where learners have been
        self._misconfigured: dict[str, float] = {}  # whose next incarnation has another recipe, if it comes by then
        self._tasks: set[asyncio.Task[None]] = set()
        self._heeded_at = float("-inf")
        self._saved: dict[str, SavedPart] = {}  # what each may start from the first time
        self._found: dict[str, Unit] = {}  # those that an earlier orchestrator has left

    def start(self, succession: SyncerManager, saved: Mapping[str, SavedPart]) -> None:
        """Let all wanted learners come, beside the syncer's first epoch, those from what they have saved."""
        self._succession, self._saved = succession, dict(saved)
        self._advance()

    async def find(self, statuses: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Look for learners that an earlier orchestrator has left; `statuses`: its last words on each, by name."""
        names = dict.fromkeys([*self._controller.wanted, *statuses])
        found = await asyncio.gather(*(self._left_behind(name, statuses.get(name, {})) for name in names))
        self._found = {name: unit for name, unit in zip(names, found, strict=True) if unit is not None}
        return list(self._found)

    async def _left_behind(self, name: str, status: Mapping[str, Any]) -> Unit | None:
        incarnation = self._store.granted("incarnation", name)
        try:
            handle = ray.get_actor(label(name, incarnation), self._place.namespace)
            info = await within(CALL_S, handle.identify.remote())
        except (ValueError, ray.exceptions.RayError):
            return None
        except TimeoutError:
            info = status  # it is frozen, perhaps: its lease will tell
        return Unit(incarnation, handle=handle, pid=info.get("pid"), node=info.get("node"))

    def expected(self) -> tuple[Expect, ...]:
        """The incarnations that live, or are about to."""
        return tuple(self._expect(name, unit.incarnation) for name, unit in self._units.items() if not unit.gone)

    def _expect(self, name: str, incarnation: int) -> Expect:
        pool = self._recipe.pool_of(name)
        return Expect(name, incarnation, self._recipe.run.start_s, pool.batch_size, pool.region or "")

    def follow(self, outer: Any) -> None:
        """Another epoch of the syncer serves: everybody is to turn to it."""
        for name, unit in self._units.items():
            if unit.handle is not None and not unit.gone and unit.outer is not outer:
                unit.outer = outer
                self._spawn(self._reattach(name, unit, outer))
            if unit.leaving and not unit.gone:
                left_s = max(1.0, unit.leave_by - time.monotonic())
                self._spawn(self._drain(controller.Drain(name, unit.incarnation, unit.leaving), left_s))

    async def _reattach(self, name: str, unit: Unit, outer: Any) -> None:
        try:
            refusal = await within(REATTACH_S, unit.handle.reattach.remote(outer))
        except (ray.exceptions.RayError, TimeoutError):
            return  # dead, or frozen: its own end tells, or its lease
        if refusal and not unit.gone:
            self._act([controller.End(name, unit.incarnation, f"refused by the syncer: {refusal}")])

    async def _tell(self, method: str, *arguments: Any) -> Any:
        assert self._succession is not None
        return await self._succession.tell(method, *arguments, patience_s=SYNCER_S)

    def watch(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """To be called often, with what the syncer knows of the learners."""
        self._end_silent(rows)
        self._scale()
        now = time.monotonic()
        if now - self._heeded_at >= NOTICES_S:
            self._heeded_at = now
            self._heed_notices()
        self._advance()

    # -------------------------------------------------------------- what others may ask

    def living(self) -> list[dict[str, Any]]:
        """Living incarnations: where a fault can strike."""
        return [
            {"name": name, "incarnation": unit.incarnation, "pid": unit.pid, "node": unit.node}
            for name, unit in self._units.items()
            if unit.pid is not None and self._controller.units[name].state is controller.State.RUNNING
        ]

    def misconfigure(self, learner: str, incarnation: int) -> bool:
        """Let the incarnation after this one, and only that, come with another recipe. False: this one is gone."""
        unit = self._units.get(learner)
        if unit is None or unit.incarnation != incarnation:
            return False
        self._misconfigured[learner] = time.monotonic() + MISCONFIGURED_S
        return True

    @property
    def placed(self) -> dict[str, Placed]:
        return {name: Placed(unit.pid, unit.node, self.faults.get(name)) for name, unit in self._units.items()}

    # -------------------------------------------------------------- the end

    async def leave(self, seconds: float) -> None:
        """Wait until every training loop has returned, but no longer."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    def savers(self, gone: bool = False) -> list[tuple[str, int, Any]]:
        """(learner, incarnation, handle) of those who may have a state to save; `gone`: whose loops have returned."""
        units = self._units.items()
        return [(name, u.incarnation, u.handle) for name, u in units if u.handle is not None and u.gone is gone]

    def handles_alive(self) -> tuple[Any, ...]:
        return tuple(handle for _, _, handle in self.savers())

    @property
    def handles(self) -> list[Any]:
        return [unit.handle for unit in self._units.values() if unit.handle is not None]

    @property
    def nodes(self) -> frozenset[str]:
        """Where learners have been."""
        return frozenset(self._nodes)

    def give_up_places(self) -> None:
        for name in list(self._groups):
            self._give_up_place(name)

    # -------------------------------------------------------------- one learner after another

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
        """From the grant of an incarnation to what follows from its end."""
        if (found := self._found.pop(name, None)) is not None:
            self._controller.started(name, found.incarnation)
            self._units[name] = found
            await self._attend(name, found, self._live_on(name, found))
            return
        saved = self._saved.pop(name, None)
        exact = saved is not None and saved.exact
        incarnation = saved.incarnation if saved is not None and exact else self._store.grant("incarnation", name)
        self._controller.started(name, incarnation)
        unit = self._units[name] = Unit(incarnation, saved=saved)
        await self._attend(name, unit, self._live(name, unit))

    async def _attend(self, name: str, unit: Unit, life: Coroutine[Any, Any, str]) -> None:
        """To its end, and what follows from that."""
        incarnation = unit.incarnation
        try:
            cause, detail = await life, ""
        except ray.exceptions.RayTaskError as error:
            cause, detail = "failed", gist(error)
        except ray.exceptions.RayError as error:
            cause, detail = "lease_expired" if unit.ended else "died", unit.ended or gist(error)
        except TimeoutError:
            why = pending_reason(self._groups[name], self._recipe.pool_of(name), anywhere=self._place.local)
            cause, detail = "failed", f"not placed and started within {self._recipe.run.start_s:g} s{why}"
        if DRAINED in (cause, unit.ended):
            await self._left(name, unit)
        elif cause == FINISHED:
            unit.gone = True
            self._controller.finished(name, incarnation)
        else:
            await self._lost(name, unit, cause, detail)

    async def _live_on(self, name: str, unit: Unit) -> str:
        """It was there before this orchestrator."""
        self._groups[name] = get_placement_group(name)
        if unit.node is not None:
            self._nodes.add(unit.node)
        self._controller.answered(name, unit.incarnation)
        ended: str = await unit.handle.run.remote()
        return DRAINED if ended.startswith("drained") else FINISHED

    async def _live(self, name: str, unit: Unit) -> str:
        """From its request to the end of its training loop: `finished` or `drained`."""
        recipe, pool, incarnation = self._recipe, self._recipe.pool_of(name), unit.incarnation
        if unit.saved is None or not unit.saved.exact:
            self._say(LearnerRequested(name, incarnation, pool.name, pool.region))
        expected = asyncio.ensure_future(self._tell("expect", self._expect(name, incarnation)))
        if name not in self._groups:
            self._groups[name] = reserve(name, pool, anywhere=self._place.local)
        group = self._groups[name]
        await _first(within(recipe.run.start_s, group.ready()), unit.dismissed.wait())
        if unit.dismissed.is_set():
            return DRAINED  # before there was a place for it
        index, cores = list(self._controller.units).index(name), self._place.cores
        options = named(label(name, incarnation), self._place.namespace, 0) | inside(group, pool)
        spec = learner_spec(recipe, self._code, name, incarnation, pool, index % cores if cores else None)
        spec = replace(spec, store=self._objects, saved=unit.saved)
        if time.monotonic() < self._misconfigured.pop(name, 0.0):
            # As if its node had an old recipe: it trains the same, and says that it does not.
            spec = replace(spec, shared={**spec.shared, "seed": recipe.seed + 1})
        assert self._succession is not None
        unit.outer = self._succession.handle
        unit.handle = ray.remote(concurrency_groups=GROUPS)(LearnerActor).options(**options).remote(spec, unit.outer)
        info = await within(recipe.run.start_s, unit.handle.identify.remote())
        unit.pid, unit.node = info["pid"], info["node"]
        self._nodes.add(info["node"])
        self._say(LearnerStarted(name, incarnation, unit.pid, unit.node))
        self._controller.answered(name, incarnation)
        await expected
        ended: str = await unit.handle.run.remote()
        return DRAINED if ended.startswith("drained") else FINISHED

    async def _lost(self, name: str, unit: Unit, cause: str, detail: str) -> None:
        """It is gone, with what it had not handed in.

        Here and in `_left` the controller hears of it last: it may start the successor at once, which must not come
        before the syncer knows, nor into a place that is being given up.
        """
        if unit.gone:
            return
        unit.gone = True
        self._say(LearnerLost(name, unit.incarnation, cause, detail))
        self.faults[name] = f"{cause}: {detail}"
        if unit.handle is not None:
            ray.kill(unit.handle)  # ends a living actor whose loop failed; no harm to a dead one
        reason = {"died": "killed"}.get(cause, cause)
        await self._tell("fence", name, unit.incarnation, reason)
        self._controller.lost(time.monotonic(), name, unit.incarnation)
        if name not in self._controller.wanted:
            self._give_up_place(name)
        if not self._over():
            self._advance()

    async def _drain(self, action: controller.Drain, deadline_s: float) -> None:
        """Ask a learner to leave. One that does not step yet has nothing to lose, and is ended at once."""
        unit = self._units[action.learner]
        unit.leaving, unit.leave_by = action.reason, time.monotonic() + deadline_s
        request = DrainRequested(action.learner, unit.incarnation, action.reason, deadline_s)
        if not await self._tell("drain", request):
            unit.ended = DRAINED
            unit.dismissed.set()
            if unit.handle is not None:
                ray.kill(unit.handle)

    async def _left(self, name: str, unit: Unit) -> None:
        """It is gone and has lost nothing. Its place is given back: it may be on a node that goes too."""
        unit.gone = True
        # Its own last report has done this, unless it was lost on the way.
        await self._tell("fence", name, unit.incarnation, "drained")
        if unit.handle is not None:
            ray.kill(unit.handle)
        self._give_up_place(name)
        self._controller.left(name, unit.incarnation)
        self.faults[name] = f"drained: {unit.leaving or 'its process was asked to end'}"
        if not self._over():
            self._advance()

    def _give_up_place(self, name: str) -> None:
        if (group := self._groups.pop(name, None)) is not None:
            remove_placement_group(group)

    def _scale(self) -> None:
        """Make the pools as large as was asked for last."""
        for pool in self._recipe.pools:
            request = object_of(self._store, request_file(pool.name))
            wanted = requested(request, pool, self.pools[pool.name], self._place.local)
            if sum((self.pools | {pool.name: wanted}).values()) < self._recipe.quorum:
                continue  # two requests at once, each of which alone would have left enough
            before, self.pools[pool.name] = self.pools[pool.name], wanted
            added, removed = pool.names(wanted)[before:], pool.names(before)[wanted:]
            if not added and not removed:
                continue
            self._say(PoolScaled(pool.name, wanted, tuple(added), tuple(removed)))
            for name in added:
                self._controller.want(name)
            for name in reversed(removed):
                self._act(self._controller.unwant(name, f"pool {pool.name} is scaled to {wanted}"))
                if self._controller.units[name].state is controller.State.DONE:
                    self._give_up_place(name)  # it was waiting to be started again

    def _heed_notices(self) -> None:
        """Drain the learners of nodes that have announced their end."""
        for node, remaining_s in draining_nodes().items():
            here = {name: unit for name, unit in self._units.items() if unit.node == node and not unit.noticed}
            if not here:
                continue
            self._say(NodePreempted(node, tuple(here), remaining_s))
            deadline_s = self._recipe.sync.drain_s
            if remaining_s is not None:
                deadline_s = max(1.0, min(deadline_s, remaining_s - NOTICE_MARGIN_S))
            for name, unit in here.items():
                unit.noticed = True
                # One that is leaving already has to hear that there may be less time than it thought.
                self._controller.drain(name, NOTICE)
                if self._controller.units[name].state is controller.State.DRAINING:
                    self._spawn(self._drain(controller.Drain(name, unit.incarnation, NOTICE), deadline_s))

    async def _kill(self, action: controller.End) -> None:
        """End a process that does not answer. Its training loop's call then fails, and `_start` goes on from there."""
        unit = self._units[action.learner]
        unit.ended = action.reason
        if unit.handle is not None:
            ray.kill(unit.handle)
        try:
            if unit.pid is not None and unit.node is not None:
                await within(CALL_S, hand(unit.node, self._place.namespace).kill.remote(unit.pid))
        except (ray.exceptions.RayError, TimeoutError) as error:
            await self._lost(action.learner, unit, "lease_expired", f"{action.reason}; {type(error).__name__}")

    def _end_silent(self, rows: Sequence[Mapping[str, Any]]) -> None:
        for row in rows:
            if row["alive"] or row["lease_age_s"] is None:
                continue
            self.faults[row["name"]] = f"silent for {row['lease_age_s']:.1f} s"
            self._act(self._controller.silent(row["name"], row["incarnation"], row["lease_age_s"]))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.failure = self.failure or task.exception()


async def _first(*waits: Coroutine[Any, Any, Any]) -> None:
    """Until one of them is done; raises what it raised. The others are given up."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()


def learner_spec(
    recipe: Recipe, code: str, name: str, incarnation: int, pool: PoolConfig, core: int | None
) -> LearnerSpec:
    """Everything an incarnation is made from; `core` of the one host, to be pinned to."""
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
        shared=shared(recipe),
        code=code,
        core=core,
        accelerated=pool.accelerated,
        warm_start=recipe.warm_start,
        devices=pool.devices or (None if pool.accelerated else 1),
        model_parallel=pool.model_parallel,
    )


def shared(recipe: Recipe) -> Mapping[str, Any]:
    """What every learner must agree on."""
    return {key: value for key, value in recipe.canonical().items() if key in SHARED}
