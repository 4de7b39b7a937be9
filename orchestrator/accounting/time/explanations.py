"""The categories of a learner's time, and the facts that explain it: its steps, phases, faults and deaths.

    productive                        steps whose tokens were committed
    wasted_killed, wasted_drained,    steps whose tokens were discarded for that reason (`stale_base` counts as
    wasted_overlap, wasted_refused,   refused); the step that a kill broke off is wasted_killed
    wasted_run_ended
    in_flight                         steps whose tokens have no fate yet: none in a run that has ended
    data_stall, sync_blocked          a step waiting to begin: for a span, for an adoption or a snapshot
    suspended                         frozen by a fault, whatever it was doing
    fault_detect                      from its death (the injection, else its last sign of life) until it is noticed
    fault_recover                     from there until the next incarnation is requested
    provision_wait                    requested, no process yet
    startup, compile, bootstrap       the phases starting and importing, compiling, joining
    drain                             the phase draining: it steps no more, and its last steps are waited for
    unattributed                      what no fact explains

Where facts overlap the more specific wins, in the order of RANKS. Times are each writer's own wall clock, in
seconds; processes on hosts whose clocks differ blur the borders of categories, never their sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from orchestrator.accounting.ledger import FATES
from orchestrator.accounting.roster import Incarnation
from orchestrator.accounting.windows import StepTable
from orchestrator.eventlog.block import Floats, Ints

Interval = tuple[float, float]  # [start, stop), Unix seconds
RANKS = (
    "unattributed",
    "fault_recover",
    "provision_wait",
    "fault_detect",
    "startup",
    "compile",
    "bootstrap",
    "drain",
    "data_stall",
    "sync_blocked",
    "wasted_run_ended",
    "wasted_refused",
    "wasted_overlap",
    "wasted_drained",
    "wasted_killed",
    "in_flight",
    "productive",
    "suspended",
)  # where two overlap, the later one counts
_OF_FATE = {
    "committed": "productive",
    "in_flight": "in_flight",
    "killed": "wasted_killed",
    "drained": "wasted_drained",
    "overlap": "wasted_overlap",
    "stale_base": "wasted_refused",
    "refused": "wasted_refused",
    "run_ended": "wasted_run_ended",
    "set_aside": "wasted_killed",
}
_FATE_RANKS = np.array([RANKS.index(_OF_FATE[fate]) for fate in FATES])
OF_WAIT = {"span": "data_stall", "data": "data_stall", "adoption": "sync_blocked", "snapshot": "sync_blocked"}
_OF_PHASE = {
    "starting": "startup",
    "importing": "startup",
    "compiling": "compile",
    "joining": "bootstrap",
    "draining": "drain",
}

BLUR_S = 0.5  # allowed between the times of a learner's steps and its own count of seconds


class Explained(NamedTuple):
    """An interval of one learner's time that a fact explains, in Unix seconds."""

    start: float
    stop: float
    category: str


def of_steps(rows: StepTable, words: Sequence[str], boundary: float) -> tuple[Floats, Floats, Ints, float]:
    """Steps of one incarnation in order, and their waits, as spans: (start, stop, rank), and the last boundary.

    `words`: what StepTable.waited_for indexes. `boundary`: where the step before them ended. Each step and its wait are
    cut off at the boundary before it, so that steps never overlap. Steps that follow each other with one fate are one
    span.
    """
    waits = np.array([RANKS.index(OF_WAIT[word]) if word in OF_WAIT else 0 for word in words])[rows.waited_for]
    waited_s = np.where(waits > 0, rows.waited_s, 0.0)
    after = np.maximum.accumulate(np.concatenate([[boundary], rows.at]))
    before, after = after[:-1], after[1:]
    begun = rows.at - rows.seconds
    late_s = begun - waited_s - before
    # From boundary to boundary there is nothing else: the dates of both are a little late.
    close = np.where(late_s > 0.0, before + waited_s, np.maximum(before, begun))
    begun = np.where(late_s < BLUR_S, close, begun)
    rank = _FATE_RANKS[rows.fate]
    opens = begun > before
    opens[1:] |= rank[1:] != rank[:-1]
    opens[:1] = True
    first = np.flatnonzero(opens)
    last = np.concatenate([first[1:], [len(opens)]]) - 1
    waiting = first[waited_s[first] > 0.0]
    start = np.concatenate([begun[first], np.maximum(before[waiting], begun[waiting] - waited_s[waiting])])
    stop = np.concatenate([after[last], begun[waiting]])
    return start, stop, np.concatenate([rank[first], waits[waiting]]), float(after[-1])


def of_incarnation(
    incarnation: Incarnation,
    successor: Incarnation | None,
    pauses: Sequence[Interval],
    strict: bool,
    end: float,
) -> Iterator[Explained]:
    """Yield the intervals that explain an incarnation's time besides its steps, up to `end`.

    `successor`: its learner's next incarnation. `strict`: whether the learner ever waited for an adoption.
    """
    yield from _of_start(incarnation, end)
    for at in incarnation.resumed:
        began = max((stop for _, stop in pauses if stop <= at), default=at)
        yield Explained(began, at, "startup")
    yield from _of_leaving(incarnation, strict)
    yield from (Explained(*interval, "suspended") for interval in suspended(incarnation))
    if incarnation.over == "killed":
        yield from _of_death(incarnation, successor, end)
    elif incarnation.over == "drained" and incarnation.noticed is not None:
        yield from _broken_off(incarnation, incarnation.noticed, "wasted_drained")
        again = end if successor is None else successor.requested
        yield Explained(incarnation.noticed, max(incarnation.noticed, again or end), "fault_recover")


def suspended(incarnation: Incarnation) -> list[Interval]:
    """When it was frozen."""
    return [(start, stop) for _, start, stop in incarnation.freezes]


def _of_start(incarnation: Incarnation, end: float) -> Iterator[Explained]:
    """The time until the first step: waiting for a process, then phase by phase."""
    stop = incarnation.until(end)
    signs = (incarnation.started, *(at for at, _ in [*incarnation.phases][:1]))
    born = min((at for at in signs if at is not None), default=stop)
    if incarnation.requested is not None:
        yield Explained(incarnation.requested, born, "provision_wait")
    phases = [(born, "starting"), *incarnation.phases] if born < stop else [*incarnation.phases]
    for (at, phase), (until, _) in pairwise([*phases, (stop, "")]):
        if phase in _OF_PHASE:
            yield Explained(at, until, _OF_PHASE[phase])


def _of_leaving(incarnation: Incarnation, strict: bool) -> Iterator[Explained]:
    """From its last step to its leaving a learner waited for what never came: only death breaks a step off."""
    left = min((at for at, phase in incarnation.phases if phase in ("draining", "stopped")), default=None)
    boundary = stepped_until(incarnation)
    if left is not None and boundary is not None:
        yield Explained(boundary, max(boundary, left), OF_WAIT["adoption" if strict else "span"])


def stepped_until(incarnation: Incarnation) -> float | None:
    """The end of its newest step, or when it began stepping; None before that."""
    signs = (incarnation.entered("stepping"), incarnation.stepped)
    return max((at for at in signs if at is not None), default=None)


def _of_death(incarnation: Incarnation, successor: Incarnation | None, end: float) -> Iterator[Explained]:
    died, noticed = incarnation.died, incarnation.noticed
    if died is None or noticed is None:
        return
    yield from _broken_off(incarnation, died, "wasted_killed")
    yield Explained(died, noticed, "fault_detect")
    again = end if successor is None else successor.requested
    if again is not None:
        yield Explained(noticed, again, "fault_recover")


def _broken_off(incarnation: Incarnation, end: float, category: str) -> Iterator[Explained]:
    """The unfinished step, if it never left the phase stepping."""
    if incarnation.phases and incarnation.phases[-1][1] == "stepping":
        since = max(incarnation.phases[-1][0], -math.inf if incarnation.stepped is None else incarnation.stepped)
        yield Explained(since, max(since, end), category)


# ------------------------------------------------------------------ painting

# Painting time: seconds of each learner in each category, exclusive and exhaustive; and intervals.
# Unix seconds in float64 are multiples of 2**-22 s, and so are their differences and the sums of these up to 2**31 s:
# they are exact, in whatever portions time is painted.


WANTED = 0  # the rank of the time that counts


class Spans(NamedTuple):
    """Intervals of learners' time, each with the rank of its category; arrays of [n]."""

    learner: Ints  # a number
    start: Floats  # Unix seconds
    stop: Floats
    rank: Ints

    @staticmethod
    def of(spans: Sequence[tuple[int, float, float, int]]) -> Spans:
        learner, start, stop, rank = zip(*spans, strict=True) if spans else ((), (), (), ())
        return Spans(
            np.array(learner, np.int64), np.array(start, float), np.array(stop, float), np.array(rank, np.int64)
        )

    @staticmethod
    def together(parts: Iterable[Spans]) -> Spans:
        learner, start, stop, rank = zip(*parts, strict=True)
        return Spans(np.concatenate(learner), np.concatenate(start), np.concatenate(stop), np.concatenate(rank))

    def within(self, low: Floats, high: Floats) -> Spans:
        """Cut to each learner's [low, high), float[learners]; what is outside is left out."""
        start, stop = np.maximum(self.start, low[self.learner]), np.minimum(self.stop, high[self.learner])
        keep = start < stop
        return Spans(self.learner[keep], start[keep], stop[keep], self.rank[keep])

    def beyond(self, low: Floats) -> Spans:
        """Those that are not over at each learner's time, float[learners]."""
        keep = self.stop > low[self.learner]
        return Spans(self.learner[keep], self.start[keep], self.stop[keep], self.rank[keep])


def paint(spans: Spans, learners: int, ranks: int) -> Floats:
    """Seconds by learner and rank, float[learners, ranks], of the time within spans of rank WANTED.

    Where spans overlap the highest rank counts.
    """
    if not len(spans.start):
        return np.zeros((learners, ranks))
    at, who = np.concatenate([spans.start, spans.stop]), np.concatenate([spans.learner, spans.learner])
    order = np.lexsort((at, who))
    at, who = at[order], who[order]
    present, place = np.unique(spans.rank, return_inverse=True)
    active = np.zeros((len(at), len(present)), np.int32)
    half = len(spans.start)
    active[np.arange(len(at)), np.concatenate([place, place])[order]] = np.where(order < half, 1, -1)
    np.cumsum(active, axis=0, out=active)
    seconds = np.zeros(len(at))
    seconds[:-1] = np.where(who[1:] == who[:-1], np.diff(at), 0.0)
    if present[0] != WANTED:
        return np.zeros((learners, ranks))
    seconds[active[:, 0] <= 0] = 0.0
    top = len(present) - 1 - np.argmax(active[:, ::-1] > 0, axis=1)
    painted = np.bincount(who * ranks + present[top], seconds, learners * ranks).astype(np.float64)
    return painted.reshape(learners, ranks)


def clip(intervals: Iterable[Interval], span: Interval) -> list[Interval]:
    """The parts of the intervals inside the span."""
    cut = ((max(start, span[0]), min(stop, span[1])) for start, stop in intervals)
    return [(start, stop) for start, stop in cut if start < stop]


def minus(intervals: Iterable[Interval], holes: Iterable[Interval]) -> list[Interval]:
    """The parts of the intervals outside the holes."""
    holes = sorted(holes)
    left: list[Interval] = []
    for start, stop in intervals:
        for begin, end in holes:
            if begin < stop and end > start:
                left.append((start, begin))
                start = max(start, end)
        left.append((start, stop))
    return [(start, stop) for start, stop in left if start < stop]


def length(intervals: Iterable[Interval]) -> float:
    """Seconds of disjoint intervals."""
    return math.fsum(stop - start for start, stop in intervals)
