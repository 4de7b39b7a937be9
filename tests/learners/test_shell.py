"""A learner's shell on a device of numbers, with a scripted syncer: its loop in a thread, and in the event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from learners.config import DataConfig, InnerConfig
from learners.fault_effects import FaultEffects
from learners.ports import ThreadPace, run_through
from learners.protocol import events_effects
from learners.protocol.events_effects import RunStep, Stage, Staged, StepDone
from learners.protocol.facts import DeviceTaken, LoopFailed, StepFinished
from learners.shell import LEAVE_MARGIN_S, LearnerShell, SyncerRefused
from learners.spec import LearnerSpec
from outer.config import SyncConfig
from outer.numeric import codec as codecs
from outer.ports import Gone, Here, Unreachable
from outer.protocol.fragments import Fragment, Tensor
from outer.protocol.messages import Drain, Grant, Notice, ReadRequest, Stop, Welcome
from tests.learners.peers import FakePeer
from tests.waiting import DEADLINE_S, in_a_loop, until_async

THETA = np.zeros(3, np.float32)
WELCOME = Welcome(1, 1, 0.0, (1,))


class TaskPace:
    """The training loop is a task of the event loop, as in virtual time."""

    thread = None

    def __init__(self) -> None:
        self.now = time.monotonic
        self._woken = asyncio.Event()

    def wake(self) -> None:
        self._woken.set()

    async def run(self, loop: Coroutine[Any, Any, Any]) -> Any:
        return await loop

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def wait(self, seconds: float) -> None:
        await asyncio.wait({asyncio.ensure_future(self._woken.wait())}, timeout=seconds)
        self._woken.clear()

    async def result(self, pending: Any) -> Any:
        await asyncio.sleep(0.001)
        return pending.result()

    async def ready(self, steps: Any, start: int, count: int, seconds: float) -> bool:
        return bool(steps.ready(start, count, seconds))


class Device:
    """Its steps take a millisecond; a fragment is the number of its copy, and what is read is that."""

    fragments = (Fragment(0, (Tensor("w", (3,), "float32"),)),)
    tokens_per_step, manifest, state_bytes = 8, {"seed": 0}, 0
    device, chain = DeviceTaken("cpu", "cpu", 1, 1, "one", "", {}, {}), None

    def __init__(self) -> None:
        self.trainer = self.fragment_io = self
        self.done: list[str] = []

    def load(self, *given: Any) -> None:
        self.done.append("load")

    def compile(self) -> None:
        self.done.append("compile")

    def end(self) -> None:
        self.done.append("end")

    def ready(self, start: int, count: int, wait_s: float) -> bool:
        return True

    def dispatch(self, start: int, count: int, progress: float) -> Any:
        return SimpleNamespace(result=lambda: time.sleep(0.001) or (1.0, {}))

    def expect(self, starts: Any, count: int) -> None: ...

    def stage(self, fragments: Any) -> dict[int, Any]:
        return dict.fromkeys(fragments, THETA)

    def encode(self, contribution: Any) -> Any:
        return replace(contribution, digest="encoded")

    def apply(self, effect: Any) -> None:
        self.done.append(f"apply {effect.version}")

    def receive(self, fragment: int, theta: Any) -> Any:
        return theta

    def bytes_of(self, fragment: int) -> int:
        return 12


class Syncer(FakePeer):
    """Welcomes every learner with version 1 of the fragment, and takes all facts."""

    def __init__(self, answer: Any = WELCOME, log: list[Any] | None = None) -> None:
        """`answer`: to Attach. `log`: an earlier epoch's."""
        self.facts: list[Any] = [] if log is None else log
        super().__init__(
            attach=lambda message, facts, oldest, peer: (self._take(facts), answer)[1],
            report=lambda message, facts, oldest: self._take(facts),
            record=lambda learner, incarnation, facts, oldest: self._take(facts),
            seek=lambda message: None,
            fetch=lambda fragment, version, *_: (version, codecs.digest(THETA), THETA.copy(), 0),
        )

    def _take(self, facts: list[Any]) -> int:
        for number, _, fact in facts:
            if number == len(self.facts):
                self.facts.append(fact)
        return len(self.facts) - 1

    def has(self, kind: type[Any]) -> list[Any]:
        return [fact for fact in self.facts if isinstance(fact, kind)]


class Scene:
    """One learner. `ended`: how often it has ended its process."""

    def __init__(self, pace: Callable[[], Any] = ThreadPace) -> None:
        self.syncer, self.device, self.ended = Syncer(), Device(), 0
        spec = LearnerSpec(
            "a", 1, "task", {}, DataConfig(), InnerConfig(), SyncConfig(P=1, H=4), 0, 2, 1.0, 60.0,
            {}, "code", None, "cpu",
        )  # fmt: skip
        faults, device = FaultEffects(time.monotonic), self.device
        self.shell = LearnerShell(spec, Here(FakePeer(), self._end), self.syncer, faults, device, pace())  # type: ignore[arg-type]

    def _end(self) -> None:
        self.ended += 1

    async def stepping(self) -> asyncio.Future[str]:
        """Start it and lend it samples; once it steps, the call of `run`."""
        running = asyncio.ensure_future(self.shell.run())
        await until_async(lambda: running.done() or self.shell._machine is not None, "the machine")
        await until_async(lambda: running.done() or self.shell._machine.epoch == 1, "attached")  # type: ignore[union-attr]
        if not running.done():
            await self.shell.inbox(Grant(1, 1, 0, 0, 10**6))
            await until_async(lambda: running.done() or self.syncer.has(StepFinished), "a step")
        return running


@pytest.mark.parametrize("pace", [ThreadPace, TaskPace])
@in_a_loop
async def test_it_joins_steps_answers_and_stops_in_a_thread_and_as_a_task(pace: Any) -> None:
    made = Scene(pace)
    running = await made.stepping()
    contribution, facts, oldest = await made.shell.read(ReadRequest(1, 1, 2, 0, 1, 0.0, 60.0))  # type: ignore[misc]
    assert contribution.digest == "encoded" and contribution.held_s >= 0.0 and contribution.step >= 1
    assert oldest + len(facts) >= contribution.step
    await made.shell.inbox(Notice(1, 2, 0, 2, codecs.digest(THETA), 0.0))
    await until_async(lambda: "apply 2" in made.device.done, "the next version")
    assert (await made.shell.progress()) == (True, 1) and await made.shell.holds(0, 2)
    await made.shell.inbox(Stop(1, "over"))
    assert await running == "over" == await made.shell.run()
    assert made.device.done == ["load", "compile", "apply 1", "apply 2", "end"]
    steps = [fact.step for fact in made.syncer.has(StepFinished)]
    assert steps == list(range(1, len(steps) + 1)), "every step is in the log, in order"


@pytest.mark.parametrize(("works", "waits"), [(True, False), (False, True), (False, False)])
@in_a_loop
async def test_a_start_that_takes_longer_than_its_lease_renews_it_while_the_process_works_or_waits_for_a_rank(
    monkeypatch: pytest.MonkeyPatch, works: bool, waits: bool
) -> None:
    made, phases, loads, used_s = Scene(), list[str](), threading.Event(), count(0, int(works))
    made.shell._spec = replace(made.shell._spec, start_s=0.04)
    monkeypatch.setattr("learners.shell.time.process_time", lambda: next(used_s))
    monkeypatch.setattr("learners.shell.RENEWALS", 5)
    made.syncer.methods["report"] = lambda message, facts, oldest: (phases.append(message.phase), -1)[1]
    made.device.load = lambda *given: loads.wait(DEADLINE_S)  # type: ignore[method-assign]
    running = asyncio.ensure_future(made.shell.run())
    await made.shell.renew_start(lambda: waits)
    await until_async(lambda: len(phases) > (works or waits), "its reports")
    assert set(phases) == {"importing"} and (works or waits or len(phases) == 1)
    loads.set()
    await until_async(lambda: running.done() or made.shell._machine.phase != "importing", "the end of the import")  # type: ignore[union-attr]
    await made.shell.inbox(Stop(1, "over"))
    await running


@in_a_loop
async def test_a_refusal_ends_it_and_a_later_one_is_returned() -> None:
    made = Scene()
    made.syncer.methods["attach"] = lambda *given: "another recipe"
    with pytest.raises(SyncerRefused, match="another recipe"):
        await made.shell.run()
    made = Scene()
    running = await made.stepping()
    assert "stale" in await made.shell.reattach(1, 1, Syncer("stale", made.syncer.facts))
    await made.shell.inbox(Stop(1, "over"))
    await running


@pytest.mark.parametrize("error", [Gone("died"), Unreachable("cut off")])
@in_a_loop
async def test_it_steps_on_when_an_epoch_that_it_hears_of_is_gone_again(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    made = Scene()
    running = await made.stepping()
    monkeypatch.setattr("learners.shell.ATTACH_S", 0.04)
    assert await made.shell.reattach(1, 2, Syncer(error, made.syncer.facts)) == ""
    serves = Syncer(Welcome(3, 9, 0.0, (1,)), made.syncer.facts)
    assert await made.shell.reattach(1, 3, serves) == "" and (await made.shell.progress())[1] == 3
    overtaken = Syncer(Welcome(2, 5, 0.0, (1,)), made.syncer.facts)
    assert await made.shell.reattach(1, 2, overtaken) == "" and made.shell._link._syncer is serves
    await made.shell.inbox(Stop(3, "over"))
    assert await running == "over"


@in_a_loop
async def test_one_that_was_never_welcome_ends_where_the_next_epoch_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its reports would count as signs of life, and nobody would end its waiting. Seed 1156 of mixed found it."""
    made, asked = Scene(), asyncio.Event()
    made.syncer.methods["attach"] = lambda *_: asked.set() or asyncio.get_running_loop().create_future()
    running = asyncio.ensure_future(made.shell.run())
    await asyncio.wait_for(asked.wait(), DEADLINE_S)
    monkeypatch.setattr("learners.shell.ATTACH_S", 0.04)
    assert await made.shell.reattach(1, 1, Syncer(Unreachable("cut off"), made.syncer.facts)) == ""
    with pytest.raises(Unreachable, match="cut off"):
        await running


@in_a_loop
async def test_messages_of_an_epoch_wait_for_its_welcome() -> None:
    made = Scene()
    running, welcome = await made.stepping(), asyncio.get_running_loop().create_future()
    attaching = asyncio.ensure_future(made.shell.reattach(1, 1, Syncer(welcome, made.syncer.facts)))
    noticed = asyncio.ensure_future(made.shell.inbox(Notice(2, 5, 0, 5, codecs.digest(THETA), 0.0)))
    await asyncio.sleep(0.05)
    assert not noticed.done() and (await made.shell.progress())[1] == 1
    welcome.set_result(Welcome(2, 4, 0.0, (1,)))
    assert await attaching == "" and await noticed is None
    await until_async(lambda: "apply 5" in made.device.done, "the version of the notice")
    await made.shell.inbox(Stop(2, "over"))
    await running


@in_a_loop
async def test_what_the_machine_raises_beside_the_loop_ends_the_loop() -> None:
    """The caller that brought the message gets the error too, and may drop it; the machine is of no use any more."""
    made = Scene()
    running, handle = await made.stepping(), made.shell._machine.handle  # type: ignore[union-attr]

    def spoilt(now: float, event: Any) -> Any:
        if isinstance(event, Stop):
            raise MemoryError("no room")
        return handle(now, event)

    made.shell._machine.handle = spoilt  # type: ignore[union-attr, method-assign]
    with pytest.raises(MemoryError, match="no room"):
        await made.shell.inbox(Stop(1, "over"))
    with pytest.raises(MemoryError, match="no room"):
        await running
    assert len(made.syncer.has(LoopFailed)) == 1


@pytest.mark.parametrize(("deadlines", "left"), [([5.0], 5.0), ([30.0, 5.0, 29.0], 5.0)])
@in_a_loop
async def test_a_learner_that_has_to_leave_ends_some_time_after_its_deadline(
    monkeypatch: pytest.MonkeyPatch, deadlines: list[float], left: float
) -> None:
    made = Scene()
    running = await made.stepping()
    loop = asyncio.get_running_loop()
    timers: list[tuple[float, Any]] = []
    monkeypatch.setattr(made.shell, "_drive", lambda event: None)
    monkeypatch.setattr(loop, "call_at", lambda at, call: timers.append((at - loop.time(), call)))
    for deadline_s in deadlines:
        made.shell._exit_after(deadline_s)
    monkeypatch.undo()
    assert timers[-1] == (pytest.approx(left + LEAVE_MARGIN_S, abs=1.0), made.shell._here.end) and len(timers) <= 2
    await made.shell.inbox(Drain(1, 1, "scaled", 0.0))
    assert (await running).startswith("drained")


@in_a_loop
async def test_a_process_that_is_told_to_end_ends_at_once_only_while_it_has_nothing_to_lose() -> None:
    made = Scene()
    made.shell.leave()
    assert made.ended == 1
    running = await made.stepping()
    await asyncio.to_thread(made.shell.leave)
    await until_async(lambda: made.shell._machine.phase != "stepping", "it leaves")  # type: ignore[union-attr]
    assert made.ended == 1
    await made.shell.inbox(Stop(1, "drained"))
    assert await running == "drained"


@in_a_loop
async def test_a_promotion_that_comes_twice_does_not_end_the_attach_that_is_under_way() -> None:
    made = Scene()
    asked, answer, attach = asyncio.Event(), asyncio.Event(), made.syncer.methods["attach"]

    async def slow(*given: Any) -> Any:
        asked.set()
        await answer.wait()
        return attach(*given)

    made.syncer.methods["attach"] = slow
    assert (await made.shell.promote(1, "b", 2, None, made.syncer))["key"] == ("b", 2)
    running = asyncio.ensure_future(made.shell.run())
    await asked.wait()
    await made.shell.promote(1, "b", 2, None, made.syncer)
    answer.set()
    await until_async(lambda: made.shell._machine is not None and made.shell._machine.epoch == 1, "attached")
    await made.shell.inbox(Stop(1, "over"))
    assert await running == "over"


@in_a_loop
async def test_an_island_meets_at_one_place_however_often_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Scene()
    places = iter(["here:1", "here:2"])
    monkeypatch.setattr(made.shell, "_meet", lambda ranks: next(places))
    assert [await made.shell.lead((FakePeer(),)) for _ in range(2)] == ["here:1", "here:1"]


@in_a_loop
async def test_copies_are_handed_in_right_after_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Scene()
    events: list[Any] = []
    step = RunStep(1, 0, 0.0)

    def handle(now: float, event: Any) -> list[Any]:
        events.append(event)
        return [step] if isinstance(event, Staged) else [Stage((0,)), events_effects.Hold(1.0, "last")]

    made.shell._machine = SimpleNamespace(handle=handle)  # type: ignore[assignment]
    made.shell._drive(StepDone(1.0, 8))
    assert [type(event) for event in events] == [StepDone, Staged] and list(events[1].copies) == [0]
    assert list(made.shell._next) == [step, events_effects.Hold(1.0, "last")]


def test_a_training_loop_that_waits_for_anything_but_its_pace_is_an_error() -> None:
    async def waits() -> None:
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="its pace"):
        run_through(waits())
