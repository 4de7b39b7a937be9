"""The learners' shell with places and processes that are only names.

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

from orchestrator.lifecycle.patience import Patience
from orchestrator.lifecycle.scaling import request_file
from orchestrator.recipe.config import Recipe
from orchestrator.runtime import learner_actors, learner_manager
from orchestrator.runtime.placement import RunPlacement
from orchestrator.store.run_store import RunStore
from outer.journal.object_store import Folder
from outer.protocol.events_effects import Effect, Event
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

    def _drive(self, event: Event) -> list[Effect]:
        return self._bench.do(event)


class Handle:
    """Called like an actor's."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *values: asyncio.ensure_future(getattr(self._actor, name)(*values)))


@dataclass
class Serving:
    """The one epoch of the syncer that there is."""

    handle: Any
    epoch: int = 1

    async def call(self, method: str, *values: Any, patience_s: float) -> Any:
        return await getattr(self.handle, method).remote(*values)


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
        self.come, self.given_up, self.killed, self.said = pending, [], [], []
        tables = {"name": "demo", "pools": [{"name": "p", "learners": 2}], "budget": {"syncer_steps": 10}}
        self.store = RunStore(folder)
        self.bench = Bench(learners={STAYS: 8, GOES: 8}, quorum=1)
        self.outer = Handle(Outer(self.bench))
        self.learners = learner_manager.LearnerManager(
            Recipe.model_validate(tables),
            RunPlacement("", cores),
            self.store,
            "code",
            self.said.append,
            lambda: False,
            Folder(folder),
            Patience(),
            1,
        )
        patch.setattr(learner_actors, "reserve", self.reserve)
        patch.setattr(learner_actors, "remove_placement_group", lambda group: self.given_up.append(group.learner))
        patch.setattr(learner_actors, "pending_reasons", self.pending_reasons)
        patch.setattr(learner_manager, "draining_nodes", dict)
        patch.setattr(learner_manager, "PLACES_S", 0.0)
        patch.setattr(ray, "kill", self.killed.append)

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
