"""Painting time: seconds of each learner in each category, exclusive and exhaustive; and intervals.

Unix seconds in float64 are multiples of 2**-22 s, and so are their differences and the sums of these up to 2**31 s:
they are exact, in whatever portions time is painted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from orchestrator.eventlog.block import Floats, Ints

Interval = tuple[float, float]  # [start, stop), Unix seconds
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
