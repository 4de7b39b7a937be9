"""The steps in flight of a training loop, on a device whose every move is a test's."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from learners import step_runner
from learners.fault_effects import FaultEffects
from learners.protocol.events_effects import RunStep, StepDone
from learners.protocol.facts import Spoiled
from learners.step_runner import StepRunner


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


@dataclass
class Scene:
    device: Device
    runner: StepRunner
    faults: FaultEffects
    told: list[Any]


def scene(slowdown: float = 1.0) -> Scene:
    device, told = Device(), []
    faults = FaultEffects(lambda: 0.0)
    trainer: Any = device
    runner = StepRunner(trainer, 2, 20, slowdown, 0.5, faults, told.append, lambda: told.append("waits"), told.append)
    return Scene(device, runner, faults, told)


def step(number: int, *ahead: int) -> RunStep:
    return RunStep(number, number, 0.5, ahead)


def test_a_step_is_dispatched_before_the_loss_of_the_one_before_is_waited_for() -> None:
    made = scene()
    made.runner.run(step(1, 2, 3))
    assert made.device.moves == ["dispatch 1", "expect [2, 3]"] and made.told == [] and made.runner.busy
    made.runner.run(step(2, 3, 4))
    assert made.device.moves[2:] == ["dispatch 2", "expect [3, 4]", "result 1"]
    assert made.told == [StepDone(1.0, 20, {"share": 0.5})]
    made.runner.complete()
    assert [done.loss for done in made.told] == [1.0, 2.0] and not made.runner.busy


def test_on_a_slowed_learner_one_step_runs_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next step would compute while the loop sleeps, and the learner would be no slower."""
    slept: list[float] = []
    now = iter(range(100))
    monkeypatch.setattr(step_runner.time, "sleep", slept.append)
    monkeypatch.setattr(step_runner.time, "monotonic", lambda: float(next(now)))
    made = scene(slowdown=3.0)
    made.runner.run(step(1))
    made.runner.run(step(2))
    assert [move for move in made.device.moves if not move.startswith("expect")] == [
        "dispatch 1",
        "result 1",
        "dispatch 2",
        "result 2",
    ]
    assert slept == [2.0, 2.0], "twice what a step took, beside the step"


def test_a_step_in_which_the_process_was_frozen_is_not_slowed_down_by_the_freeze(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    now = [0.0]
    monkeypatch.setattr(step_runner.time, "sleep", slept.append)

    def clock() -> float:
        now[0] += 12.0 if len(slept) == 2 else 0.25  # of the third step
        return now[0]

    monkeypatch.setattr(step_runner.time, "monotonic", clock)
    made = scene(slowdown=21.0)
    for number in (1, 2, 3, 4):
        made.runner.run(step(number))
    assert slept == [5.0] * 4, "each twenty times what the steps before it took, or what it took itself"


def test_before_an_injected_delay_nothing_is_left_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    made = scene()
    monkeypatch.setattr(step_runner.time, "sleep", lambda seconds: made.device.moves.append(f"sleep {seconds}"))
    made.runner.run(step(1))
    made.faults.begin("slow", 10.0, 0.7)
    made.runner.run(step(2))
    moves = [move for move in made.device.moves if not move.startswith("expect")]
    assert moves == ["dispatch 1", "result 1", "sleep 0.7", "dispatch 2"]


def test_that_a_step_was_spoiled_is_told_after_the_step_before_and_once() -> None:
    made = scene()
    made.runner.run(step(1))
    made.faults.begin("non_finite", 0.0)
    made.runner.run(step(2))
    made.runner.run(step(3))
    made.runner.complete()
    assert [each.step if isinstance(each, Spoiled) else "done" for each in made.told] == ["done", 2, "done", "done"]
    assert made.device.moves.count("spoil") == 1


def test_a_step_that_cannot_begin_takes_no_other_with_it() -> None:
    made = scene()
    made.runner.run(step(1))
    made.device.broken_at = 2
    with pytest.raises(ValueError, match="no such samples"):
        made.runner.run(step(2))
    assert [done.loss for done in made.told] == [1.0]


def test_a_loop_that_waits_for_data_says_so_with_nothing_in_flight() -> None:
    made = scene()
    made.runner.run(step(1, 2))
    made.device.slow_at = 2
    made.runner.run(step(2))
    assert [move for move in made.device.moves if "expect" not in move] == [
        "dispatch 1", "wait", "result 1", "wait", "wait", "dispatch 2",
    ]  # fmt: skip
    assert made.told == [StepDone(1.0, 20, {"share": 0.5}), "waits", "waits"]


def test_a_pause_belongs_to_the_step_after_it() -> None:
    made = scene()
    made.runner.run(step(1))
    made.runner.complete()
    made.runner.paused(0.25)
    made.runner.run(step(2))
    made.runner.run(step(3))
    made.runner.complete()
    assert [done.paused_s for done in made.told] == [0.0, 0.25, 0.0]
