"""The learners' shell, with places and processes that are only names: what is given up, ended, or left to end itself.

The syncer is the real machine behind its real shell's calls; Ray is not started.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
import ray

from orchestrator.eventlog.facts import LearnerLost, LearnerRequested
from orchestrator.lifecycle.actions import AskToLeave
from orchestrator.lifecycle.controller import State
from orchestrator.lifecycle.scaling import request_file
from orchestrator.recipe.config import Recipe
from orchestrator.runtime import learner_handles, learner_manager
from orchestrator.runtime.learner_handles import LearnerHandle
from orchestrator.runtime.placement import RunPlacement
from orchestrator.store.run_store import RunStore
from outer.actor import SyncerActor
from outer.journal.object_store import Folder
from outer.protocol.events_effects import Effect, Event, Expect
from outer.protocol.facts import LearnerFenced
from outer.protocol.messages import DRAINING, JOINING, STEPPING, Attach, Drain
from tests.golden.bench import MANIFEST, Bench

T = TypeVar("T")
STAYS, GOES = "learner-p-0", "learner-p-1"
DEADLINE_S = 120.0


class Outer(SyncerActor):
    """What the orchestrator calls, in front of a machine that has no merges to compute and nobody to send to."""

    def __init__(self, bench: Bench) -> None:
        self._bench, self._peers = bench, {}
        self._recorder = SimpleNamespace(record=lambda writer, incarnation, facts: -1)

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
        )
        patch.setattr(learner_handles, "reserve", self.reserve)
        patch.setattr(learner_handles, "remove_placement_group", lambda group: self.given_up.append(group.learner))
        patch.setattr(learner_handles, "pending_reasons", self.pending_reasons)
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
        assert self.learners._places is not None
        await self.learners._places

    def facts(self, kind: type[T], learner: str = GOES) -> list[T]:
        return [fact for fact in self.said if isinstance(fact, kind) and fact.learner == learner]

    @property
    def fenced(self) -> list[tuple[str, str]]:
        return [(fact.learner, fact.reason) for fact in self.bench.facts(LearnerFenced)]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path, monkeypatch)


async def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)


@pytest.mark.parametrize(("incarnation", "reached"), [(1, True), (2, True), (3, False)])
def test_only_news_of_a_later_incarnation_makes_the_living_one_unreachable(incarnation: int, reached: bool) -> None:
    made = Bench(learners={STAYS: 8}, quorum=1)
    outer = Outer(made)
    asyncio.run(outer.expect(Expect(STAYS, 2, 60.0, 8)))
    asyncio.run(outer.attach(Attach(STAYS, 2, MANIFEST), (), "its handle"))
    asyncio.run(outer.expect(Expect(STAYS, incarnation, 60.0, 8)))
    assert (STAYS in outer._peers) is reached


def test_one_that_is_scaled_away_while_it_waits_for_its_next_start_gives_up_its_place(scene: Scene) -> None:
    async def story() -> None:
        scene.learners.start(Serving(scene.outer), {})
        await until(lambda: len(scene.facts(LearnerLost)) == 2)  # from the second on there is a back-off
        assert scene.given_up == []
        scene.scale(1)
        assert scene.given_up == [GOES]
        scene.learners.watch([])

    scene.come = broken
    asyncio.run(story())
    assert len(scene.facts(LearnerRequested)) == 2, "nor does it start again"


def test_one_that_is_scaled_away_before_there_is_a_place_for_it_leaves_at_once(scene: Scene) -> None:
    async def story() -> None:
        scene.learners.start(Serving(scene.outer), {})
        await until(lambda: bool(scene.facts(LearnerRequested)))
        scene.scale(1)
        await until(lambda: scene.given_up == [GOES])

    asyncio.run(story())
    assert scene.fenced == [(GOES, "drained")]
    assert scene.facts(LearnerLost) == []


@pytest.mark.parametrize(("leaves", "fence"), [(False, "killed"), (True, "drained")])
def test_its_successor_starts_once_the_syncer_knows_of_its_end_and_a_place_given_up_is_not_the_successors(
    scene: Scene, leaves: bool, fence: str
) -> None:
    gate, reserved = asyncio.Event(), []

    class Slow(Outer):
        async def fence(self, learner: str, incarnation: int, reason: str) -> None:
            await gate.wait()
            await super().fence(learner, incarnation, reason)

    async def come() -> None:
        reserved.append(len(scene.given_up))
        if len(reserved) == 1 and not leaves:
            await broken()
        await pending()

    async def story() -> None:
        scene.learners.start(Serving(Handle(Slow(scene.bench))), {})
        await until(lambda: reserved == [0])
        if leaves:
            scene.learners._act(scene.learners.controller.drain(GOES, "its node is about to end"))
        await until(lambda: not scene.learners.controller.alive(GOES, 1))
        scene.learners.watch([])
        await asyncio.sleep(0.01)
        assert (len(scene.facts(LearnerRequested)), scene.given_up) == (1, [])
        gate.set()
        await until(lambda: len(reserved) == 2)

    scene.come = come
    asyncio.run(story())
    assert scene.fenced == [(GOES, fence)]
    assert reserved == [0, len(scene.given_up)] == [0, int(leaves)]


@pytest.mark.parametrize(
    ("phase", "ended", "fenced"),
    [(STEPPING, False, []), (DRAINING, False, []), (JOINING, True, [(GOES, "drained")])],
)
def test_one_that_can_leave_by_itself_is_told_to_and_no_other_is_ended(
    scene: Scene, phase: str, ended: bool, fenced: list[tuple[str, str]]
) -> None:
    """Draining: its host told it before the orchestrator did."""

    async def story() -> None:
        scene.learners._syncer = Serving(scene.outer)
        await scene.learners._drain(AskToLeave(GOES, 1, "its node is about to end", 5.0))

    scene.bench.join(GOES)
    scene.bench.step(GOES, phase=phase)
    scene.learners._processes[GOES] = LearnerHandle(GOES, 1, actor="its process")
    asyncio.run(story())
    assert scene.killed == (["its process"] if ended else [])
    assert [message.deadline_s for message in scene.bench.sent(Drain, GOES)] == ([] if ended else [5.0])
    assert scene.fenced == fenced


def test_a_request_that_would_leave_fewer_than_the_quorum_is_not_heeded(scene: Scene) -> None:
    """`diloco scale` refuses it; two at once, for two pools, can each have looked fine."""

    async def story() -> None:
        scene.learners.start(Serving(scene.outer), {})
        await until(lambda: bool(scene.facts(LearnerRequested)))
        scene.scale(0)
        assert scene.learners.controller.pools == {"p": 2}

    asyncio.run(story())


def test_a_learner_without_a_place_is_reported_with_the_reason_and_the_quorum_is_then_impossible(scene: Scene) -> None:
    async def story() -> None:
        scene.learners.start(Serving(scene.outer), {})
        await until(lambda: bool(scene.facts(LearnerRequested)))
        await scene.look()
        assert scene.learners.placed[STAYS].no_place == "", "one look is not enough"
        await scene.look()
        assert {name: each.no_place for name, each in scene.learners.placed.items()} == {
            STAYS: "no node is alive",
            GOES: "no node is alive",
        }
        assert not scene.learners.controller.quorum_possible
        scene.learners.actors.release(GOES)
        scene.learners.actors._groups[GOES] = Group(GOES, broken)
        await scene.look()
        assert scene.learners.placed[GOES].no_place == ""

    asyncio.run(story())


def run_one(scene: Scene) -> None:
    """One learner runs, on the node n."""
    made = scene.learners.controller
    scene.learners._processes[GOES] = LearnerHandle(GOES, 1, actor="its process")
    made.units[GOES].move(State.STARTING)
    made.started(GOES, 1)
    made.answered(GOES, 1, 7, "n")


def report_silence(scene: Scene, silent_s: float) -> None:
    """The syncer has heard nothing from that learner for so long."""
    row = {"name": GOES, "incarnation": 1, "alive": False, "lease_age_s": silent_s}
    scene.learners._watch_leases([row], time.monotonic())


@pytest.mark.parametrize("seen", [True, False])
def test_a_silent_learner_whose_node_cannot_be_seen_is_unreachable_until_it_is_seen_or_silent_for_too_long(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, seen: bool
) -> None:
    async def unseen_reason(node: str, namespace: str) -> str:
        return "" if looks and seen else f"its node {node} does not answer"

    looks: list[str] = []
    monkeypatch.setattr(learner_handles, "unseen_reason", unseen_reason)
    monkeypatch.setattr(learner_manager, "PROBES_S", 0.0)
    made = scene.learners.controller
    unit = made.units[GOES]

    async def look(silent_s: float) -> None:
        report_silence(scene, silent_s)
        if scene.learners._probes:
            await asyncio.wait(scene.learners._probes)

    async def story() -> None:
        scene.learners._syncer = Serving(scene.outer)
        run_one(scene)
        await look(1.0)
        assert unit.state is State.RUNNING, "a short silence is no reason to look for its node"
        await look(6.0)
        assert unit.state is State.UNREACHABLE
        looks.append("again")
        await look(10.0)
        assert unit.state is (State.RUNNING if seen else State.UNREACHABLE)
        await look(20.0)
        assert unit.state is State.ENDING
        scene.learners.cancel()

    asyncio.run(story())
    assert unit.incarnation.ending == "silent for 20.0 s" + ("" if seen else "; its node n does not answer")


def test_a_silent_learner_is_probed_by_one_probe_at_a_time(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one could see the node before the first gives up and calls it unseen."""
    begun: list[str] = []

    async def unseen_reason(node: str, namespace: str) -> str:
        begun.append(node)
        await release.wait()
        return ""

    release = asyncio.Event()
    monkeypatch.setattr(learner_handles, "unseen_reason", unseen_reason)
    monkeypatch.setattr(learner_manager, "PROBES_S", 0.0)

    async def story() -> None:
        run_one(scene)
        for _ in range(3):
            report_silence(scene, 6.0)
            await asyncio.sleep(0)
        assert begun == ["n"]
        release.set()
        await asyncio.wait(scene.learners._probes)
        report_silence(scene, 6.0)
        await asyncio.wait(scene.learners._probes)
        assert begun == ["n", "n"]

    asyncio.run(story())


def test_on_a_local_cluster_no_silent_learner_is_probed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its only node is this machine. A new agent on a busy core could fail to answer, and the node would be blamed."""
    scene = Scene(tmp_path, monkeypatch, cores=1)

    async def story() -> None:
        run_one(scene)
        report_silence(scene, 6.0)
        assert not scene.learners._probes

    asyncio.run(story())
    assert scene.learners.controller.units[GOES].state is State.RUNNING


def test_a_probe_that_fails_changes_nothing_and_does_not_end_the_run(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unseen_reason(node: str, namespace: str) -> str:
        raise RuntimeError("the state of the cluster cannot be read")

    monkeypatch.setattr(learner_handles, "unseen_reason", unseen_reason)

    async def story() -> None:
        run_one(scene)
        report_silence(scene, 6.0)
        await asyncio.wait(scene.learners._probes)
        await asyncio.sleep(0)

    asyncio.run(story())
    assert scene.learners.failure is None
    assert scene.learners.controller.units[GOES].state is State.RUNNING


@pytest.mark.parametrize("fails", [True, False])
def test_places_are_looked_for_beside_the_event_loop_one_look_at_a_time_and_no_answer_changes_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    def pending_reasons(claims: dict[str, Any], anywhere: bool) -> dict[str, str]:
        looks.append(threading.current_thread())
        assert release.wait(DEADLINE_S)
        if fails and len(looks) > 2:
            raise RuntimeError("the state of the cluster cannot be read")
        return dict.fromkeys(claims, "no node is alive") if len(looks) <= 2 else {}

    looks: list[threading.Thread] = []
    release = threading.Event()
    monkeypatch.setattr(learner_handles, "pending_reasons", pending_reasons)

    async def story() -> None:
        scene.learners.start(Serving(scene.outer), {})
        await until(lambda: bool(scene.facts(LearnerRequested)))
        scene.learners.watch([])
        await until(lambda: bool(looks))
        scene.learners.watch([])
        await asyncio.sleep(0.01)
        assert len(looks) == 1 and looks[0] is not threading.main_thread()
        release.set()
        await scene.learners._places
        for _ in range(2):
            await scene.look()
        assert scene.learners.placed[GOES].no_place == ("no node is alive" if fails else "")

    asyncio.run(story())
    assert scene.learners.failure is None
