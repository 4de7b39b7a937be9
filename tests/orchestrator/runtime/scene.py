"""The learners' manager with places and processes that are only names.

The syncer is the real machine behind its real shell's calls; Ray is not started.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
import ray

from orchestrator.lifecycle import learner_manager
from orchestrator.lifecycle.patience import Patience
from orchestrator.lifecycle.pools import request_file
from orchestrator.lifecycle.ports import Ports
from orchestrator.recipe.config import Recipe
from orchestrator.runtime import ray_processes
from orchestrator.runtime.placement import RunPlacement
from orchestrator.runtime.ray_processes import RayPlaces
from orchestrator.store.run_store import RunStore
from outer.journal.object_store import Folder
from outer.protocol.events_effects import Event
from outer.protocol.facts import LearnerFenced
from outer.relays import Relays
from outer.shell import SyncerShell
from tests.transcripts.syncer_world import Bench
from tests.waiting import until_async

T = TypeVar("T")
STAYS, GOES = "learner-p-0", "learner-p-1"


class Outer(SyncerShell):
    """What the orchestrator calls, in front of a machine that has no merges to compute and nobody to send to."""

    def __init__(self, bench: Bench) -> None:
        self._bench, self._machine, self._peers = bench, bench.syncer, {}
        self._log, self._relays = SimpleNamespace(take=lambda *told: True), Relays("")
        self._serving = asyncio.Event()
        self._serving.set()

    def _drive(self, event: Event) -> Any:
        return self._bench.call(event)


@dataclass(frozen=True, eq=False)
class Asks:
    """The port Peer, of an object whose methods are called."""

    process: Any

    async def ask(self, method: str, *values: Any) -> Any:
        return await getattr(self.process, method)(*values)


@dataclass
class Serving:
    """The one epoch of the syncer that there is."""

    peer: Any
    epoch: int = 1

    async def call(self, method: str, *values: Any, patience_s: float) -> Any:
        return await self.peer.ask(method, *values)


class Processes:
    """The port of orchestrator/lifecycle/ports.py; `left`: the first ranks of learners that are there."""

    def __init__(self) -> None:
        self.killed: list[Any] = []
        self.left: dict[str, Any] = {}
        self.looked: list[str] = []
        self.why: Callable[[str], str] = lambda node: ""

    def left_rank(self, name: str, incarnation: int, rank: int) -> Any:
        self.looked.append(name)
        return self.left.get(name)

    async def left_standbys(self) -> list[Any]:
        return []

    def end(self, process: Any) -> None:
        self.killed.append(process)

    async def kill(self, ranks: Any) -> str:
        self.killed += ranks
        return ""

    async def unseen(self, node: str) -> str:
        return self.why(node)

    def notices(self) -> dict[str, float | None]:
        return {}


@dataclass
class Group:
    """A place for a learner, if `come` returns."""

    learner: str
    come: Callable[[], Coroutine[Any, Any, None]]

    def ready(self) -> Coroutine[Any, Any, None]:
        return self.come()


async def pending() -> None:
    await asyncio.Event().wait()


async def broken() -> None:
    raise ray.exceptions.RayError("its node died")


class Scene:
    """Two learners. One stays and waits for its place; `come` is what becomes of the other's."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, cores: int = 0) -> None:
        self.come, self.given_up, self.said, self.processes = pending, [], [], Processes()
        self.killed = self.processes.killed
        tables = {"name": "demo", "pools": [{"name": "p", "learners": 2}], "budget": {"syncer_steps": 10}}
        self.store = RunStore(folder)
        self.bench = Bench(learners={STAYS: 8, GOES: 8}, quorum=1)
        self.outer = Asks(Outer(self.bench))
        recipe, placement = Recipe.model_validate(tables), RunPlacement("", cores)
        ports = Ports(
            self.store,
            self.processes,  # type: ignore[arg-type]
            RayPlaces(recipe, placement),
            Folder(folder),
            tuple,
            self.said.append,
            lambda why: None,
            placement.local,
        )
        self.learners = learner_manager.LearnerManager(recipe, ports, lambda: False, Patience(), 1)
        patch.setattr(ray_processes, "reserve", self.reserve)
        patch.setattr(ray_processes, "remove_placement_group", lambda group: self.given_up.append(group.learner))
        patch.setattr(ray_processes, "pending_reasons", self.pending_reasons)
        patch.setattr(learner_manager, "PLACES_S", 0.0)

    def reserve(self, learner: str, pool: Any, anywhere: bool) -> Group:
        return Group(learner, pending if learner == STAYS else self.come)

    def pending_reasons(self, claims: dict[str, Any], anywhere: bool) -> dict[str, str]:
        return {name: "no node is alive" for name, (group, _) in claims.items() if group.come is pending}

    def scale(self, learners: int) -> None:
        self.store.write_json(request_file("p"), {"learners": learners})
        self.learners.watch([])

    async def look(self) -> None:
        """Let the learners' shell look for places once."""
        self.learners.watch([])
        assert self.learners._looking is not None
        await self.learners._looking

    def facts(self, kind: type[T], learner: str = GOES) -> list[T]:
        return [fact for fact in self.said if isinstance(fact, kind) and fact.learner == learner]

    @property
    def fenced(self) -> list[tuple[str, str]]:
        return [(fact.learner, fact.reason) for fact in self.bench.facts(LearnerFenced)]


async def until(holds: Callable[[], bool]) -> None:
    await until_async(holds, "the condition of this line")
