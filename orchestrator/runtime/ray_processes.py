"""Ray's set of the ports of orchestrator/lifecycle: processes are actors, a learner's place is a placement group."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import ray
from ray.util.placement_group import get_placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from learners import island
from learners.actor import LearnerActor
from learners.checkpoint_writer import SavedPart
from learners.spec import LearnerSpec
from learners.training.initial_state import InitialState
from orchestrator.lifecycle.controller import RankState
from orchestrator.lifecycle.ports import CALL_S, NoSlice
from orchestrator.recipe.config import PoolConfig, Recipe
from orchestrator.runtime.placement import (
    RunPlacement,
    control,
    draining_nodes,
    head_name,
    inside,
    named,
    node_agent,
    pending_reasons,
    rank_label,
    reserve,
    reserve_head,
    reserve_slice,
    syncer_name,
    unseen_reason,
)
from orchestrator.runtime.specs import learner_spec
from outer.actor import SyncerActor
from outer.journal.object_store import Objects
from outer.journal.rebuild import RecoverySources
from outer.ports import Peer
from outer.ray_ports import RayPeer, answering, find
from outer.spec import SyncerSpec

SYNCER_CPUS = 0.5
STANDBY = ".standby."  # in the names of their actors


# ------------------------------------------------------------------ places


class RayPlaces:
    """One per run. A learner's group is its place; for a TPU slice of several hosts the first host is asked for before.

    A slice comes and goes as a whole, and the next one has another name: where one is gone, all is asked for anew.
    """

    def __init__(self, recipe: Recipe, placement: RunPlacement) -> None:
        self._recipe, self._placement = recipe, placement
        self._groups: dict[str, Any] = {}  # by learner
        self._heads: dict[str, Any] = {}  # of slices, by learner; a learner with a head alone has no group yet

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
                with contextlib.suppress(ValueError):  # of an earlier orchestrator, whose processes are gone
                    remove_placement_group(get_placement_group(name))
                self._heads[name] = reserve_head(name, self._pool(name))
            else:
                self._groups[name] = reserve(name, self._pool(name), anywhere=self._placement.local)

    async def wait(self, name: str) -> None:
        """Until the learner has its place. Raises NoSlice where a slice is gone."""
        if name in self._heads and name in self._groups and await self.pending([name]):
            self.release(name)  # Ray has not all of the slice's hosts any more
        self.claim([name])
        if name in self._heads and name not in self._groups:
            await _ready(self._heads[name])
            try:
                self._groups[name] = reserve_slice(name, self._pool(name), self._heads[name])
            except NoSlice:
                self.release(name)
                raise
        await _ready(self._groups[name])

    async def pending(self, names: Iterable[str]) -> dict[str, str] | None:
        """Which of these learners wait for a place, and why. None: Ray does not say."""
        known = self._heads | self._groups
        claims = {name: (known[name], self._pool(name)) for name in names if name in known}
        if not claims:
            return {}
        try:
            looking = asyncio.ensure_future(asyncio.to_thread(pending_reasons, claims, self._placement.local))
            reasons: dict[str, str] = await asyncio.wait_for(looking, CALL_S)
        except Exception:  # a deadline, or whatever Ray's state API raises: the status says nothing about places then
            return None
        return reasons

    def release(self, name: str) -> None:
        """Give the learner's place back, or what is asked for it."""
        for groups in (self._groups, self._heads):
            if (group := groups.pop(name, None)) is not None:
                remove_placement_group(group)

    def _pool(self, name: str) -> PoolConfig:
        return self._recipe.pool_of(name)

    def _sliced(self, name: str) -> bool:
        return self._pool(name).slice_hosts > 0 and not self._placement.local


async def _ready(group: Any) -> None:
    with answering():
        await group.ready()


# ------------------------------------------------------------------ processes


class RayProcesses:
    """One per run. `objects`: where learners save their state; `code`: the digest of the sources."""

    def __init__(self, recipe: Recipe, placement: RunPlacement, code: str, objects: Objects, places: RayPlaces) -> None:
        self._recipe, self._placement, self._code = recipe, placement, code
        self._objects, self._places = objects, places
        rest = (name for pool in recipe.pools for name in pool.names(pool.most))
        self._order = {name: index for index, name in enumerate(dict.fromkeys([*recipe.learners, *rest]))}

    def start_syncer(self, spec: SyncerSpec, sources: RecoverySources | None) -> RayPeer:
        recipe = self._recipe
        initial = InitialState(recipe.task, recipe.model, recipe.data, recipe.seed, recipe.sync, recipe.warm_start)
        placed = control(recipe.run.control, anywhere=self._placement.local)
        options = named(syncer_name(spec.epoch), self._placement.namespace, SYNCER_CPUS) | placed
        spec = replace(spec, shard_options=placed or {"scheduling_strategy": "SPREAD"})
        return RayPeer(ray.remote(SyncerActor).options(**options).remote(spec, initial, sources), options["name"])

    def left_syncer(self, epoch: int) -> RayPeer | None:
        return self._left(syncer_name(epoch))

    def start_learner(
        self, name: str, incarnation: int, saved: SavedPart | None, syncer: Peer, strange: bool
    ) -> list[RayPeer]:
        spec = replace(self._spec(name, incarnation), saved=saved)
        if strange:  # as if its node had an old recipe: it trains the same, and says that it does not
            spec = replace(spec, shared={**spec.shared, "seed": self._recipe.seed + 1})
        first = ray.remote(LearnerActor).options(**self._options(name, incarnation, 0)).remote(spec, syncer)
        other = ray.remote(island.RankActor)
        others = (
            other.options(**self._options(name, incarnation, rank)).remote(self._spec(name, incarnation, rank))
            for rank in range(1, spec.ranks)
        )
        return [RayPeer(each, rank_label(name, incarnation, rank)) for rank, each in enumerate((first, *others))]

    def left_rank(self, name: str, incarnation: int, rank: int) -> RayPeer | None:
        return self._left(rank_label(name, incarnation, rank))

    def start_standby(self, name: str, node: str | None, shown: Mapping[str, str]) -> RayPeer:
        """The actor of a standby, which takes nothing before it is promoted: with accelerators in its learner's place,
        else on its node.
        """
        pool = self._recipe.pool_of(name)
        options = named(f"{name}{STANDBY}{secrets.token_hex(4)}", self._placement.namespace, 0)
        options |= inside(self._places.group(name), pool)
        if node is not None and not pool.accelerated:
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=False)
        options |= {"num_cpus": 0.0, "num_gpus": 0.0, "resources": {}}
        spec = replace(self._spec(name, 0), environment=shown)
        return RayPeer(ray.remote(LearnerActor).options(**options).remote(spec, None), options["name"])

    async def left_standbys(self) -> list[RayPeer]:
        there = await asyncio.to_thread(ray.util.list_named_actors, True)
        ours = [each["name"] for each in there if each["namespace"] == self._placement.namespace]
        return [peer for name in ours if STANDBY in name and (peer := self._left(name)) is not None]

    def core(self, name: str, rank: int = 0) -> int | None:
        cores = self._placement.cores
        return (self._order[name] * self._recipe.pool_of(name).processes + rank) % cores if cores else None

    def end(self, process: Peer) -> None:
        assert isinstance(process, RayPeer)
        ray.kill(process.handle)

    async def kill(self, ranks: Iterable[RankState]) -> str:
        there = [(rank.node, rank.pid) for rank in ranks if rank.pid is not None and rank.node is not None]
        agents = [node_agent(node, self._placement.namespace).kill.remote(pid) for node, pid in there]
        ended = await asyncio.gather(*(asyncio.wait_for(each, CALL_S) for each in agents), return_exceptions=True)
        return next((type(each).__name__ for each in ended if isinstance(each, Exception)), "")

    async def unseen(self, node: str) -> str:
        return await unseen_reason(node, self._placement.namespace)

    def notices(self) -> dict[str, float | None]:
        return draining_nodes()

    def _left(self, name: str) -> RayPeer | None:
        return find(name, self._placement.namespace)

    def _options(self, name: str, incarnation: int, rank: int) -> dict[str, Any]:
        options = named(rank_label(name, incarnation, rank), self._placement.namespace, 0)
        return options | inside(self._places.group(name), self._recipe.pool_of(name), rank=rank)

    def _spec(self, name: str, incarnation: int, rank: int = 0) -> LearnerSpec:
        pool = self._recipe.pool_of(name)
        spec = learner_spec(self._recipe, self._code, name, incarnation, pool, self.core(name, rank), rank)
        return replace(spec, store=self._objects)
