"""Which standbys are made and when, and what becomes of those that fail, are taken or are not ready.

Ray is not started: actors are objects that answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from learners.spec import LearnerSpec
from orchestrator.lifecycle import standbys
from orchestrator.lifecycle.controller import Controller
from orchestrator.lifecycle.learner_units import LearnerHandle, LearnerUnits
from orchestrator.lifecycle.standbys import RETRY_S, Standby, Standbys
from orchestrator.recipe.config import Recipe
from orchestrator.runtime.placement import RunPlacement
from orchestrator.runtime.ray_processes import RayPlaces, RayProcesses
from outer.journal.object_store import Folder
from outer.ports import Gone, Unreachable
from outer.protocol.messages import COMPILING, STEPPING
from outer.ray_ports import RayPeer

A, B, C = "learner-p-0", "learner-p-1", "learner-p-2"


async def permitted() -> None:
    """Nobody has followed."""


class Fake:
    """A standby's actor. It is prepared once `prepared` is set, and dies when `dies` is."""

    def __init__(self) -> None:
        self.prepared, self.dies = asyncio.Event(), asyncio.Event()

    async def ask(self, method: str, *values: Any) -> bool:
        return await self._until(self.prepared if method == "prepare" else asyncio.Event())

    async def _until(self, event: asyncio.Event) -> bool:
        waits = [asyncio.ensure_future(each.wait()) for each in (event, self.dies)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if self.dies.is_set():
            raise Gone("it died")
        return False


class Made(Standbys):
    def __init__(self, patch: pytest.MonkeyPatch, wanted: int = 1) -> None:
        self.now, self.actors, self.killed = 0.0, [], []
        super().__init__(
            self.create, self.killed.append, lambda name: wanted, lambda one, other: C not in (one, other), 60.0
        )
        self.controller = Controller([A, B, C], backoff_s=1.0, hang_s=60.0)
        patch.setattr(standbys, "now", lambda: self.now)

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
    return Made(monkeypatch)


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


def test_a_learner_may_have_several_and_none_before_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(monkeypatch, 2)
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
        assert made.processes == [] and named(made.wanted((A, 2))) == [A]
        made.actors[0].dies.set()
        await watching

    asyncio.run(story())
    assert made.killed == [] and made._failures == {}, "its death is no failure of a standby any more"


def test_one_whose_place_is_given_back_before_it_is_made_is_not_made(made: Made) -> None:
    made.started(A, 1, "n")
    (standby,) = made.wanted((A, 1))
    made.release(A)
    asyncio.run(made.make(standby))
    assert made.actors == []


def test_a_learner_takes_its_own_or_one_of_another_that_is_alike_on_its_node(made: Made) -> None:
    for learner, node in ((A, "n"), (B, "n"), (C, "n")):
        made.started(learner, 1, node)
    for _ in range(3):
        (one,) = made.wanted((A, 1), (B, 1), (C, 1))
        one.ready, one.process = True, f"in the place of {one.learner}"
    assert [made.take(name) for name in (B, B, B)] == [f"in the place of {B}", f"in the place of {A}", None]
    (again,) = made.wanted((A, 1), (B, 1), (C, 1))
    again.ready, again.process, again.node = True, "elsewhere", "m"
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
    """A process: `fails` fails with `error`, if that is given."""

    def __init__(
        self, pid: int, error: Exception | None = None, key: tuple[str, int] = (A, 1), fails: str = "promote"
    ) -> None:
        self.pid, self.error, self.key, self.fails = pid, error, key, fails

    async def ask(self, method: str, *values: Any) -> dict[str, Any]:
        if method == self.fails and self.error is not None:
            raise self.error
        return {"pid": self.pid, "node": "n", "shown": {"CUDA_VISIBLE_DEVICES": "3"}, "key": self.key}


POOL = {"name": "p", "learners": 1, "resources": {"GPU": 1}, "standby": 1}
RECIPE = Recipe.model_validate({"name": "demo", "pools": [POOL], "budget": {"syncer_steps": 10}})


class Units(LearnerUnits):
    """Of a pool whose learners have one GPU and a standby each."""

    def __init__(self, left: Sequence[Answers] = ()) -> None:
        self.made: list[tuple[int, bool]] = []  # incarnation, and whether it has another recipe
        self.stood: list[tuple[Any, ...]] = []
        self.killed: list[Any] = []

        async def left_standbys() -> Sequence[Answers]:
            return left

        def learner(name: str, incarnation: int, saved: Any, syncer: Any, strange: bool) -> list[Answers]:
            self.made.append((incarnation, strange))
            return [Answers(99)]

        processes = SimpleNamespace(
            end=self.killed.append,
            core=lambda name: 0,
            start_learner=learner,
            start_standby=lambda *asked: self.stood.append(asked),
            left_standbys=left_standbys,
            left_rank=lambda name, incarnation, rank: None,
        )
        super().__init__(RECIPE, SimpleNamespace(processes=processes, places=None))


def test_a_standby_that_is_ready_becomes_the_next_incarnation_and_one_that_cannot_is_ended() -> None:
    async def story(error: Exception | None, misconfigured: bool) -> None:
        units, standby, process = Units(), Answers(7, error), LearnerHandle(A, 2)
        units.standbys._made.append(Standby(A, "n", standby, ready=True))
        if misconfigured:
            units.misconfigure(A)  # as chaos does: it needs another recipe
        found = await units.create(process, "syncer", 1, permitted)
        if error is None and not misconfigured:
            assert (found, process.ranks, process.syncer) == ([(7, "n")], (standby,), "syncer")
            assert units.made == units.killed == []
        else:
            assert (found, units.killed) == ([(99, "n")], [standby])
            assert units.made == [(2, misconfigured)]

    for error, misconfigured in ((None, False), (Gone("it died"), False), (TimeoutError(), False), (None, True)):
        asyncio.run(story(error, misconfigured))


def test_of_the_standbys_that_are_left_those_that_were_promoted_are_learners_and_others_are_ended() -> None:
    """One that it did not live to promote would train as incarnation 0; nobody would end one that does not answer."""
    idle, promoted = Answers(7, key=(A, 0)), Answers(7, key=(B, 2))
    silent = [Answers(7, error, (B, 0), "identify") for error in (TimeoutError(), Unreachable("cut off"))]
    units = Units([idle, promoted, *silent])
    asyncio.run(units.find_standbys())
    assert units.killed == [idle, *silent]
    found = asyncio.run(units.find(B, 2, {}))
    assert found is not None and found[0].ranks == (promoted,)
    assert asyncio.run(units.find(A, 1, {})) is None


def test_a_standby_takes_none_of_its_place_and_sees_the_devices_of_its_learner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    units = Units()
    asyncio.run(units.create(LearnerHandle(A, 1), "syncer", 1, permitted))
    units._stand_by(Standby(A, "n"))
    [asked] = units.stood
    assert asked == (A, "n", {"CUDA_VISIBLE_DEVICES": "3"})

    made: list[tuple[LearnerSpec, dict[str, Any]]] = []

    def options(**options: Any) -> Any:
        return SimpleNamespace(remote=lambda spec, syncer: made.append((spec, options)))

    places = RayPlaces(RECIPE, RunPlacement("", 0))
    places._groups[A] = "its place"
    processes = RayProcesses(RECIPE, RunPlacement("", 0), "code", Folder(tmp_path), places)
    actor = SimpleNamespace(options=options)
    monkeypatch.setattr(ray, "remote", lambda *actors, **groups: actor if actors else lambda _: actor)
    processes.start_learner(A, 1, None, RayPeer("syncer"), False)
    processes.start_standby(*asked)
    (_, first), (spec, options_of) = made
    assert (spec.incarnation, spec.environment) == (0, {"CUDA_VISIBLE_DEVICES": "3"})
    assert (first["num_gpus"], options_of["num_gpus"], options_of["num_cpus"]) == (1, 0, 0)
    assert first["name"] == A and options_of["name"].startswith(f"{A}.standby.")
    assert options_of["scheduling_strategy"].placement_group == "its place"


def test_standbys_that_are_left_are_found_by_their_names_in_the_runs_own_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = {f"{A}.standby.1": "one", f"{B}.standby.2": "two"}
    listed = [{"name": name, "namespace": space} for name in (*there, A) for space in ("", "another run's")]
    monkeypatch.setattr(ray, "get_actor", lambda name, namespace: there[name])
    monkeypatch.setattr(ray.util, "list_named_actors", lambda everywhere: listed)
    placement = RunPlacement("", 0)
    processes = RayProcesses(RECIPE, placement, "code", Folder(tmp_path), RayPlaces(RECIPE, placement))
    assert [peer.handle for peer in asyncio.run(processes.left_standbys())] == ["one", "two"]
