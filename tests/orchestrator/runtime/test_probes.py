"""The learners' shell asks Ray: whether a silent learner's node can be seen, and where a place is missing."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.eventlog.facts import LearnerRequested
from orchestrator.lifecycle.controller import State
from orchestrator.runtime import learner_handles, learner_manager
from orchestrator.runtime.learner_handles import LearnerHandle
from tests.orchestrator.runtime.scene import DEADLINE_S, GOES, Scene, Serving, until


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
