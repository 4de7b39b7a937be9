"""Goodput and uptime of fleets of any size, with intervals over seeds.

In free overlap, the default, learners wait for nobody: neither for each other nor for the syncer. So each is simulated
by itself, as one island, and only uptime looks at all of them at once. How far that holds is shown by the same islands
under the two protocol machines, event by event. Plain and elastic data-parallel are one island that has all chips.

A cell is simulated with at least five seeds, and more until Student's 95 % interval is narrow enough. Knows nothing of
how the numbers are shown.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

from orchestrator.planner.fleet.islands.baselines import streaming, synchronous
from orchestrator.planner.fleet.islands.failures import Draws, Failures
from orchestrator.planner.fleet.islands.idle import Measured, Record, measured
from orchestrator.planner.fleet.islands.island import Island

Mode = Literal["data_parallel", "elastic", "decoupled", "sync", "streaming"]
MODES: tuple[Mode, ...] = get_args(Mode)
ALONE: tuple[Mode, ...] = ("data_parallel", "elastic")  # of one learner; the others are of several
Interval = tuple[float, float]
CONFIDENCE = 0.95

# Seconds that a core takes, as measured: rather too many, up to twentyfold where most slices are away.
ISLAND_S = 1e-4  # to set one up
BEAT_S = 1.2e-6  # a step taken by itself
LEAP_S = 2.5e-6  # quiet steps to the end of a round
DISTURBED_S = 5e-6  # a step in which chips fail or return
FAILING_S = 4e-7  # a failing chip


@dataclass(frozen=True)
class Effort:
    """How exactly a cell is simulated."""

    half_width: float = 0.005  # at most, of both intervals, unless seeds run out
    seeds: int = 5  # at least; 2 or more
    seeds_most: int = 100
    failing: int = 4000  # failing chips that one seed's measured stretch would see without any stall

    def warm_up_s(self, failures: Failures) -> float:
        """Left out at the start, where more slices than usual are there, seconds."""
        return 3.0 * failures.repair_s(0.99)

    def measured_s(self, failures: Failures, chips: float) -> float:
        """Length of one seed's measured stretch, seconds."""
        cycle_s = failures.step_s + failures.down_s + failures.up_s + failures.outage_s
        return max(6.0 * self.warm_up_s(failures), 100.0 * cycle_s, self.failing * failures.mtbi_s / chips)


@dataclass(frozen=True)
class Cell:
    """One fleet; shares, 0 to 1."""

    mode: Mode
    learners: int
    chips: int
    goodput: float
    goodput_interval: Interval
    uptime: float
    uptime_interval: Interval
    seeds: int

    @property
    def half_width(self) -> float:
        """The larger of the two."""
        return max((high - low) / 2 for low, high in (self.goodput_interval, self.uptime_interval))


@dataclass(frozen=True)
class Waiting:
    """When learners of the baselines wait for each other."""

    round_steps: int = 24  # H
    overlap_steps: int = 2  # tau


def fleets(learners: Sequence[int], chips: Sequence[int], modes: Sequence[Mode]) -> Iterator[tuple[Mode, int, int]]:
    """The cells that these ask for: one learner is data-parallel, several are the rest."""
    for mode in modes:
        for count in learners:
            if (mode in ALONE) == (count == 1):
                yield from ((mode, count, size) for size in chips)


def simulate(
    mode: Mode,
    learners: int,
    chips: int,
    failures: Failures,
    effort: Effort | None = None,
    seed: int = 0,
    waiting: Waiting | None = None,
    on_seed: Callable[[], None] = lambda: None,
) -> Cell:
    """One cell. The same seed gives the same cell. `on_seed` is called after each of its seeds."""
    effort, waiting = effort or Effort(), waiting or Waiting()
    samples: list[Measured] = []
    while True:
        samples.append(once(mode, learners, chips, failures, effort, (seed, len(samples)), waiting))
        on_seed()
        if len(samples) < effort.seeds:
            continue
        goodput, uptime = interval([one.goodput for one in samples]), interval([one.uptime for one in samples])
        mean = Measured(*(statistics.fmean(column) for column in zip(*samples, strict=True)))
        cell = Cell(mode, learners, chips, mean.goodput, goodput, mean.uptime, uptime, len(samples))
        if cell.half_width <= effort.half_width or len(samples) >= effort.seeds_most:
            return cell


def once(
    mode: Mode,
    learners: int,
    chips: float,
    failures: Failures,
    effort: Effort,
    seed: tuple[int, int],
    waiting: Waiting,
) -> Measured:
    """One seed of a cell."""
    elastic = mode != "data_parallel"
    islands = [Island(failures, chips / learners, Draws(*seed, index), elastic) for index in range(learners)]
    begin = effort.warm_up_s(failures)
    end = begin + effort.measured_s(failures, chips)
    if mode == "sync":
        return synchronous(islands, begin, end, waiting.round_steps)
    if mode == "streaming":
        return streaming(islands, begin, end, waiting.overlap_steps)
    return measured([alone(island, begin, end) for island in islands], begin, end)


def takes_s(mode: Mode, learners: int, chips: float, failures: Failures, effort: Effort, waiting: Waiting) -> float:
    """About how many seconds one seed of a cell takes on one core, or fewer."""
    seconds = effort.warm_up_s(failures) + effort.measured_s(failures, chips)
    steps, failing = learners * seconds / failures.step_s, seconds * chips / failures.mtbi_s
    waits = {"streaming": steps * BEAT_S, "sync": steps / waiting.round_steps * LEAP_S}
    disturbed_s = min(steps, 2.0 * failing) * DISTURBED_S + failing * FAILING_S
    return learners * ISLAND_S + waits.get(mode, 0.0) + disturbed_s


def alone(island: Island, warm_up_s: float, until: float) -> Record:
    """A learner that waits for nobody, from its first step after `warm_up_s` to the first that ends after `until`."""
    record, step_s, leap = Record(), island.failures.step_s, island.leap
    now = 0.0
    for border in (warm_up_s, until):
        record.begin, worth = now, 0.0
        while now < border:
            steps = leap(now, math.ceil((border - now) / step_s))
            worth += steps.worth
            now += steps.seconds
            if steps.stall_s:
                record.idle(now, now := now + steps.stall_s)
    record.end, record.useful_s = now, worth * step_s
    return record


def interval(samples: Sequence[float]) -> Interval:
    """Student's, for the mean of so many independent samples of a share."""
    mean, half = statistics.fmean(samples), half_width(samples)
    return max(0.0, mean - half), min(1.0, mean + half)


def half_width(samples: Sequence[float]) -> float:
    """Half of Student's 95 % interval for the mean of two or more independent samples."""
    return student_t(len(samples) - 1) * statistics.stdev(samples) / math.sqrt(len(samples))


@cache
def student_t(freedom: int) -> float:
    """The t that a variable of Student's distribution with `freedom` degrees stays within at 95 %, by bisection.

    With a whole number of degrees the distribution is a finite sum (Abramowitz and Stegun, 26.7.3 and 26.7.4), where
    t = sqrt(freedom) tan(angle).
    """
    low, high = 0.0, math.pi / 2
    while True:
        angle = (low + high) / 2
        if angle in (low, high):
            return math.sqrt(freedom) * math.tan(angle)
        low, high = (angle, high) if _within(angle, freedom) < CONFIDENCE else (low, angle)


def _within(angle: float, freedom: int) -> float:
    """P(|T| <= sqrt(freedom) tan(angle))."""
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0 if freedom == 1 else term
    for power in range(2 + odd, freedom - 1, 2):
        term *= math.cos(angle) ** 2 * (power - 1) / power
        total += term
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
