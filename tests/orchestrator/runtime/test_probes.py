"""The learners' shell asks Ray: whether a silent learner's node can be seen, and where a place is missing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.eventlog.facts import LearnerRequested
from orchestrator.lifecycle import learner_manager
from orchestrator.lifecycle.controller import State
from orchestrator.lifecycle.learner_units import LearnerHandle
from orchestrator.runtime import placement, ray_processes
from outer.ports import NoAnswer, Unreachable
from tests.orchestrator.runtime.scene import GOES, Asks, Scene, Serving, until
from tests.waiting import DEADLINE_S


class Asked:
    """A learner's actor, which answers the one call that a probe makes."""

    def __init__(self, answer: Callable[[], Coroutine[Any, Any, tuple[bool, int | None]]]) -> None:
        self._answer = answer

    async def progress(self) -> tuple[bool, int | None]:
        return await self._answer()


async def steps() -> tuple[bool, int | None]:
    return True, 1


async def hangs() -> tuple[bool, int | None]:
    return False, 1


async def is_away() -> tuple[bool, int | None]:
    raise NoAnswer("no answer")


async def is_unavailable() -> tuple[bool, int | None]:
    raise Unreachable("connection timed out")


def run_one(scene: Scene, answer: Callable[[], Coroutine[Any, Any, tuple[bool, int | None]]]) -> None:
    """One learner runs, on the node n; `answer`: what it says when it is asked."""
    made = scene.learners.controller
    scene.learners._syncer = Serving(scene.outer)  # type: ignore[assignment]
    scene.learners._processes[GOES] = LearnerHandle(GOES, 1, ranks=(Asks(Asked(answer)),))
    made.units[GOES].move(State.STARTING)
    made.started(GOES, 1)
    made.answered(GOES, 1, 7, "n")


def report_silence(scene: Scene, silent_s: float) -> None:
    """The syncer has heard nothing from that learner for so long."""
    row = {"name": GOES, "incarnation": 1, "alive": False, "merged": False, "phase": "stepping"}
    scene.learners._watch_leases([row | {"lease_age_s": silent_s}])


async def look(scene: Scene, silent_s: float) -> State:
    """Its state after a look, and after what the look asked for."""
    report_silence(scene, silent_s)
    if scene.learners._probes.running:
        await asyncio.wait(scene.learners._probes.running)
    report_silence(scene, silent_s)
    return scene.learners.controller.units[GOES].state


@pytest.mark.parametrize("seen", [True, False])
def test_a_silent_learner_whose_node_cannot_be_seen_is_unreachable_until_it_is_seen_or_silent_for_too_long(
    scene: Scene, seen: bool
) -> None:
    looks: list[str] = []
    scene.processes.why = lambda node: "" if looks and seen else f"its node {node} does not answer"

    async def story() -> None:
        run_one(scene, is_away)
        assert await look(scene, 1.0) is State.RUNNING, "a short silence is no reason to look for its node"
        assert await look(scene, 6.0) is State.UNREACHABLE
        looks.append("again")
        assert await look(scene, 10.0) is (State.RUNNING if seen else State.UNREACHABLE)
        assert await look(scene, 20.0) is (State.ENDING if seen else State.UNREACHABLE)
        assert await look(scene, 3600.0) is State.ENDING
        scene.learners.cancel()

    asyncio.run(story())
    ending = scene.learners.controller.units[GOES].incarnation.ending
    assert ending == ("silent for 20.0 s" if seen else "silent for 3600.0 s; its node n does not answer")


@pytest.mark.parametrize("cores", [0, 1])
def test_a_learner_that_says_itself_that_it_steps_is_not_killed_for_reports_that_do_not_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    """With cores: on a local cluster. Its only node is this machine, which is not looked for: a new agent on a busy
    core could fail to answer, and the node would be blamed.
    """

    async def story(scene: Scene, answer: Any, late: State, end: State) -> str:
        run_one(scene, answer)
        assert (await look(scene, 19.9), await look(scene, 600.0)) == (late, end)
        scene.learners.cancel()
        return scene.learners.controller.units[GOES].fault

    def scene(why: str = "") -> Scene:
        made = Scene(tmp_path, monkeypatch, cores)
        made.processes.why = lambda node: why
        return made

    told = asyncio.run(story(scene(), steps, State.UNREACHABLE, State.UNREACHABLE))
    assert told == f"silent for 600.0 s; {learner_manager.UNHEARD}"
    away = story(scene(), is_unavailable, State.UNREACHABLE, State.UNREACHABLE)
    assert asyncio.run(away) == "silent for 600.0 s; its process cannot be reached"
    told = asyncio.run(story(scene("its node n does not answer"), hangs, State.RUNNING, State.ENDING))
    assert told == "silent for 600.0 s"
    if cores:
        asyncio.run(story(scene("its node n does not answer"), is_away, State.RUNNING, State.ENDING))


def test_a_learner_that_steps_and_is_not_attached_to_the_epoch_that_serves_is_told_of_it_again(scene: Scene) -> None:
    told: list[Any] = []

    class Deaf(Asked):
        async def reattach(self, number: int, epoch: int, syncer: Any) -> str:
            told.append(syncer)
            return ""

    async def story() -> None:
        run_one(scene, steps)
        process = scene.learners._processes[GOES]
        process.ranks, process.syncer = (Asks(Deaf(steps)),), scene.outer
        await look(scene, 6.0)
        assert told == []
        scene.learners._syncer.epoch = 2  # type: ignore[union-attr, misc]
        await look(scene, 10.0)
        await until(lambda: told == [scene.outer])

    asyncio.run(story())


def test_a_probe_that_fails_does_not_end_the_run_and_the_hang_deadline_holds(scene: Scene) -> None:
    def fails(node: str) -> str:
        raise RuntimeError("the state of the cluster cannot be read")

    scene.processes.why = fails

    async def story() -> None:
        run_one(scene, is_away)
        assert await look(scene, 6.0) is State.RUNNING
        assert await look(scene, 20.0) is State.ENDING
        scene.learners.cancel()

    asyncio.run(story())
    assert scene.learners.failure is None


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
    monkeypatch.setattr(ray_processes, "pending_reasons", pending_reasons)

    async def story() -> None:
        scene.learners.start(Serving(scene.outer), {})
        await until(lambda: bool(scene.facts(LearnerRequested)))
        scene.learners.watch([])
        await until(lambda: bool(looks))
        scene.learners.watch([])
        await asyncio.sleep(0.01)
        assert len(looks) == 1 and looks[0] is not threading.main_thread()
        release.set()
        await scene.learners._looking
        for _ in range(2):
            await scene.look()
        assert scene.learners.placed[GOES].no_place == ("no node is alive" if fails else "")

    asyncio.run(story())
    assert scene.learners.failure is None


def test_an_agent_that_is_up_too_late_signals_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would kill what the log says was spared."""
    late = SimpleNamespace(answer=SimpleNamespace(remote=partial(asyncio.sleep, 60.0)))  # not asked for more
    monkeypatch.setattr(placement, "node_agent", lambda *_: late)
    monkeypatch.setattr(placement, "AGENT_S", 0.1)
    with pytest.raises(TimeoutError):
        asyncio.run(placement.signalled("node", "run", "kill", 7))
