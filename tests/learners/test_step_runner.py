"""The steps in flight of a training loop, on a device whose every move is a test's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from learners.fault_effects import FaultEffects
from learners.protocol.events_effects import RunStep, StepDone, Waiting
from learners.protocol.facts import Spoiled
from learners.step_runner import StepRunner
from tests.waiting import in_a_loop


class Device:
    """A trainer that writes down what it is asked for."""

    def __init__(self) -> None:
        self.moves: list[str] = []
        self.fragments = (SimpleNamespace(size=3),)
        self.broken_at = self.slow_at = -1

    def ready(self, start: int, count: int, wait_s: float) -> bool:
        if start == self.slow_at:
            self.moves.append("wait")
        return start != self.slow_at or self.moves.count("wait") > 2

    def dispatch(self, start: int, count: int, progress: float) -> Any:
        if start == self.broken_at:
            raise ValueError("no such samples")
        self.moves.append(f"dispatch {start}")

        def result() -> tuple[float, dict[str, float]]:
            self.moves.append(f"result {start}")
            return float(start), {"share": 0.5}

        return SimpleNamespace(result=result)

    def expect(self, starts: Any, count: int) -> None:
        self.moves.append(f"expect {list(starts)}")

    def load(self, index: int, flat: Any) -> None:
        self.moves.append("spoil")


class Waits:
    """A pace that waits for nothing, and writes down for how long it should have slept."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self.now: Callable[[], float] = lambda: 0.0

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    async def result(self, pending: Any) -> tuple[float, dict[str, float]]:
        return pending.result()

    async def ready(self, steps: Any, start: int, count: int, seconds: float) -> bool:
        return steps.ready(start, count, seconds)


@dataclass
class Scene:
    device: Device
    runner: StepRunner
    faults: FaultEffects
    pace: Waits
    told: list[Any]


def scene(slowdown: float = 1.0) -> Scene:
    device, told = Device(), []
    faults = FaultEffects(lambda: 0.0)
    devices: Any = SimpleNamespace(trainer=device, tokens_per_step=20)
    spec: Any = SimpleNamespace(batch_size=2, slowdown=slowdown, sync=SimpleNamespace(smoothing=0.5))
    pace: Any = Waits()
    runner = StepRunner(devices, spec, faults, pace, told.append, told.append)
    return Scene(device, runner, faults, pace, told)


def step(number: int, *ahead: int) -> RunStep:
    return RunStep(number, number, 0.5, ahead)


@in_a_loop
async def test_a_step_is_dispatched_before_the_loss_of_the_one_before_is_waited_for() -> None:
    made = scene()
    await made.runner.run(step(1, 2, 3))
    assert made.device.moves == ["dispatch 1", "expect [2, 3]"] and made.told == [] and made.runner.busy
    await made.runner.run(step(2, 3, 4))
    assert made.device.moves[2:] == ["dispatch 2", "expect [3, 4]", "result 1"]
    assert made.told == [StepDone(1.0, 20, {"share": 0.5})]
    await made.runner.complete()
    assert [done.loss for done in made.told] == [1.0, 2.0] and not made.runner.busy


@in_a_loop
async def test_on_a_slowed_learner_one_step_runs_at_a_time() -> None:
    """Else the next step would compute while the loop sleeps, and the learner would be no slower."""
    now = iter(range(100))
    made = scene(slowdown=3.0)
    made.pace.now = lambda: float(next(now))
    await made.runner.run(step(1))
    await made.runner.run(step(2))
    assert [move for move in made.device.moves if not move.startswith("expect")] == [
        "dispatch 1",
        "result 1",
        "dispatch 2",
        "result 2",
    ]
    assert made.pace.slept == [2.0, 2.0], "twice what a step took, beside the step"


@in_a_loop
async def test_a_step_in_which_the_process_was_frozen_is_not_slowed_down_by_the_freeze() -> None:
    now, made = [0.0], scene(slowdown=21.0)

    def clock() -> float:
        now[0] += 12.0 if len(made.pace.slept) == 2 else 0.25  # of the third step
        return now[0]

    made.pace.now = clock
    for number in (1, 2, 3, 4):
        await made.runner.run(step(number))
    assert made.pace.slept == [5.0] * 4, "each twenty times what the steps before it took, or what it took itself"


@in_a_loop
async def test_before_an_injected_delay_nothing_is_left_in_flight() -> None:
    made = scene()
    made.pace.slept = made.device.moves  # type: ignore[assignment]
    await made.runner.run(step(1))
    made.faults.begin("slow", 10.0, 0.7)
    await made.runner.run(step(2))
    moves = [move for move in made.device.moves if not str(move).startswith("expect")]
    assert moves == ["dispatch 1", "result 1", 0.7, "dispatch 2"]


@in_a_loop
async def test_that_a_step_was_spoiled_is_told_after_the_step_before_and_once() -> None:
    made = scene()
    await made.runner.run(step(1))
    made.faults.begin("non_finite", 0.0)
    await made.runner.run(step(2))
    await made.runner.run(step(3))
    await made.runner.complete()
    assert [each.step if isinstance(each, Spoiled) else "done" for each in made.told] == ["done", 2, "done", "done"]
    assert made.device.moves.count("spoil") == 1


@in_a_loop
async def test_a_step_that_cannot_begin_takes_no_other_with_it() -> None:
    made = scene()
    await made.runner.run(step(1))
    made.device.broken_at = 2
    with pytest.raises(ValueError, match="no such samples"):
        await made.runner.run(step(2))
    assert [done.loss for done in made.told] == [1.0]


@in_a_loop
async def test_a_loop_that_waits_for_data_says_so_with_nothing_in_flight() -> None:
    made = scene()
    await made.runner.run(step(1, 2))
    made.device.slow_at = 2
    await made.runner.run(step(2))
    assert [move for move in made.device.moves if "expect" not in move] == [
        "dispatch 1", "wait", "result 1", "wait", "wait", "dispatch 2",
    ]  # fmt: skip
    assert made.told == [StepDone(1.0, 20, {"share": 0.5}), Waiting(), Waiting()]


@in_a_loop
async def test_a_pause_belongs_to_the_step_after_it() -> None:
    made = scene()
    await made.runner.run(step(1))
    await made.runner.complete()
    made.runner.paused(0.25)
    await made.runner.run(step(2))
    await made.runner.run(step(3))
    await made.runner.complete()
    assert [done.paused_s for done in made.told] == [0.0, 0.25, 0.0]
