"""Learner units in Ray: their places, their actors and their standbys.

The learner manager decides when they start and end; what is true of a unit is in the controller.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
import time
from asyncio import FIRST_COMPLETED
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import ray
from ray.util.placement_group import get_placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from learners import island
from learners.actor import LearnerActor
from learners.checkpoint_writer import SavedPart
from learners.spec import LearnerSpec
from orchestrator.lifecycle.actions import Action
from orchestrator.lifecycle.controller import Controller, RankState, State, Unit
from orchestrator.recipe.config import PoolConfig, Recipe
from orchestrator.runtime.placement import (
    NODE_ENDS,
    NoSlice,
    RunPlacement,
    head_name,
    inside,
    label,
    named,
    node_agent,
    pending_reasons,
    rank_label,
    reserve,
    reserve_head,
    reserve_slice,
    unseen_reason,
)
from orchestrator.runtime.ray_await import CALL_S, answered, gist, within
from orchestrator.runtime.specs import learner_spec
from outer.journal.object_store import Objects
from outer.protocol.messages import STEPPING

CLAIMS_MOST = 32  # that one look asks for: each is a call or two
PREPARE_TIMES = 10.0  # a standby may take so many times `run.start_s`: it yields to everything else
WAIT_S = 30.0  # of one call that waits for a promotion
RETRY_S, RETRY_S_MOST = 10.0, 300.0  # until another is made after one has failed; doubles each time
NO_FAILURE = (0, -math.inf)
MISCONFIGURED_S = 30.0  # chaos kills the incarnation at once; if it does not, the fault expires
DRAINED, FINISHED = "drained", "finished"  # how an incarnation ends that is no loss


# ------------------------------------------------------------------ places


class Places:
    """One per run. A learner's group is its place; for a TPU slice of several hosts the first host is asked for before.

    A slice comes and goes as a whole, and the next one has another name: where one is gone, all is asked for anew.
    """

    def __init__(self, recipe: Recipe, placement: RunPlacement) -> None:
        self._recipe, self._placement = recipe, placement
        self._groups: dict[str, Any] = {}  # by learner
        self._heads: dict[str, Any] = {}  # of slices, by learner; a learner with a head alone has no group yet
        self._without: set[str] = set()  # learners without a place at the last look

    @property
    def names(self) -> list[str]:
        """Learners for whom a place is asked for, or reserved."""
        return list(self._groups.keys() | self._heads.keys())

    def group(self, name: str) -> Any:
        return self._groups[name]

    def adopt(self, name: str) -> None:
        """Take over the place of a learner that an earlier orchestrator has left."""
        self._groups[name] = get_placement_group(name)
        if self._sliced(name):
            with contextlib.suppress(ValueError):
                self._heads[name] = get_placement_group(head_name(name))

    def claim(self, names: Iterable[str]) -> None:
        """Ask Ray for places."""
        asked = {*self.names}
        for name in names:
            if name in asked:
                continue
            if self._sliced(name):
                self._drop_slice_left(name)
                self._heads[name] = reserve_head(name, self._pool(name))
            else:
                self._groups[name] = reserve(name, self._pool(name), anywhere=self._placement.local)

    async def wait(self, name: str) -> None:
        """Until the learner has its place. Raises NoSlice where a slice is gone."""
        if name in self._heads and await self._broken(name):
            self.release(name)
        self.claim([name])
        if name in self._heads and name not in self._groups:
            await self._heads[name].ready()
            try:
                self._groups[name] = reserve_slice(name, self._pool(name), self._heads[name])
            except NoSlice:
                self.release(name)
                raise
        await self._groups[name].ready()

    async def pending(self, names: Iterable[str]) -> dict[str, str] | None:
        """Which of these learners wait for a place, and why. None: Ray does not say."""
        known = self._heads | self._groups
        claims = {name: (known[name], self._pool(name)) for name in names if name in known}
        if not claims:
            return {}
        try:
            looking = asyncio.ensure_future(asyncio.to_thread(pending_reasons, claims, self._placement.local))
            reasons: dict[str, str] = await within(CALL_S, looking)
        except Exception:  # a deadline, or whatever Ray's state API raises: the status says nothing about places then
            return None
        return reasons

    async def look(self, controller: Controller) -> list[Action]:
        """Tell the controller who has no place at two looks in a row; returns what it does about free ones."""
        claims, asked = controller.claims(), {*self.names}
        with _asking_again():
            self.claim([name for name in claims if name not in asked][:CLAIMS_MOST])
        waiting = _without_process(controller)
        pending = await self.pending([*waiting, *claims])
        if pending is None:
            return []
        with _asking_again():
            for name in claims:
                if pending.get(name) == NODE_ENDS:
                    self.release(name)
        twice = self._without.intersection(_without_process(controller))  # who started since has a place
        for name in controller.units:
            controller.place(name, pending.get(name, "") if name in twice else "")
        self._without = set(pending)
        return controller.follow(time.monotonic(), {*self.names}.intersection([*waiting, *claims]) - pending.keys())

    def release(self, name: str) -> None:
        """Give the learner's place back, or what is asked for it."""
        for groups in (self._groups, self._heads):
            if (group := groups.pop(name, None)) is not None:
                remove_placement_group(group)

    def _pool(self, name: str) -> PoolConfig:
        return self._recipe.pool_of(name)

    def _sliced(self, name: str) -> bool:
        return self._pool(name).slice_hosts > 0 and not self._placement.local

    async def _broken(self, name: str) -> bool:
        """Whether Ray has not all of a slice's hosts any more."""
        return name in self._groups and bool(await self.pending([name]))

    def _drop_slice_left(self, name: str) -> None:
        """End what an earlier orchestrator reserved for a learner whose processes are gone."""
        with contextlib.suppress(ValueError):
            remove_placement_group(get_placement_group(name))


@contextlib.contextmanager
def _asking_again() -> Iterator[None]:
    """Where Ray's control store does not answer, the next look asks again."""
    try:
        yield
    except Exception as error:
        print(f"places: {type(error).__name__}: {error}", flush=True)


def _without_process(controller: Controller) -> list[str]:
    return [name for name, unit in controller.units.items() if unit.state in (State.WAITING, State.STARTING)]


# ------------------------------------------------------------------ standbys


STANDBY = ".standby."  # in the names of their actors


@dataclass(eq=False)
class Standby:
    learner: str  # in whose place it waits
    node: str | None  # where that is
    actor: Any = None
    ready: bool = False

    def kill(self) -> None:
        if self.actor is not None:
            ray.kill(self.actor)


class Standbys:
    """One per run. `create` starts the actor of a standby in its learner's place; `wanted`: how many a learner has;
    `alike`: whether one that waits for the first learner may be the second one, too, on the same node.
    """

    def __init__(
        self,
        create: Callable[[Standby], Any],
        wanted: Callable[[str], int],
        alike: Callable[[str, str], bool],
        start_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._create, self._wanted, self._alike, self._clock = create, wanted, alike, clock
        self._prepare_s = PREPARE_TIMES * start_s
        self._made: list[Standby] = []
        self._nodes: dict[str, str | None] = {}  # where each learner stepped last
        self._failures: dict[str, tuple[int, float]] = {}  # by learner: in a row, and when to try again

    def due(self, rows: Sequence[Mapping[str, Any]], units: Mapping[str, Unit]) -> list[Standby]:
        """Standbys to `make` now: of learners that step, one at a time on each node. `rows`: the syncer's."""
        found: list[Standby] = []
        busy = {each.node for each in self._made if not each.ready}
        for row in rows:
            learner, unit = row["name"], units.get(row["name"])
            if row["phase"] != STEPPING or unit is None or unit.state is not State.RUNNING:
                continue
            node = self._nodes[learner] = unit.incarnation.ranks[0].node
            missing = self._wanted(learner) > sum(each.learner == learner for each in self._made)
            if missing and node not in busy and self._clock() >= self._failures.get(learner, NO_FAILURE)[1]:
                found.append(Standby(learner, node))
                busy.add(node)
        self._made += found
        return found

    async def make(self, standby: Standby) -> None:
        """Start a standby, and stay with it until it is promoted or dies."""
        try:
            standby.actor = self._create(standby)
            await within(self._prepare_s, standby.actor.prepare.remote())
            standby.ready = True
            self._failures.pop(standby.learner, None)
            while not await within(WAIT_S + CALL_S, standby.actor.stand_by.remote(WAIT_S)):
                pass
        except (ray.exceptions.RayError, TimeoutError) as error:
            if standby not in self._made:
                return  # it was taken or dropped
            self._drop(standby)
            failures = self._failures.get(standby.learner, NO_FAILURE)[0] + 1
            wait_s = min(RETRY_S_MOST, RETRY_S * 2.0 ** (failures - 1))
            self._failures[standby.learner] = failures, self._clock() + wait_s
            print(f"{standby.learner}: a standby failed, another follows in {wait_s:g} s: {gist(error)}", flush=True)

    def take(self, learner: str) -> Any | None:
        """The actor of a standby that is ready to be this learner: its own, or one of another that is alike."""
        node = self._nodes.get(learner)
        for standby in sorted(self._made, key=lambda each: each.learner != learner):
            own = standby.learner == learner
            if standby.ready and (own or (standby.node == node and self._alike(standby.learner, learner))):
                self._made.remove(standby)
                return standby.actor
        return None

    def release(self, learner: str) -> None:
        """End a learner's standbys: its place is given back."""
        for standby in [each for each in self._made if each.learner == learner]:
            self._drop(standby)

    def ready(self, learner: str) -> int:
        return sum(each.ready for each in self._made if each.learner == learner)

    @property
    def handles(self) -> list[Any]:
        return [each.actor for each in self._made if each.actor is not None]

    def _drop(self, standby: Standby) -> None:
        self._made.remove(standby)
        standby.kill()


# ------------------------------------------------------------------ learners


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
        """Train until the loop ends: `drained` or `finished`. Raises what the loop raised, or that a process ended.

        One that cannot be reached is asked again: how long it may stay so is the controller's.
        """
        following = [answered(partial(rank.follow.remote, self.address)) for rank in self.others]
        ended = await _led(answered(self.actor.run.remote), following)
        return DRAINED if ended.startswith("drained") else FINISHED

    @property
    def actors(self) -> list[Any]:
        """The actors of all ranks that have one."""
        return [each for each in (self.actor, *self.others) if each is not None]

    def kill(self) -> None:
        """End every rank; no harm is done to one that is dead or does not exist yet."""
        for actor in self.actors:
            ray.kill(actor)


class LearnerActors:
    """One per run. `objects`: where learners save their state; `code`: the digest of the sources; `index` of a learner
    chooses its core, where they are pinned.
    """

    def __init__(
        self, recipe: Recipe, placement: RunPlacement, code: str, objects: Objects, index: Callable[[str], int]
    ) -> None:
        self._recipe, self._placement, self._code, self._objects = recipe, placement, code, objects
        self._index = index
        self.standbys = Standbys(self._stand_by, self._standbys_of, self._alike, recipe.run.start_s)
        self._promoted: dict[tuple[str, int], Any] = {}  # standbys that an earlier orchestrator promoted
        self.places = Places(recipe, placement)
        self._shown: dict[str, Mapping[str, str]] = {}  # what shows a learner of accelerators its devices
        self._misconfigured: dict[str, float] = {}  # learner -> until when its next incarnation gets another recipe

    async def find(
        self, name: str, incarnation: int, status: Mapping[str, Any]
    ) -> tuple[LearnerHandle, tuple[RankState, ...]] | None:
        """A learner that an earlier orchestrator left, with all its ranks; `status`: the last that was shown of it."""
        with contextlib.suppress(ValueError, ray.exceptions.RayError):
            handle = self._promoted.get((name, incarnation))
            handle = handle or ray.get_actor(label(name, incarnation), self._placement.namespace)
            try:
                info = await within(CALL_S, handle.identify.remote())
            except (TimeoutError, ray.exceptions.ActorUnavailableError):
                info = status  # it may be frozen, or cut off: its lease will tell
            self._identified(name, info)
            process = LearnerHandle(name, incarnation, actor=handle)
            ranks = [RankState(True, info.get("pid"), info.get("node"))]
            try:
                for rank in range(1, self._recipe.pool_of(name).processes):
                    called = rank_label(name, incarnation, rank)
                    process.others += (ray.get_actor(called, self._placement.namespace),)
                    shown = await within(CALL_S, process.others[-1].identify.remote())
                    ranks.append(RankState(True, shown["pid"], shown["node"]))
            except (ValueError, ray.exceptions.RayError, TimeoutError):
                process.kill()  # a gang is whole or gone
                return None
            return process, tuple(ranks)
        for rank in range(1, self._recipe.pool_of(name).processes):
            with contextlib.suppress(ValueError):  # what is left of a gang
                ray.kill(ray.get_actor(rank_label(name, incarnation, rank), self._placement.namespace))
        return None

    async def find_standbys(self) -> None:
        """Look for the standbys that an earlier orchestrator has left, and end those that nobody was promoted to."""
        namespace = self._placement.namespace

        async def look(called: str) -> None:
            with contextlib.suppress(ValueError, ray.exceptions.RayError, TimeoutError):
                handle = ray.get_actor(called, namespace)
                name, incarnation = (await within(CALL_S, handle.identify.remote()))["key"]
                if incarnation:
                    self._promoted[name, incarnation] = handle
                else:
                    ray.kill(handle)

        there = await asyncio.to_thread(ray.util.list_named_actors, True)
        ours = [each["name"] for each in there if each["namespace"] == namespace and STANDBY in each["name"]]
        await asyncio.gather(*map(look, ours))

    def _identified(self, name: str, info: Mapping[str, Any]) -> None:
        if self._recipe.pool_of(name).accelerated:
            self._shown[name] = info.get("shown") or {}

    async def place(self, process: LearnerHandle) -> bool:
        """Wait for the learner's place. False: it was dismissed before there was one. Raises TimeoutError."""
        placing = asyncio.ensure_future(within(self._recipe.run.start_s, self.places.wait(process.learner)))
        dismissed = asyncio.ensure_future(process.dismissed.wait())
        try:
            await asyncio.wait({placing, dismissed}, return_when=FIRST_COMPLETED)
            if placing.done():
                placing.result()
            return not process.dismissed.is_set()
        finally:
            placing.cancel()
            dismissed.cancel()

    async def create(self, process: LearnerHandle, syncer: Any, number: int) -> list[tuple[int, str]]:
        """Start the learner's actors in its place, or promote a standby. Returns the pid and node of each rank.

        `number`: the orchestrator's.
        """
        recipe, name = self._recipe, process.learner
        process.syncer = syncer
        process.actor = self.standbys.take(name)
        if process.actor is not None and name not in self._misconfigured:
            with contextlib.suppress(ray.exceptions.RayError, TimeoutError):
                promoted = number, name, process.incarnation, self._core(name), syncer
                info = await within(CALL_S, process.actor.promote.remote(*promoted))
                return [(info["pid"], info["node"])]
        process.kill()  # the standby that cannot be it
        spec = replace(self._spec(name, process.incarnation), saved=process.saved)
        if time.monotonic() < self._misconfigured.pop(name, 0.0):
            # As if its node had an old recipe: it trains the same, and says that it does not.
            spec = replace(spec, shared={**spec.shared, "seed": recipe.seed + 1})
        learner = ray.remote(LearnerActor)
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
        pool = self._recipe.pool_of(name)
        spec = learner_spec(self._recipe, self._code, name, incarnation, pool, self._core(name, rank), rank)
        return replace(spec, store=self._objects)

    def _core(self, name: str, rank: int = 0) -> int | None:
        cores = self._placement.cores
        return (self._index(name) * self._recipe.pool_of(name).processes + rank) % cores if cores else None

    def _standbys_of(self, name: str) -> int:
        return self._recipe.pool_of(name).standby

    def _alike(self, one: str, other: str) -> bool:
        """Whether a standby in the place of one learner can be another: on CPUs, which are nobody's."""
        pool = self._recipe.pool_of(one)
        return pool is self._recipe.pool_of(other) and not pool.accelerated

    def _stand_by(self, standby: Standby) -> Any:
        """The actor of a standby, which takes nothing before it is promoted: with accelerators in its learner's place,
        else on its node.
        """
        name, pool = standby.learner, self._recipe.pool_of(standby.learner)
        options = named(f"{name}{STANDBY}{secrets.token_hex(4)}", self._placement.namespace, 0)
        options |= inside(self.places.group(name), pool)
        if standby.node is not None and not pool.accelerated:
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(standby.node, soft=False)
        options |= {"num_cpus": 0.0, "num_gpus": 0.0, "resources": {}}
        spec = replace(self._spec(name, 0), environment=self._shown.get(name, {}))
        return ray.remote(LearnerActor).options(**options).remote(spec, None)

    def misconfigure(self, name: str) -> None:
        """For chaos: give the learner's next incarnation, and only that, another recipe."""
        self._misconfigured[name] = time.monotonic() + MISCONFIGURED_S

    async def kill(self, process: LearnerHandle, ranks: Iterable[RankState]) -> str:
        """Kill processes that do not answer. Returns the name of a node's error that did not do it."""
        process.kill()
        there = [(rank.node, rank.pid) for rank in ranks if rank.pid is not None and rank.node is not None]
        agents = [node_agent(node, self._placement.namespace).kill.remote(pid) for node, pid in there]
        ended = await asyncio.gather(*(within(CALL_S, each) for each in agents), return_exceptions=True)
        return next((type(each).__name__ for each in ended if isinstance(each, Exception)), "")

    async def progress(self, process: LearnerHandle) -> tuple[bool, int | None] | str | None:
        """Ask a learner itself: see LearnerActor.progress. A string: it cannot be reached; None: it does not answer."""
        if process.actor is None:
            return None
        try:
            deadline_s = min(CALL_S, self._recipe.run.hang_s / 2.0)
            answer: tuple[bool, int | None] = await within(deadline_s, process.actor.progress.remote())
            return answer
        except ray.exceptions.ActorUnavailableError:
            return "its process cannot be reached"
        except (ray.exceptions.RayError, TimeoutError):
            return None

    async def unseen(self, ranks: Iterable[RankState]) -> str:
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


async def _led(leading: Coroutine[Any, Any, Any], following: Iterable[Coroutine[Any, Any, Any]]) -> str:
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
