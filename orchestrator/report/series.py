"""Long series of numbers made short, for figures and tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Bin(NamedTuple):
    """Neighbouring points drawn as one."""

    x: float  # mean of their places
    middle: float  # their median
    low: float
    high: float


def chunks(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    """The items in at most so many runs of neighbours, of sizes that differ by at most one."""
    count = min(most, len(items))
    for index in range(count):
        yield items[index * len(items) // count : (index + 1) * len(items) // count]


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest of the sorted values that at least this share of them do not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def binned(points: Sequence[tuple[float, float]], most: int, spread: tuple[float, float] = (0.1, 0.9)) -> list[Bin]:
    """Points (x, y), sorted by x, as at most so many bins with y's median and the quantiles of `spread`."""
    bins = []
    for chunk in chunks(points, most):
        ys = sorted(y for _, y in chunk)
        x = statistics.fmean(x for x, _ in chunk)
        bins.append(Bin(x, quantile(ys, 0.5), quantile(ys, spread[0]), quantile(ys, spread[1])))
    return bins


def merged(intervals: Sequence[tuple[float, float]], gap: float) -> list[tuple[float, float]]:
    """Intervals that overlap, or lie closer than `gap`, drawn as one."""
    out: list[tuple[float, float]] = []
    for start, stop in sorted(intervals):
        if out and start - out[-1][1] <= gap:
            out[-1] = (out[-1][0], max(out[-1][1], stop))
        else:
            out.append((start, stop))
    return out
