"""Batches built ahead: the same batches in the same order, two at most, whatever is predicted."""

from __future__ import annotations

import threading

import pytest

from learners.training.step import AHEAD_MAX, Batches
from tests.waiting import DEADLINE_S, until


class Building:
    """Builds (start, count) once `gate` is open, and notes in which order and in which thread."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.begun: list[int] = []
        self.threads: list[threading.Thread] = []
        self.inside = 0

    def __call__(self, start: int, count: int) -> tuple[int, int]:
        self.inside += 1
        assert self.inside == 1, "the task's batch runs in one thread at a time"
        self.begun.append(start)
        self.threads.append(threading.current_thread())
        assert self.gate.wait(DEADLINE_S)
        if start < 0:
            raise OSError(f"no sample {start}")
        self.inside -= 1
        return start, count


def test_a_slow_batch_is_built_beside_the_loop_and_is_there_when_its_step_comes() -> None:
    building = Building()
    batches = Batches(building)
    batches.expect([8], 4)
    until(lambda: building.begun == [8], "the batch is being built")  # and the loop has gone on: it is here
    building.gate.set()
    assert batches.take(8, 4) == (8, 4)
    assert building.begun == [8] and building.threads[0] is not threading.main_thread()


def test_a_batch_that_nobody_predicted_is_waited_for_in_turns() -> None:
    building = Building()
    batches = Batches(building)
    assert not batches.ready(8, 4, 0.0) and not batches.ready(8, 4, 0.0)
    building.gate.set()
    assert batches.ready(8, 4, DEADLINE_S) and batches.take(8, 4) == (8, 4)
    assert building.begun == [8] and building.threads[0] is not threading.main_thread()
    assert batches.ready(-1, 4, DEADLINE_S), "its error is raised where it is taken"
    with pytest.raises(OSError, match="no sample -1"):
        batches.take(-1, 4)


def test_at_most_two_batches_are_ahead() -> None:
    building = Building()
    building.gate.set()
    batches = Batches(building)
    batches.expect(range(0, 40, 4), 4)
    for start in range(0, 40, 4):
        assert batches.take(start, 4) == (start, 4)
        assert len(set(building.begun)) <= start // 4 + AHEAD_MAX
    assert building.begun == list(range(0, 40, 4))


def test_a_wrong_prediction_is_harmless() -> None:
    building = Building()
    building.gate.set()
    batches = Batches(building)
    batches.expect([0, 4], 4)
    assert [batches.take(start, 4) for start in (100, 104)] == [(100, 4), (104, 4)]
    batches.expect([108, 112], 4)
    assert batches.take(108, 8) == (108, 8), "of another size"
    assert batches.take(112, 4) == (112, 4)


def test_what_is_still_expected_is_not_built_again() -> None:
    building = Building()
    building.gate.set()
    batches = Batches(building)
    batches.expect([0, 4], 4)
    batches.take(0, 4)
    batches.expect([4, 8], 4)
    assert batches.take(4, 4) == (4, 4) and batches.take(8, 4) == (8, 4)
    assert building.begun == [0, 4, 8]


def test_an_exception_comes_at_its_own_step_with_its_traceback() -> None:
    building = Building()
    building.gate.set()
    batches = Batches(building)
    batches.expect([0, -4], 4)
    assert batches.take(0, 4) == (0, 4)
    with pytest.raises(OSError, match="no sample -4") as caught:
        batches.take(-4, 4)
    assert any(entry.name == "__call__" for entry in caught.traceback), "where the task raised it"


def test_without_predictions_batches_are_built_in_the_loops_own_thread() -> None:
    building = Building()
    building.gate.set()
    batches = Batches(building)
    assert batches.take(0, 4) == (0, 4)
    assert building.threads == [threading.current_thread()]
