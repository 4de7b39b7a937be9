"""Epochs of the syncer, one after another, with actors that are only names: who notices, who waits, who gives up."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from orchestrator.eventlog.facts import SyncerLost
from orchestrator.lifecycle import patience, syncer_manager
from orchestrator.lifecycle.patience import Patience
from orchestrator.lifecycle.ports import Ports
from orchestrator.lifecycle.syncer_manager import RunFailed, SyncerManager
from orchestrator.recipe.config import Recipe
from orchestrator.runtime import launch
from orchestrator.runtime.placement import RunPlacement
from orchestrator.runtime.specs import syncer_spec
from orchestrator.store.run_lock import RunLock
from orchestrator.store.run_store import RunStore
from orchestrator.store.watch import RunLost
from outer import ports
from outer.journal.journal import StaleEpoch
from outer.journal.object_store import Folder, StoreAway
from outer.journal.rebuild import Incomplete
from outer.owner import Owner, Superseded
from outer.ports import Gone, Raised, Unreachable
from outer.spec import SyncerSpec

RECIPE = Recipe.model_validate(
    {
        "name": "demo",
        "pools": [{"name": "p"}],
        "budget": {"syncer_steps": 10},
        "sync": {"P": 1},
        "run": {"syncer_lease_s": 1.0},
    }
)


class Epoch:
    """`alive`: answers; else its process is dead. `mute`: it does not answer at all. `why`: what a start raises."""

    def __init__(self, comes_up: bool = True, why: Exception | None = None) -> None:
        self.alive, self.mute, self.told, self._comes_up = True, False, list[str](), comes_up
        self._why = why or Gone("its process ended")
        self.ended = ""  # why it is over, by its own word
        self.serves, self.owner = True, Owner()
        self.cut_off = 0  # calls that do not reach it

    async def ask(self, command: str, number: int, name: str, *_: Any) -> Any:
        assert command == "command", "every call says which orchestrator it is of"
        try:
            self.owner.require(number)
        except Superseded as error:
            raise Raised("Superseded") from error
        if self.mute:
            await asyncio.Event().wait()
        if self.cut_off:
            self.cut_off -= 1
            raise Unreachable("connection timed out")
        if not self.alive or (name == "start" and not self._comes_up):
            raise self._why
        self.told.append(name)
        if name == "view":
            return {"said": "view answered", "ended": self.ended}
        known = {"pid": 1, "node": "n", "run": "r", "begun": 1, "serves": self.serves}
        return known if name in ("start", "identify") else f"{name} answered"


class Scene:
    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, *epochs: Epoch) -> None:
        self.said: list[Any] = []
        self.reached: list[Epoch] = []
        self.killed: list[Epoch] = []
        self.epochs = list(epochs)
        self.store = RunStore(folder)
        self.replaced: list[str] = []
        self.helped: list[bool] = []  # by epoch, whether it got the sources of a rebuild
        self.left: Epoch | None = None  # by an earlier orchestrator
        store, spec = Folder(folder), syncer_spec(RECIPE, "code", Folder(folder))
        anything: Any = SimpleNamespace(
            start_syncer=self.create, left_syncer=lambda epoch: self.left, end=self.killed.append
        )
        ports = Ports(self.store, anything, anything, store, tuple, self.said.append, self.replaced.append, True)
        told: Any = tuple, self.reached.append, tuple
        self.syncer = SyncerManager(RECIPE.run, ports, spec, *told, Patience(), 1)
        patch.setattr(syncer_manager, "BACKOFF_S", 0.001)
        patch.setattr(patience, "BACKOFF_S", 0.001)

    def create(self, spec: SyncerSpec, sources: Any) -> Epoch:
        self.helped.append(sources is not None)
        return self.epochs.pop(0)

    @property
    def lost(self) -> list[tuple[int, str]]:
        return [(fact.epoch, fact.cause) for fact in self.said if isinstance(fact, SyncerLost)]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    def run(story: Callable[[Scene], Coroutine[Any, Any, Any]], *epochs: Epoch) -> Scene:
        async def whole() -> Scene:
            scene = Scene(tmp_path, monkeypatch, *epochs)
            scene.syncer.begin(await scene.syncer.grant())
            await asyncio.wait_for(story(scene), 120.0)
            return scene

        return asyncio.run(whole())

    return run


@pytest.mark.parametrize("serves", [True, False])
def test_an_epoch_that_an_earlier_orchestrator_left_is_taken_over_only_if_it_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serves: bool
) -> None:
    """Its orchestrator may have died before it had it begin: what is asked of it would come before Living."""
    left = Epoch()
    left.serves = serves

    async def story() -> None:
        scene = Scene(tmp_path, monkeypatch)
        scene.left = left
        assert await scene.syncer.adopt(7) is serves
        assert scene.killed == ([] if serves else [left]) and (scene.syncer.peer is left) is serves

    asyncio.run(story())


def test_an_orchestrator_that_thaws_is_refused_once_a_later_one_has_called_and_hears_of_it(
    play: Callable[..., Any],
) -> None:
    first = Epoch()

    async def story(scene: Scene) -> None:
        await scene.syncer.call("expect", patience_s=30.0)
        first.owner.require(2)
        with pytest.raises(Raised):
            await scene.syncer.call("fence", patience_s=30.0)

    scene = play(story, first)
    assert first.told == ["start", "expect"] and scene.replaced == ["orchestrator 1 was followed by orchestrator 2"]


def test_an_orchestrator_that_was_succeeded_starts_no_epoch(play: Callable[..., Any]) -> None:
    """It thaws, and takes its epoch, which was silent for so long, for dead: a new one would fence its successor's."""
    first, second = Epoch(), Epoch()

    async def story(scene: Scene) -> None:
        await scene.syncer.call("expect", patience_s=30.0)
        for _ in range(2):
            scene.store.grant("incarnation", "orchestrator")
        first.alive = False
        assert await scene.syncer.view() is None
        while not scene.replaced:
            await asyncio.sleep(0.001)

    assert play(story, first, second).replaced == ["orchestrator 1 was followed by orchestrator 2"]


@pytest.mark.parametrize("ended", ["", "shard 1: ActorDiedError"])
def test_two_who_notice_one_end_bring_one_successor_and_what_is_told_reaches_it(
    play: Callable[..., Any], ended: str
) -> None:
    """It dies, or says itself why it is over."""
    first, second = Epoch(), Epoch()

    async def story(scene: Scene) -> None:
        assert await scene.syncer.call("expect", 1, patience_s=30.0) == "expect answered"
        first.alive, first.ended = bool(ended), ended
        if not ended:
            told = asyncio.ensure_future(scene.syncer.call("fence", patience_s=30.0))
        assert await scene.syncer.view() is None
        if ended:
            told = asyncio.ensure_future(scene.syncer.call("fence", patience_s=30.0))
        assert await told == "fence answered"
        seen = await scene.syncer.view()
        assert seen is not None and seen["said"] == "view answered"

    scene = play(story, first, second)
    assert scene.lost == [(1, "died")] and scene.killed == [first] and scene.reached == [first, second]
    assert second.told == ["start", "fence", "view"] and (not ended or scene.said[0].detail == ended)


def test_one_that_does_not_answer_is_followed_after_its_lease(play: Callable[..., Any]) -> None:
    first, second = Epoch(), Epoch()

    async def story(scene: Scene) -> None:
        await scene.syncer.call("expect", patience_s=30.0)
        await scene.syncer.view()
        first.mute = True
        assert await scene.syncer.view() is None
        assert scene.syncer.down_s >= 0.0
        while await scene.syncer.view() is None:
            await asyncio.sleep(0.01)
        assert scene.syncer.down_s == 0.0

    scene = play(story, first, second)
    assert scene.lost == [(1, "lease_expired")] and scene.killed == [first], "once another serves"


@pytest.mark.parametrize(("calls", "lost"), [(3, []), (10**6, [(1, "lease_expired")])])
def test_one_that_cannot_be_reached_is_asked_again_until_its_lease_is_over(
    play: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, calls: int, lost: list[tuple[int, str]]
) -> None:
    monkeypatch.setattr(ports, "AGAIN_S", 0.01)
    first, second = Epoch(), Epoch()

    async def story(scene: Scene) -> None:
        await scene.syncer.call("expect", patience_s=30.0)
        first.cut_off = calls
        asked = asyncio.ensure_future(scene.syncer.call("fence", patience_s=60.0))
        while await scene.syncer.view() is None or not asked.done():
            await asyncio.sleep(0.01)

    assert play(story, first, second).lost == lost


def test_epochs_that_do_not_come_up_are_tried_again_and_in_the_end_given_up(play: Callable[..., Any]) -> None:
    async def comes(scene: Scene) -> None:
        assert await scene.syncer.call("expect", patience_s=30.0) == "expect answered"

    scene = play(comes, Epoch(comes_up=False), Epoch(comes_up=False), Epoch())
    assert scene.lost == [(1, "failed"), (2, "failed")] and len(scene.killed) == 2

    async def never(scene: Scene) -> None:
        with pytest.raises(RunFailed, match="the syncer does not start: its process ended"):
            await scene.syncer.call("expect", patience_s=4.0)
        with pytest.raises(RunFailed):
            await scene.syncer.view()

    play(never, *(Epoch(comes_up=False) for _ in range(syncer_manager.START_ATTEMPTS_MAX)))

    async def silent(scene: Scene) -> None:
        with pytest.raises(RunFailed, match="the syncer does not start: not up within 120 s"):
            await scene.syncer.call("expect", patience_s=60.0)
        assert scene.syncer.away == "", "its store answers"

    play(silent, *(Epoch(False, TimeoutError()) for _ in range(syncer_manager.START_ATTEMPTS_MAX)))


@pytest.mark.parametrize("hangs", [False, True])
def test_while_the_store_is_away_no_epoch_counts_as_failed_and_no_deadline_passes_and_it_is_told(
    play: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    """The store is away when the syncer dies, and stays so for more starts than may fail and longer than is waited."""
    told, proved, now = list[str](), list[int](), [0.0]
    why: Exception = TimeoutError()
    if not hangs:
        why = Raised("StoreAway")
        why.__cause__ = StoreAway("OSError: [Errno 28] No space left on device")
    epochs = [Epoch(), *(Epoch(False, why) for _ in range(2 * syncer_manager.START_ATTEMPTS_MAX)), Epoch()]

    def prove(store: Any) -> None:
        proved.append(1)
        answers_at = now[0] + 11.0
        while hangs and now[0] < answers_at:
            time.sleep(0.001)
        if now[0] < 60.0 and not hangs:
            raise OSError("503 Slow Down")

    monkeypatch.setattr(syncer_manager, "now", lambda: now[0])

    async def story(scene: Scene) -> None:
        await scene.syncer.call("expect", patience_s=30.0)
        monkeypatch.setattr(syncer_manager, "prove", prove)
        epochs[0].alive = False
        waiting = asyncio.ensure_future(scene.syncer.call("fence", patience_s=30.0))
        while scene.syncer.peer is not epochs[-1]:
            told.append(scene.syncer.away)
            now[0] += 0.2 if told[-1] else 0.0
            await asyncio.sleep(0.001)
        assert await waiting == "fence answered" and scene.syncer.away == ""

    scene = play(story, *epochs)
    assert len(scene.lost) == len(epochs) - 1 and scene.reached == [epochs[0], epochs[-1]]
    says = "does not answer" if hangs else "No space left"
    assert any(says in each for each in told) and len(proved) >= len(epochs) - 2 and now[0] >= 60.0


def test_an_error_of_a_store_that_nobody_foresees_does_not_end_the_run(
    play: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client raises it while the orchestrator looks whether the store is back."""
    away = Raised("StoreAway")
    away.__cause__ = StoreAway("503")

    def prove(store: Any) -> None:
        raise RuntimeError("a client's own")

    async def story(scene: Scene) -> None:
        monkeypatch.setattr(syncer_manager, "prove", prove)
        assert await scene.syncer.call("expect", patience_s=30.0) == "expect answered"

    assert play(story, Epoch(comes_up=False, why=away), Epoch()).lost == [(1, "failed")]


def test_a_journal_that_lacks_something_is_helped_until_an_epoch_serves(play: Callable[..., Any]) -> None:
    """Seed 14000142 of shards: each epoch after one whose store was away had to find that out again, and it counted."""

    async def story(scene: Scene) -> None:
        await asyncio.wait_for(scene.syncer.call("fence", patience_s=60.0), 60.0)

    lacks, away = Raised("Incomplete"), Raised("StoreAway")
    lacks.__cause__, away.__cause__ = Incomplete("the journal has no records"), StoreAway("503")
    scene = play(story, Epoch(comes_up=False, why=lacks), Epoch(comes_up=False, why=away), Epoch())
    assert scene.helped == [False, True, True]


def test_what_needs_a_store_that_is_away_waits_for_it_and_for_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "BACKOFF_S", 0.0)
    waits, tried = Patience(), list[str]()

    def stored(answers: list[Any]) -> str:
        tried.append(waits.why)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert asyncio.run(waits.stored(stored, [OSError("503"), TimeoutError("mute"), "done"])) == "done"
    assert tried == ["", "OSError: 503", "TimeoutError: mute"] and waits.why == ""
    for final in (FileExistsError("there"), ValueError("damaged"), StaleEpoch("fenced")):
        with pytest.raises(type(final)):
            asyncio.run(waits.stored(stored, [OSError("503"), final]))
    assert waits.why == ""


def test_who_waits_for_one_that_never_comes_has_a_deadline(play: Callable[..., Any]) -> None:
    first = Epoch()
    first.mute = True

    async def story(scene: Scene) -> None:
        with pytest.raises(TimeoutError, match="no syncer served"):
            await scene.syncer.call("expect", patience_s=0.1)

    play(story, first)


@pytest.mark.parametrize("when", ["serving", "starting"])
def test_once_the_run_is_over_none_follows_even_if_somebody_still_calls(play: Callable[..., Any], when: str) -> None:
    """A checkpoint under way notices the death of a syncer that the run itself has ended."""
    first, second, third = Epoch(), Epoch(comes_up=when == "serving"), Epoch()

    async def story(scene: Scene) -> None:
        await scene.syncer.call("expect", patience_s=30.0)
        if when == "starting":
            first.alive, second.mute = False, True
            saving = asyncio.ensure_future(scene.syncer.call("kept", patience_s=100.0))
            while scene.syncer.peer is first:
                await asyncio.sleep(0.001)
        with contextlib.suppress(TimeoutError):
            await scene.syncer.close(0.01)
        first.alive = second.mute = False
        if when == "starting":
            with pytest.raises(TimeoutError, match="the run is over"):
                await saving
        with pytest.raises(TimeoutError, match="the run is over"):
            await scene.syncer.call("kept", patience_s=100.0)

    scene = play(story, first, second, third)
    assert scene.reached == [first] and third.told == []
    assert len(scene.lost) == (when == "starting"), "the one before the end"


def test_a_shell_asks_an_orchestrator_that_cannot_be_reached_again_and_follows_a_dead_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unavailable = ray.exceptions.ActorUnavailableError("timed out", None)
    answers: list[Any] = [unavailable, {"state": "finished"}, unavailable, ray.exceptions.RayActorError()]

    def get(answer: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(launch, "WAIT_S", 0.001)
    monkeypatch.setattr(ray, "wait", lambda calls, timeout: (calls, []))
    monkeypatch.setattr(ray, "get", get)
    orchestrator = SimpleNamespace(result=SimpleNamespace(remote=lambda: answers.pop(0)))
    assert launch._wait(orchestrator, launch.Statuses(RunStore(tmp_path), print)) == {"state": "finished"}
    with pytest.raises(RunLost):
        launch._wait(orchestrator, launch.Statuses(RunStore(tmp_path), print))


def test_a_shell_has_the_lock_of_its_run_while_there_is_no_orchestrator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, held, ends = RunLock(Folder(tmp_path), "one"), list[bool](), [RunLost("it died"), {"state": "finished"}]

    def start(*_: Any) -> None:
        held.append(lock.held)

    def wait(*_: Any) -> Any:
        if isinstance(end := ends.pop(0), Exception):
            raise end
        return end

    for name, stub in (("_orchestrator", start), ("_wait", wait)):
        monkeypatch.setattr(launch, name, stub)
    monkeypatch.setattr(launch.signal, "signal", lambda *_: None)
    monkeypatch.setattr(launch.metrics_actor, "start", lambda *_: None)
    monkeypatch.setattr(ray, "kill", lambda _: None)
    launch.start_and_wait(RECIPE, RunStore(tmp_path), RunPlacement("", 1), None, print, detach=False, lock=lock)
    assert held == [False, True]
