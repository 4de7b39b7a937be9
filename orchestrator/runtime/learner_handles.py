"""Learner units in Ray: their placement groups and actors, created, found again, probed and killed.

The learner manager decides when; what is true of a unit is in the controller.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from asyncio import FIRST_COMPLETED
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import ray

from learners import island
from learners.actor import GROUPS, LearnerActor
from learners.checkpoint_writer import SavedPart
from learners.spec import LearnerSpec
from orchestrator.lifecycle.controller import Rank
from orchestrator.recipe.config import Recipe
from orchestrator.runtime.placement import (
    RunPlacement,
    inside,
    label,
    named,
    node_agent,
    rank_label,
    unseen_reason,
)
from orchestrator.runtime.places import Places
from orchestrator.runtime.ray_await import CALL_S, within
from orchestrator.runtime.specs import learner_spec
from orchestrator.runtime.standbys import Standby, Standbys, end_left, standby_label
from outer.journal.object_store import Objects

MISCONFIGURED_S = 30.0  # chaos kills the incarnation at once; if it does not, the fault expires
DRAINED, FINISHED = "drained", "finished"  # how an incarnation ends that is no loss


@dataclass
class LearnerHandle:
    """The actor of a learner's newest incarnation."""

    learner: str
    incarnation: int
    saved: SavedPart | None = None  # what it starts from
    actor: Any = None
    others: tuple[Any, ...] = ()  # the actors of ranks 1, 2, ... of an island
    address: str = ""  # where its ranks meet
    syncer: Any = None  # the epoch that it was told of last
    dismissed: asyncio.Event = field(default_factory=asyncio.Event)  # it has nothing to lose and is ended at once
    reattaching: asyncio.Task[None] | None = None  # the newest call that told it of an epoch

    async def run(self) -> str:
        """Train until the loop ends: `drained` or `finished`. Raises what the loop raised."""
        ended: str = await _led(_answer(self.actor.run.remote()), [self._follow(other) for other in self.others])
        return DRAINED if ended.startswith("drained") else FINISHED

    async def _follow(self, rank: Any) -> None:
        await rank.follow.remote(self.address)

    @property
    def actors(self) -> list[Any]:
        """Of all ranks that have one."""
        return [each for each in (self.actor, *self.others) if each is not None]

    def kill(self) -> None:
        """End every rank; no harm is done to one that is dead or does not exist yet."""
        for actor in self.actors:
            ray.kill(actor)


class Progress(NamedTuple):
    """What a learner says when it is asked directly."""

    alive: bool  # its training loop reported within its lease
    epoch: int | None  # of the syncer that it is attached to


class LearnerActors:
    """One per run. `objects`: where learners save their state; `code`: the digest of the sources; `index` of a learner
    chooses its core, where they are pinned.
    """

    def __init__(
        self, recipe: Recipe, placement: RunPlacement, code: str, objects: Objects, index: Callable[[str], int]
    ) -> None:
        self._recipe, self._placement, self._code, self._objects = recipe, placement, code, objects
        self._index = index
        self.standbys = Standbys(self._stand_by, lambda name: recipe.pool_of(name).standby, recipe.run.start_s)
        self.places = Places(recipe, placement)
        self._shown: dict[str, Mapping[str, str]] = {}  # what shows a learner of accelerators its devices
        self._misconfigured: dict[str, float] = {}  # learner -> until when its next incarnation gets another recipe

    async def find(
        self, name: str, incarnation: int, status: Mapping[str, Any]
    ) -> tuple[LearnerHandle, tuple[Rank, ...]] | None:
        """A learner that an earlier orchestrator left, with all its ranks; `status`: the last that was shown of it."""
        end_left(name, incarnation, self._recipe.pool_of(name).standby, self._placement.namespace)
        for called in (label(name, incarnation), standby_label(name, incarnation)):
            try:
                handle = ray.get_actor(called, self._placement.namespace)
                info = await within(CALL_S, handle.identify.remote())
            except (ValueError, ray.exceptions.RayError):
                continue
            except TimeoutError:
                info = status  # it may be frozen: its lease will tell
            self._identified(name, info)
            process = LearnerHandle(name, incarnation, actor=handle)
            ranks = [Rank(True, info.get("pid"), info.get("node"))]
            try:
                for rank in range(1, self._recipe.pool_of(name).processes):
                    called = rank_label(name, incarnation, rank)
                    process.others += (ray.get_actor(called, self._placement.namespace),)
                    shown = await within(CALL_S, process.others[-1].identify.remote())
                    ranks.append(Rank(True, shown["pid"], shown["node"]))
            except (ValueError, ray.exceptions.RayError, TimeoutError):
                process.kill()  # a gang is whole or gone
                return None
            return process, tuple(ranks)
        return None

    def _identified(self, name: str, info: Mapping[str, Any]) -> None:
        if self._recipe.pool_of(name).accelerated:
            self._shown[name] = info.get("shown") or {}

    async def place(self, process: LearnerHandle) -> bool:
        """Wait for the learner's place. False: it was dismissed before there was one. Raises TimeoutError."""
        placing = within(self._recipe.run.start_s, self.places.wait(process.learner))
        await _first(placing, process.dismissed.wait())
        return not process.dismissed.is_set()

    async def create(self, process: LearnerHandle, syncer: Any) -> list[tuple[int, str]]:
        """Start the learner's actors in its place, or promote a standby. Returns the pid and node of each rank."""
        recipe, name = self._recipe, process.learner
        process.syncer = syncer
        process.actor = self.standbys.take(name, process.incarnation)
        if process.actor is not None and name not in self._misconfigured:
            with contextlib.suppress(ray.exceptions.RayError, TimeoutError):
                info = await within(CALL_S, process.actor.promote.remote(process.incarnation, syncer))
                return [(info["pid"], info["node"])]
        process.kill()  # the standby that cannot be it
        spec = replace(self._spec(name, process.incarnation), saved=process.saved)
        if time.monotonic() < self._misconfigured.pop(name, 0.0):
            # As if its node had an old recipe: it trains the same, and says that it does not.
            spec = replace(spec, shared={**spec.shared, "seed": recipe.seed + 1})
        learner = ray.remote(concurrency_groups=GROUPS)(LearnerActor)
        process.actor = learner.options(**self._actor_options(process, 0)).remote(spec, syncer)
        rank = ray.remote(concurrency_groups=island.GROUPS)(island.RankActor)
        process.others = tuple(
            rank.options(**self._actor_options(process, each)).remote(self._spec(name, process.incarnation, each))
            for each in range(1, spec.ranks)
        )
        up = [within(recipe.run.start_s, actor.identify.remote()) for actor in process.actors]
        infos = await asyncio.gather(*up)
        self._identified(name, infos[0])
        if process.others:
            process.address = await within(CALL_S, process.actor.lead.remote(list(process.others)))
        return [(info["pid"], info["node"]) for info in infos]

    def _actor_options(self, process: LearnerHandle, rank: int) -> dict[str, Any]:
        name = process.learner
        options = named(rank_label(name, process.incarnation, rank), self._placement.namespace, 0)
        return options | inside(self.places.group(name), self._recipe.pool_of(name), rank=rank)

    def _spec(self, name: str, incarnation: int, rank: int = 0) -> LearnerSpec:
        cores, pool = self._placement.cores, self._recipe.pool_of(name)
        core = (self._index(name) * pool.processes + rank) % cores if cores else None
        spec = learner_spec(self._recipe, self._code, name, incarnation, pool, core, rank)
        return replace(spec, store=self._objects)

    def _stand_by(self, standby: Standby) -> Any:
        """The actor of a standby: in its learner's place, of which it takes nothing before it is promoted."""
        name = standby.learner
        options = named(standby_label(name, standby.incarnation), self._placement.namespace, 0)
        options |= inside(self.places.group(name), self._recipe.pool_of(name))
        options |= {"num_cpus": 0.0, "num_gpus": 0.0, "resources": {}}
        spec = replace(self._spec(name, 0), environment=self._shown.get(name, {}))
        return ray.remote(concurrency_groups=GROUPS)(LearnerActor).options(**options).remote(spec, None)

    def misconfigure(self, name: str) -> None:
        """For chaos: give the learner's next incarnation, and only that, another recipe."""
        self._misconfigured[name] = time.monotonic() + MISCONFIGURED_S

    async def kill(self, process: LearnerHandle, ranks: Iterable[Rank]) -> str:
        """Kill processes that do not answer. Returns the name of a node's error that did not do it."""
        process.kill()
        there = [(rank.node, rank.pid) for rank in ranks if rank.pid is not None and rank.node is not None]
        agents = [node_agent(node, self._placement.namespace).kill.remote(pid) for node, pid in there]
        ended = await asyncio.gather(*(within(CALL_S, each) for each in agents), return_exceptions=True)
        return next((type(each).__name__ for each in ended if isinstance(each, Exception)), "")

    async def progress(self, process: LearnerHandle) -> Progress | None:
        """What a learner says of itself; None: it does not answer."""
        if process.actor is None:
            return None
        try:
            deadline_s = min(CALL_S, self._recipe.run.hang_s / 2.0)
            return Progress(*await within(deadline_s, process.actor.progress.remote()))
        except (ray.exceptions.RayError, TimeoutError):
            return None

    async def unseen(self, ranks: Iterable[Rank]) -> str:
        """Why the node of one of these ranks cannot be seen; empty when all can. A local cluster has one: ours."""
        nodes = [] if self._placement.local else [rank.node for rank in ranks if rank.node is not None]
        try:
            reasons = [await unseen_reason(node, self._placement.namespace) for node in nodes]
        except Exception:  # whatever Ray's state API raises: the hang deadline holds
            return ""
        return next((reason for reason in reasons if reason), "")

    def release(self, name: str) -> None:
        """Give the learner's place back."""
        self.standbys.release(name)
        self.places.release(name)

    def release_all(self) -> None:
        for name in self.places.names:
            self.release(name)


async def _answer(call: Any) -> Any:
    return await call


async def _led(leading: Coroutine[Any, Any, str], following: Iterable[Coroutine[Any, Any, None]]) -> str:
    """Wait until rank 0's call returns, for its answer, or any rank's call raises: raises what that raised."""
    lead, *rest = tasks = [asyncio.ensure_future(each) for each in (leading, *following)]
    try:
        while not lead.done():
            done, _ = await asyncio.wait([each for each in tasks if not each.done()], return_when=FIRST_COMPLETED)
            for task in done:
                task.result()
        return str(lead.result())
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*rest, lead, return_exceptions=True)


async def _first(*waits: Coroutine[Any, Any, Any]) -> None:
    """Wait until one of them is done, and cancel the others; raises what it raised."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
