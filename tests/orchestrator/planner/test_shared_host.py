"""Starts that share a host: equal parts of what it can do, and all of it where few are there."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.planner.fleet.shared_host import SharedHost
from orchestrator.simulation.timeline import Timeline


class Process:
    running = True

    def take(self, happen: Callable[..., Any], *args: Any) -> None:
        """Dead."""


def ended(abreast: float, jobs: list[tuple[float, float]], dies: tuple[int, float] | None = None) -> dict[int, float]:
    """When each job of (begin, seconds alone) is done; `dies`: which one's process, and when."""
    time = Timeline()
    host, found = SharedHost(time, abreast), dict[int, float]()
    processes = [Process() for _ in jobs]

    def done(number: int) -> None:
        found[number] = time.now

    def die(number: int) -> None:
        processes[number].running = False
        host.leave(processes[number])

    for number, (begin, seconds) in enumerate(jobs):
        time.at(begin, host.work, seconds, processes[number], done, number)
    if dies is not None:
        time.at(dies[1], die, dies[0])
    time.run(1000.0)
    return found


def test_as_many_as_may_go_abreast_do_not_slow_each_other() -> None:
    assert ended(2.0, [(0.0, 4.0), (1.0, 4.0)]) == pytest.approx({0: 4.0, 1: 5.0})
    assert ended(math.inf, [(0.0, 4.0)] * 9) == dict.fromkeys(range(9), 4.0)


def test_more_of_them_share_equally_and_what_a_shorter_one_leaves_is_the_others() -> None:
    assert ended(1.0, [(0.0, 4.0), (0.0, 4.0)]) == pytest.approx({0: 8.0, 1: 8.0})
    assert ended(1.0, [(0.0, 1.0), (0.0, 4.0)]) == pytest.approx({0: 2.0, 1: 5.0})
    assert ended(1.5, [(0.0, 3.0), (0.0, 3.0), (0.0, 3.0)]) == pytest.approx({0: 6.0, 1: 6.0, 2: 6.0})


def test_one_that_comes_later_shares_from_then_on() -> None:
    assert ended(1.0, [(0.0, 4.0), (2.0, 4.0)]) == pytest.approx({0: 6.0, 1: 8.0})


def test_a_dead_one_takes_nothing_more_and_is_never_done() -> None:
    assert ended(1.0, [(0.0, 4.0), (0.0, 4.0)], dies=(1, 2.0)) == pytest.approx({0: 5.0})
