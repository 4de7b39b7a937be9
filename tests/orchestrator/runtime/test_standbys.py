"""Which standbys are made and when, and what becomes of those that fail, are taken or are not ready.

Ray is not started: actors are objects that answer.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from learners.spec import LearnerSpec
from orchestrator.lifecycle.controller import Controller
from orchestrator.recipe.config import Recipe
from orchestrator.runtime.learner_actors import RETRY_S, LearnerActors, LearnerHandle, Standby, Standbys
from orchestrator.runtime.placement import RunPlacement
from outer.journal.object_store import Folder
from outer.protocol.messages import COMPILING, STEPPING

A, B, C = "learner-p-0", "learner-p-1", "learner-p-2"


class Fake:
    """A standby's actor. It is prepared once `prepared` is set, and dies when `dies` is."""

    def __init__(self) -> None:
        self.prepared, self.dies = asyncio.Event(), asyncio.Event()
        self.prepare = SimpleNamespace(remote=lambda: asyncio.ensure_future(self._until(self.prepared)))
        self.stand_by = SimpleNamespace(remote=lambda seconds: asyncio.ensure_future(self._until(asyncio.Event())))

    async def _until(self, event: asyncio.Event) -> bool:
        waits = [asyncio.ensure_future(each.wait()) for each in (event, self.dies)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if self.dies.is_set():
            raise ray.exceptions.RayActorError()
        return False


class Made(Standbys):
    def __init__(self, wanted: int = 1) -> None:
        self.now, self.actors, self.killed = 0.0, [], []
        super().__init__(
            self.create, lambda name: wanted, lambda one, other: C not in (one, other), 60.0, lambda: self.now
        )
        self.controller = Controller([A, B, C], backoff_s=1.0, hang_s=60.0)

    def create(self, standby: Standby) -> Any:
        self.actors.append(Fake())
        return self.actors[-1]

    def started(self, learner: str, incarnation: int, node: str) -> None:
        self.controller.advance(self.now)
        self.controller.started(learner, incarnation)
        self.controller.answered(learner, incarnation, 1, node)

    def wanted(self, *rows: tuple[str, int], phase: str = STEPPING) -> list[Standby]:
        told = [{"name": name, "incarnation": incarnation, "phase": phase} for name, incarnation in rows]
        return self.due(told, self.controller.units)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    made = Made()
    monkeypatch.setattr(ray, "kill", made.killed.append)
    return made


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def named(found: list[Standby]) -> list[str]:
    return [each.learner for each in found]


def test_learners_that_step_get_standbys_one_at_a_time_on_a_node(made: Made) -> None:
    for learner, node in ((A, "n"), (B, "n"), (C, "m")):
        made.started(learner, 1, node)
    assert made.wanted((A, 1), phase=COMPILING) == []
    first = made.wanted((A, 1), (B, 1), (C, 1))
    assert named(first) == [A, C]
    assert made.wanted((A, 1), (B, 1), (C, 1)) == []
    first[0].ready = True
    assert named(made.wanted((A, 1), (B, 1), (C, 1))) == [B]


def test_a_learner_may_have_several_and_none_before_it_runs() -> None:
    made = Made(2)
    assert made.wanted((A, 1)) == []
    made.started(A, 1, "n")
    for _ in range(2):
        (one,) = made.wanted((A, 1))
        one.ready = True
    assert made.wanted((A, 1)) == []
    assert made.ready(A) == 2


def test_one_that_is_ready_is_taken_and_the_next_is_made(made: Made) -> None:
    async def story() -> None:
        made.started(A, 1, "n")
        (standby,) = made.wanted((A, 1))
        watching = asyncio.ensure_future(made.make(standby))
        await settle()
        assert made.ready(A) == 0 and made.take(A) is None, "it goes on being made"
        made.actors[0].prepared.set()
        await settle()
        assert made.ready(A) == 1
        assert made.take(A) is made.actors[0]
        assert made.handles == [] and named(made.wanted((A, 2))) == [A]
        made.actors[0].dies.set()
        await watching

    asyncio.run(story())
    assert made.killed == [] and made._failures == {}, "its death is no failure of a standby any more"


def test_a_learner_takes_its_own_or_one_of_another_that_is_alike_on_its_node(made: Made) -> None:
    for learner, node in ((A, "n"), (B, "n"), (C, "n")):
        made.started(learner, 1, node)
    for _ in range(3):
        (one,) = made.wanted((A, 1), (B, 1), (C, 1))
        one.ready, one.actor = True, f"in the place of {one.learner}"
    assert [made.take(name) for name in (B, B, B)] == [f"in the place of {B}", f"in the place of {A}", None]
    (again,) = made.wanted((A, 1), (B, 1), (C, 1))
    again.ready, again.actor, again.node = True, "elsewhere", "m"
    assert made.take(B) is None and made.take(A) == "elsewhere"


@pytest.mark.parametrize("prepared", [False, True])
def test_one_that_dies_is_followed_by_another_after_a_wait_that_doubles(made: Made, prepared: bool) -> None:
    async def story() -> list[float]:
        waits = []
        made.started(A, 1, "n")
        for _ in range(3):
            (standby,) = made.wanted((A, 1))
            watching = asyncio.ensure_future(made.make(standby))
            await settle()
            if prepared:
                made.actors[-1].prepared.set()
                await settle()
            made.actors[-1].dies.set()
            await watching
            failed_at = made.now
            while not made.wanted((A, 1)):
                made.now += 1.0
            made.release(A)
            waits.append(made.now - failed_at)
        return waits

    waits = asyncio.run(story())
    assert waits == ([RETRY_S] * 3 if prepared else [RETRY_S, 2 * RETRY_S, 4 * RETRY_S])


# ------------------------------------------------------------------ a learner from a standby


class Answers:
    """An actor: `promote` fails with `error`, if that is given."""

    def __init__(self, pid: int, error: Exception | None = None) -> None:
        self.pid, self._error = pid, error
        self.promote = SimpleNamespace(remote=self._promote)
        self.identify = SimpleNamespace(remote=lambda: self._identify())

    async def _promote(self, *promoted: Any) -> dict[str, Any]:
        if self._error is not None:
            raise self._error
        return await self._identify()

    async def _identify(self) -> dict[str, Any]:
        return {"pid": self.pid, "node": "n", "shown": {"CUDA_VISIBLE_DEVICES": "3"}}


class Actors(LearnerActors):
    """Of a pool whose learners have one GPU and a standby each; `made` are the specs and options of new actors."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        pool = {"name": "p", "learners": 1, "resources": {"GPU": 1}, "standby": 1}
        recipe = Recipe.model_validate({"name": "demo", "pools": [pool], "budget": {"syncer_steps": 10}})
        super().__init__(recipe, RunPlacement("", 0), "code", Folder(folder), lambda name: 0)
        self.places._groups[A] = "its place"
        self.made: list[tuple[LearnerSpec, dict[str, Any]]] = []
        self.killed: list[Any] = []
        made = SimpleNamespace(options=self._options)
        patch.setattr(ray, "remote", lambda *actor, **groups: made if actor else lambda actor: made)
        patch.setattr(ray, "kill", self.killed.append)

    def _options(self, **options: Any) -> Any:
        return SimpleNamespace(remote=lambda spec, syncer: (self.made.append((spec, options)), Answers(99))[1])

    def ready(self, actor: Answers) -> None:
        self.standbys._made.append(Standby(A, "n", actor, ready=True))


def test_a_standby_that_is_ready_becomes_the_next_incarnation_and_one_that_cannot_is_ended_and_a_process_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error, misconfigured in (
        (None, False),
        (ray.exceptions.RayActorError(), False),
        (TimeoutError(), False),
        (None, True),
    ):
        actors, standby, process = Actors(tmp_path, monkeypatch), Answers(7, error), LearnerHandle(A, 2)
        actors.ready(standby)
        if misconfigured:
            actors.misconfigure(A)  # as chaos does: it needs another recipe
        found = asyncio.run(actors.create(process, "syncer", 1))
        if error is None and not misconfigured:
            assert (found, process.actor, process.syncer) == ([(7, "n")], standby, "syncer")
            assert actors.made == actors.killed == []
        else:
            assert (found, actors.killed) == ([(99, "n")], [standby])
            assert [spec.incarnation for spec, _ in actors.made] == [2]


def test_of_the_standbys_that_an_earlier_orchestrator_left_those_it_promoted_are_learners_and_the_others_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that it did not live to promote would train as incarnation 0."""

    def left(incarnation: int) -> Any:
        async def identify() -> dict[str, Any]:
            return {"pid": 7, "node": "n", "key": (A, incarnation)}

        return SimpleNamespace(identify=SimpleNamespace(remote=identify))

    there = {f"{A}.standby.1": left(0), f"{B}.standby.2": left(2)}

    def get_actor(name: str, namespace: str) -> Any:
        if name not in there:
            raise ValueError(name)
        return there[name]

    actors = Actors(tmp_path, monkeypatch)
    monkeypatch.setattr(ray, "get_actor", get_actor)
    listed = [{"name": name, "namespace": space} for name in (*there, A) for space in ("", "another run's")]
    monkeypatch.setattr(ray.util, "list_named_actors", lambda everywhere: listed)
    asyncio.run(actors.find_standbys())
    assert actors.killed == [there[f"{A}.standby.1"]]
    found = asyncio.run(actors.find(A, 2, {}))
    assert found is not None and found[0].actor is there[f"{B}.standby.2"]
    assert asyncio.run(actors.find(A, 1, {})) is None


def test_a_standby_takes_none_of_its_place_and_sees_the_devices_of_its_learner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    actors = Actors(tmp_path, monkeypatch)
    asyncio.run(actors.create(LearnerHandle(A, 1), "syncer", 1))
    actors._stand_by(Standby(A, "n"))
    (_, first), (spec, options) = actors.made
    assert (spec.incarnation, spec.environment) == (0, {"CUDA_VISIBLE_DEVICES": "3"})
    assert (first["num_gpus"], options["num_gpus"], options["num_cpus"]) == (1, 0, 0)
    assert first["name"] == A and options["name"].startswith(f"{A}.standby.")
    assert options["scheduling_strategy"].placement_group == "its place"
