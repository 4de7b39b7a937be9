"""The learners' shell: what is given up, ended, left to end itself, or without a place."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.eventlog.facts import LearnerLost, LearnerRequested
from orchestrator.lifecycle.actions import AskToLeave
from orchestrator.lifecycle.controller import RankState, State
from orchestrator.lifecycle.learner_units import LearnerHandle
from orchestrator.lifecycle.pools import request_file
from orchestrator.lifecycle.standbys import Standby
from outer import ports
from outer.ports import Gone, Unreachable
from outer.protocol.events_effects import Expect
from outer.protocol.facts import Refused
from outer.protocol.messages import DRAINING, JOINING, STEPPING, Attach, Drain
from tests.orchestrator.runtime.scene import GOES, STAYS, Asks, Group, Outer, Scene, Serving, broken, pending, until
from tests.transcripts.syncer_world import MANIFEST, Bench


def test_only_news_of_a_later_incarnation_makes_the_living_one_unreachable() -> None:
    outer = Outer(Bench(learners={STAYS: 8}, quorum=1))
    asyncio.run(outer.expect(Expect(STAYS, 2, 60.0, 8)))
    asyncio.run(outer.attach(Attach(STAYS, 2, MANIFEST), (), 0, "its peer"))
    for incarnation in (1, 2, 3):
        asyncio.run(outer.expect(Expect(STAYS, incarnation, 60.0, 8)))
        assert (STAYS in outer._peers) is (incarnation < 3)


def test_an_orchestrator_that_follows_finds_those_that_no_status_showed_yet_and_has_those_leave_that_are_not_wanted(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool was scaled up to three, and down to one, just before the earlier one died; STAYS is as it was."""
    added = "learner-p-2"

    class Process:
        async def identify(self) -> dict[str, Any]:
            return {"pid": 7, "node": "n"}

        run = staticmethod(pending)

    for name in (STAYS, GOES, added, "evaluator", "orchestrator"):
        scene.store.grant("incarnation", name)
    scene.store.write_json(request_file("p"), {"learners": 1})
    scene.processes.left = {name: Asks(Process()) for name in (STAYS, added)}
    monkeypatch.setattr(scene.learners.processes.places, "adopt", lambda name: None)

    async def story() -> None:
        assert await scene.learners.find({}) == [STAYS, added]
        scene.learners.start(Serving(scene.outer), {}, again=True)
        await until(lambda: bool(scene.killed))

    asyncio.run(story())
    assert scene.processes.looked == [STAYS, GOES, added] and scene.learners.controller.wanted == [STAYS]
    assert scene.killed == [scene.processes.left[added]]
    assert scene.learners.controller.units[STAYS].incarnation.ranks[0].pid == 7
    assert scene.bench.facts(Refused) == []


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
        scene.learners.start(Serving(Asks(Slow(scene.bench))), {})
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


@pytest.mark.parametrize(("error", "lost"), [(Unreachable("timed out"), []), (Gone("it died"), ["died"])])
def test_a_process_that_cannot_be_reached_is_not_dead(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, error: Exception, lost: list[str]
) -> None:
    """Its connection broke, and its loop steps on: the call that waits for its end is made again."""
    monkeypatch.setattr(ports, "AGAIN_S", 0.001)
    said: list[Exception] = [error, error]

    class Unit:
        async def run(self) -> str:
            if said:
                raise said.pop()
            return "drained"

    async def story() -> None:
        scene.learners._syncer = Serving(scene.outer)
        made = scene.learners.controller
        made.units[GOES].move(State.STARTING)
        made.started(GOES, 1)
        process = LearnerHandle(GOES, 1, ranks=(Asks(Unit()),))
        await scene.learners._attend(process, process.run())
        scene.learners.cancel()

    asyncio.run(story())
    assert [fact.cause for fact in scene.facts(LearnerLost)] == lost


@pytest.mark.parametrize("phase", ["compiling", "stepping"])
def test_a_start_without_progress_names_the_key_that_gives_it_longer(scene: Scene, phase: str) -> None:
    async def story() -> None:
        scene.learners._syncer = Serving(scene.outer)
        made = scene.learners.controller
        made.units[GOES].move(State.STARTING)
        made.started(GOES, 1)
        scene.learners._watch_leases(
            [{"name": GOES, "incarnation": 1, "lease_age_s": 130.0, "phase": phase, "merged": False, "alive": False}]
        )
        await scene.learners._lost(LearnerHandle(GOES, 1), "lease_expired", "silent for 130.0 s")
        scene.learners.cancel()

    asyncio.run(story())
    [lost] = scene.facts(LearnerLost)
    assert lost.detail == "silent for 130.0 s"
    hint = "compiling made no progress for run.start_s = 120; raise that"
    assert (hint in scene.learners.faults[GOES]) == (phase == "compiling")


def test_what_is_left_of_a_gang_without_rank_0_is_ended(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier orchestrator started it, and died before the gang met."""

    def left_rank(name: str, incarnation: int, rank: int) -> str | None:
        return f"{name}.{incarnation}/{rank}" if rank else None

    monkeypatch.setattr(scene.processes, "left_rank", left_rank)
    pool = SimpleNamespace(processes=3, standby=0)
    monkeypatch.setattr(scene.learners.processes, "_recipe", SimpleNamespace(pool_of=lambda name: pool))
    assert asyncio.run(scene.learners.processes.find(GOES, 2, {})) is None
    assert scene.killed == [f"{GOES}.2/1", f"{GOES}.2/2"]


def test_a_frozen_rank_of_one_that_left_is_killed_by_its_node_and_no_rank_of_its_successor(scene: Scene) -> None:
    async def leave() -> None:
        for incarnation in (1, 2):
            unit.move(State.STARTING)
            learners.controller.started(GOES, incarnation, 2)
            await learners._left(LearnerHandle(GOES, 1, ranks=("rank 0", "rank 1")))
        await asyncio.sleep(0.0)

    learners, unit = scene.learners, scene.learners.controller.units[GOES]
    learners._syncer, learners._over = Serving(scene.outer), lambda: True
    asyncio.run(leave())
    assert scene.killed == 2 * ["rank 0", "rank 1"] + 2 * [RankState()]


def test_the_ranks_of_a_gang_that_was_not_led_hear_where_to_meet_once_a_frozen_rank_0_says_so(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier orchestrator did not live to have it led."""
    followed, thawed = list[str](), asyncio.Event()

    class Rank:
        async def identify(self) -> dict[str, Any]:
            return {"pid": 7, "node": "n"}

        async def lead(self, others: Any) -> str:
            await thawed.wait()
            return f"where {len(others)} meet"

        async def follow(self, address: str) -> None:
            followed.append(address)

        async def run(self) -> str:
            await until(lambda: len(followed) == 2)
            return "drained"

    async def story() -> str:
        found = await scene.learners.processes.find(GOES, 2, {})
        assert found is not None
        asyncio.get_running_loop().call_soon(thawed.set)
        return await found[0].run()

    monkeypatch.setattr(scene.processes, "left_rank", lambda name, incarnation, rank: Asks(Rank()))
    pool = SimpleNamespace(processes=3, standby=0, accelerated=False)
    monkeypatch.setattr(scene.learners.processes, "_recipe", SimpleNamespace(pool_of=lambda name: pool))
    assert asyncio.run(story()) == "drained"
    assert followed == ["where 2 meet"] * 2


@pytest.mark.parametrize(
    ("phase", "ended", "fenced"), [(STEPPING, False, []), (DRAINING, False, []), (JOINING, True, [(GOES, "drained")])]
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
    scene.learners._processes[GOES] = LearnerHandle(GOES, 1, ranks=("its process",))
    asyncio.run(story())
    assert scene.killed == (["its process"] if ended else [])
    assert [message.deadline_s for message in scene.bench.sent(Drain, GOES)] == ([] if ended else [5.0])
    assert scene.fenced == fenced


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
        scene.learners.processes.release(GOES)
        scene.learners.processes.places._groups[GOES] = Group(GOES, broken)
        await scene.look()
        assert scene.learners.placed[GOES].no_place == "" and scene.learners.controller.quorum_possible

    asyncio.run(story())


def test_an_orchestrator_that_was_succeeded_while_it_waited_for_a_place_takes_no_number_and_starts_no_process_there(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was frozen. Its successor has not found what was not there yet, nor whose number is not the newest."""
    come, replaced = asyncio.Event(), list[str]()

    def end(why: str) -> None:
        replaced.append(why)
        raise asyncio.CancelledError  # as where the process ends

    async def story() -> None:
        scene.store.grant("incarnation", "orchestrator")
        scene.learners.start(Serving(scene.outer), {})
        await until(lambda: bool(scene.facts(LearnerRequested)))
        scene.store.grant("incarnation", "orchestrator")
        come.set()
        await until(lambda: bool(replaced))

    scene.come = come.wait
    monkeypatch.setattr(scene.learners, "_ports", replace(scene.learners._ports, replaced=end))
    asyncio.run(story())  # Processes has no `start_learner`, nor `start_standby`
    for late in scene.learners._stand_by(Standby(GOES, "n")), scene.learners._start(GOES):
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(late)
    assert scene.store.granted("incarnation", GOES) == 1
    assert replaced == 3 * ["orchestrator 1 was followed by orchestrator 2"]
