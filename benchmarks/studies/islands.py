"""Goodput and uptime of fleets of any size under chip failures, with intervals over seeds: section 7, Table 1.

In free overlap, the default, learners wait for nobody: neither for each other nor for the syncer. So each is simulated
by itself, as one island of chips, and only uptime looks at all of them at once. tests/benchmarks/test_goodput.py holds
the same islands against the two protocol machines, event by event. Plain and elastic data-parallel are one island that
has all chips; in the baselines at the end learners wait for each other.

The failure model is the paper's (section 7): the mean time between interruptions of one chip, one year; failing chips
in a step as Poisson over the chips of that step; a failing chip takes its slice out; the slice returns after an
exponentiated-Weibull delay; an elastic learner stands still for a fixed time when it shrinks and when it grows; every
chip steps at the same speed. The paper's is also Table 1, to which the numbers below are fitted.

Ours, where the paper is silent: the numbers of all fields but `mtbi_s`; that failures do not strike during a stall;
that the survivors finish the step in which a chip fails; that a learner is rebuilt once after a step in which slices
were lost or by whose end some had returned, which takes the longer of the two times and takes in whatever slices
return meanwhile; that a learner without elasticity stands still once for a failing step, whatever the number of its
failing chips, and then steps on whole; that the step in which a chip fails counts nevertheless.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from scipy.special import stdtrit

from orchestrator.planner.fleet.description import StepSample

YEAR_S = 365.25 * 86_400.0
BLOCK = 128  # draws at a time
CONFIDENCE = 0.95

Mode = Literal["data_parallel", "elastic", "decoupled", "sync", "streaming"]
MODES: tuple[Mode, ...] = get_args(Mode)
ALONE: tuple[Mode, ...] = ("data_parallel", "elastic")  # of one learner; the others are of several
Interval = tuple[float, float]


@dataclass(frozen=True)
class ChipFailures:
    """The failure model. Times are in seconds.

    The defaults are one set for all fleets: `step_s`, `down_s` = `up_s` and `outage_s` are the fit to all three sizes
    of Table 1 that we have (fitting.py), to three digits. Slices and repair are not fitted.
    """

    mtbi_s: float = YEAR_S  # mean stepping time of one chip between two failures
    step_s: float = 7.4  # length of a step
    slice_chips: int = 256  # chips that are lost and come back together
    down_s: float = 14.8  # rebuild after a step in which slices were lost
    up_s: float = 14.8  # rebuild that takes in slices that returned
    outage_s: float = 86.5  # stall after a failing step without elasticity
    repair_a: float = 2.0  # repair F(t) = (1 - exp(-(t / scale)^c))^a
    repair_c: float = 0.8
    repair_scale_s: float = 600.0

    def repair_s(self, quantile: float) -> float:
        """How long a slice is away, in seconds, at this quantile in [0, 1): the inverse of F."""
        return float(self.repair_scale_s * (-np.log1p(-(quantile ** (1.0 / self.repair_a)))) ** (1.0 / self.repair_c))

    def slices(self, chips: float) -> int:
        """Of so many chips; at least one. A remainder makes the slices a little larger or smaller."""
        return max(1, round(chips / self.slice_chips))


class Draws:
    """The randomness of one learner: the same for every way of stepping it, and for every failure model.

    Each kind of draw has a stream of its own, so that with other parameters the same chips are lucky.
    """

    def __init__(self, seed: int, replicate: int = 0, learner: int = 0) -> None:
        lives, repairs, places = np.random.SeedSequence((seed, replicate, learner)).spawn(3)
        self._repairs = np.random.Generator(np.random.PCG64(repairs))
        self.life = _stream(np.random.Generator(np.random.PCG64(lives)).standard_exponential)
        self.place = _stream(np.random.Generator(np.random.PCG64(places)).random)

    def repairs_s(self, failures: ChipFailures) -> Iterator[float]:
        """Times that slices are away, in seconds."""
        scale_s, of_a, of_c = failures.repair_scale_s, 1.0 / failures.repair_a, 1.0 / failures.repair_c

        def draw(size: int) -> Any:
            return scale_s * (-np.log1p(-(self._repairs.random(size) ** of_a))) ** of_c

        return _stream(draw)


def _stream(draw: Callable[[int], Any]) -> Iterator[float]:
    while True:
        yield from draw(BLOCK).tolist()


# ------------------------------------------------------------------ one learner


class Leap(NamedTuple):
    """Steps without a pause between them."""

    steps: int
    seconds: float  # from the begin of the first to the end of the last
    stall_s: float  # after the last
    worth: float  # full steps that they count as


class Island:
    """The chips of one learner. Elastic: it steps on without the slices that are away; else it waits for repair.

    `sample` takes it through one step. `leap` gives the same draws the same effect, many steps at a time: between two
    disturbances nothing changes, so their times follow in closed form. A disturbance is a step in which chips fail, or
    by whose end slices have returned. The learner's failures are one Poisson process: a unit exponential is the fuse,
    steps burn it down in proportion to the chips that step, and only slices that are away are objects.
    """

    __slots__ = ("_away", "_fuse", "_hazard", "_life", "_place", "_repairs_s", "elastic", "failures", "slices")

    def __init__(self, failures: ChipFailures, chips: float, draws: Draws, elastic: bool = True) -> None:
        self.failures, self.elastic = failures, elastic
        self.slices = failures.slices(chips)
        self._hazard = chips / self.slices * failures.step_s / failures.mtbi_s  # failing chips per slice and step
        self._life, self._place, self._repairs_s = draws.life, draws.place, draws.repairs_s(failures)
        self._fuse = next(self._life)
        self._away: list[float] = []  # a heap of the times at which slices return

    def sample(self, now: float) -> StepSample:
        """The step that begins at `now`, which must not lie before the end of the last one's stall."""
        there, seconds = self.slices - len(self._away), self.failures.step_s
        end = now + seconds
        self._fuse -= there * self._hazard
        lost = self._strike(there) if self._fuse <= 0.0 else 0
        returned = bool(self._away) and self._away[0] <= end
        stall_s = self._disturb(end, lost) if lost or returned else 0.0
        return StepSample(seconds, stall_s, (there - lost) / self.slices if self.elastic else 1.0)

    def leap(self, now: float, most: int) -> Leap:
        """All steps from `now` up to the next disturbed one, and that; `most` of them, at least 1, if it is not met."""
        there, seconds = self.slices - len(self._away), self.failures.step_s
        quiet = min(most, int(self._fuse / (there * self._hazard)))
        if self._away:
            quiet = min(quiet, max(0, math.ceil((self._away[0] - now) / seconds) - 1))
        if not quiet:
            return Leap(1, *self.sample(now))
        self._fuse -= quiet * there * self._hazard
        worth = quiet * there / self.slices
        if quiet == most:
            return Leap(quiet, quiet * seconds, 0.0, worth)
        last = self.sample(now + quiet * seconds)
        return Leap(quiet + 1, (quiet + 1) * seconds, last.stall_s, worth + last.share)

    def _strike(self, there: int) -> int:
        """How many slices are lost in a step that burnt the fuse down. Chips of one slice may fail in the same step."""
        lost = 0
        while self._fuse <= 0.0 and lost < there:
            self._fuse += next(self._life)
            if lost == 0 or next(self._place) * there >= lost:
                lost += 1
        if self._fuse <= 0.0:  # nothing is left that could fail in this step; the process has no memory
            self._fuse = next(self._life)
        return lost

    def _disturb(self, end: float, lost: int) -> float:
        """Take slices out and in, in one rebuild, and say how long the learner stands still for it."""
        if not self.elastic:
            return self.failures.outage_s
        stall_s = self.failures.down_s if lost else 0.0
        if self._away and self._away[0] <= end:
            stall_s = max(stall_s, self.failures.up_s)
        self._take_in(end + stall_s)
        for _ in range(lost):
            heappush(self._away, end + next(self._repairs_s))
        if len(self._away) == self.slices:
            stall_s = max(stall_s, self._away[0] - end) + self.failures.up_s
            self._take_in(end + stall_s)
        return stall_s

    def _take_in(self, until: float) -> None:
        while self._away and self._away[0] <= until:
            heappop(self._away)


# ------------------------------------------------------------------ when learners step, and when none does


class Shares(NamedTuple):
    """One fleet over one stretch of time; shares, 0 to 1."""

    goodput: float  # of the allocated time, on useful steps; a step with slices missing counts in proportion
    uptime: float  # of the time, with at least one learner that steps


@dataclass
class IdleTimes:
    """One learner over the measured stretch."""

    begin: float = 0.0  # of its first step in it, seconds
    end: float = 0.0  # from when the next step after it could begin
    useful_s: float = 0.0  # its steps in full ones, times their length
    idle_from: list[float] = field(default_factory=list)  # rising
    idle_until: list[float] = field(default_factory=list)

    def idle(self, begin: float, end: float) -> None:
        self.idle_from.append(begin)
        self.idle_until.append(end)


def measured(records: Sequence[IdleTimes], begin: float, end: float) -> Shares:
    """The mean goodput of learners of equal size, each over its own stretch, and the uptime from `begin` to `end`."""
    shares = [record.useful_s / (record.end - record.begin) for record in records]
    goodput = min(1.0, sum(shares) / len(shares))  # sums of many steps round upwards too
    return Shares(goodput, 1.0 - all_idle_s(records, begin, end) / (end - begin))


def all_idle_s(records: Sequence[IdleTimes], begin: float, end: float) -> float:
    """Seconds between `begin` and `end` in which every one of the learners stood still."""
    starts = np.concatenate([np.clip(record.idle_from, begin, end) for record in records])
    stops = np.concatenate([np.clip(record.idle_until, begin, end) for record in records])
    times = np.concatenate([starts, stops])
    order = np.argsort(times, kind="stable")
    idle = np.cumsum(np.concatenate([np.ones(len(starts), np.int64), np.full(len(stops), -1)])[order])
    spans = np.diff(times[order], append=end)
    return float(spans[idle == len(records)].sum())


# ------------------------------------------------------------------ fleets


@dataclass(frozen=True)
class Effort:
    """How exactly a cell is simulated."""

    half_width: float = 0.005  # at most, of both intervals, unless seeds run out
    seeds: int = 5  # at least; 2 or more
    seeds_most: int = 100
    failing: int = 4000  # failing chips that one seed's measured stretch would see without any stall

    def warm_up_s(self, failures: ChipFailures) -> float:
        """Left out at the start, where more slices than usual are there, seconds."""
        return 3.0 * failures.repair_s(0.99)

    def measured_s(self, failures: ChipFailures, chips: float) -> float:
        """Length of one seed's measured stretch, seconds."""
        cycle_s = failures.step_s + failures.down_s + failures.up_s + failures.outage_s
        return max(6.0 * self.warm_up_s(failures), 100.0 * cycle_s, self.failing * failures.mtbi_s / chips)


@dataclass(frozen=True)
class FleetCell:
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
    failures: ChipFailures,
    effort: Effort | None = None,
    seed: int = 0,
    waiting: Waiting | None = None,
) -> FleetCell:
    """One cell. The same seed gives the same cell."""
    effort, waiting = effort or Effort(), waiting or Waiting()
    samples: list[Shares] = []
    while True:
        samples.append(once(mode, learners, chips, failures, effort, (seed, len(samples)), waiting))
        if len(samples) < effort.seeds:
            continue
        goodput, uptime = interval([one.goodput for one in samples]), interval([one.uptime for one in samples])
        mean = Shares(*(statistics.fmean(column) for column in zip(*samples, strict=True)))
        cell = FleetCell(mode, learners, chips, mean.goodput, goodput, mean.uptime, uptime, len(samples))
        if cell.half_width <= effort.half_width or len(samples) >= effort.seeds_most:
            return cell


def once(
    mode: Mode,
    learners: int,
    chips: float,
    failures: ChipFailures,
    effort: Effort,
    seed: tuple[int, int],
    waiting: Waiting,
) -> Shares:
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


def alone(island: Island, warm_up_s: float, until: float) -> IdleTimes:
    """A learner that waits for nobody, from its first step after `warm_up_s` to the first that ends after `until`."""
    record, step_s, leap = IdleTimes(), island.failures.step_s, island.leap
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
    student = float(stdtrit(len(samples) - 1, (1.0 + CONFIDENCE) / 2.0))
    return student * statistics.stdev(samples) / math.sqrt(len(samples))


# ------------------------------------------------------------------ baselines in which learners wait

# Synchronous DiLoCo: after every H steps all wait for the slowest. Streaming DiLoCo: a fragment is due at every step,
# and one read at step s is adopted exactly after s + tau, so nobody is more than tau steps ahead of the slowest.
# Sending and merging take no time here: what is lost is lost to failures and to waiting. A learner that waits loses
# no chips.


def synchronous(islands: Sequence[Island], warm_up_s: float, until: float, round_steps: int) -> Shares:
    """From the first round that begins after `warm_up_s`, in seconds, to the first that ends after `until`."""
    records = [IdleTimes() for _ in islands]
    ready = [0.0] * len(islands)
    together, begin = 0.0, None
    while together < until:
        if begin is None and together >= warm_up_s:
            begin, records = together, [IdleTimes(begin=together) for _ in islands]
        finished = []
        for island, record, now in zip(islands, records, ready, strict=True):
            finished.append(_round(island, record, max(now, together), round_steps))
        together = max(end for end, _ in finished)
        ready = [end + stall_s for end, stall_s in finished]
        for record, (end, stall_s) in zip(records, finished, strict=True):
            record.idle(end, max(together, end + stall_s))
            record.end = together
    assert begin is not None
    return measured(records, begin, together)


def _round(island: Island, record: IdleTimes, now: float, steps: int) -> tuple[float, float]:
    """When the last of so many steps from `now` on ends, and the stall after it."""
    while True:
        leap = island.leap(now, steps)
        record.useful_s += leap.worth * island.failures.step_s
        steps -= leap.steps
        end = now + leap.seconds
        if not steps:
            return end, leap.stall_s
        record.idle(end, now := end + leap.stall_s)


def streaming(islands: Sequence[Island], warm_up_s: float, until: float, overlap_steps: int) -> Shares:
    """From the first step that all finish after `warm_up_s`, in seconds, to the first after `until`."""
    records = [IdleTimes() for _ in islands]
    ready = [0.0] * len(islands)
    ended = [0.0] * len(islands)
    all_finished = deque([0.0] * (overlap_steps + 1), maxlen=overlap_steps + 1)  # step s - tau, ..., the newest last
    begin = None
    while all_finished[-1] < until:
        if begin is None and all_finished[-1] >= warm_up_s:
            begin = all_finished[-1]
            records = [IdleTimes(begin=end) for end in ended]
        gate = all_finished[0]
        for index, (island, record) in enumerate(zip(islands, records, strict=True)):
            now = max(ready[index], gate)
            if now > ended[index]:
                record.idle(ended[index], now)
            sample = island.sample(now)
            record.useful_s += sample.share * sample.seconds
            record.end = ended[index] = now + sample.seconds
            ready[index] = record.end + sample.stall_s
        all_finished.append(max(ended))
    assert begin is not None
    return measured(records, begin, all_finished[-1])
