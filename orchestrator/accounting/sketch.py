"""The distribution of a stream of numbers in bounded memory: exact while they are few, then bins 1 % wide.

Magnitudes from 1e-13 to 1e13 have bins of their own, smaller ones count as 0, larger ones share the last bin: about
12,000 bins at most, of either sign, and only those that hold a number are kept. Sketches of one stream's parts can be
merged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

WIDTH = 0.01  # of a bin, as a share of its values
EXACT = 256  # so many numbers are kept as they are
_LOG = math.log1p(WIDTH)
_LEAST, _MOST = math.floor(math.log(1e-13) / _LOG), math.floor(math.log(1e13) / _LOG)
_SHIFT = (
    1 - _LEAST
)  # makes the keys of positive bins positive; a negative number's key is that of its magnitude, negated


def _none() -> NDArray[np.float64]:
    return np.empty(0)


def _no_keys() -> NDArray[np.int64]:
    return np.empty(0, np.int64)


@dataclass(eq=False)
class Sketch:
    """Numbers as a multiset of which the values are known to 1 %. Numbers that are not finite are left out."""

    exact: int = EXACT  # the most numbers that are kept as they are
    count: int = 0
    sum: float = 0.0
    least: float = math.inf
    most: float = -math.inf
    values: NDArray[np.float64] = field(default_factory=_none)  # sorted; empty once there are bins
    keys: NDArray[np.int64] = field(default_factory=_no_keys)  # the bins that hold a number, ascending
    counts: NDArray[np.int64] = field(default_factory=_no_keys)
    totals: NDArray[np.float64] = field(default_factory=_none)  # sums of the numbers in the bins

    def add(self, values: ArrayLike) -> None:
        """Count these numbers, an array of any shape or a number."""
        new = np.asarray(values, np.float64).ravel()
        if not (finite := np.isfinite(new)).all():
            new = new[finite]
        if new.size:
            self._count(new.size, float(new.sum()), float(new.min()), float(new.max()))
            self._put(new)

    def merge(self, other: Sketch) -> None:
        """Count all that the other has counted."""
        if other.count:
            self._count(other.count, other.sum, other.least, other.most)
            self._put(other.values)
            self._bin(other.keys, other.counts, other.totals)

    def quantile(self, share: float) -> tuple[float, float]:
        """Bounds of the smallest number that at least this share of all do not exceed; NaN where there is none."""
        if not self.count:
            return math.nan, math.nan
        lower, upper, _ = self._ranked(self._rank(share))
        return lower, upper

    def middle(self, share: float) -> float:
        """The quantile, as one number: exact while the numbers are few, then in proportion within its bin."""
        return self._value(self._rank(share)) if self.count else math.nan

    @property
    def median(self) -> float:
        """Return the median, within a bin in proportion; NaN where there is no number."""
        if not self.count:
            return math.nan
        return (self._value((self.count + 1) // 2) + self._value(self.count // 2 + 1)) / 2

    @property
    def mean(self) -> float:
        return self.sum / self.count if self.count else math.nan

    def above(self, limit: float) -> tuple[float, float]:
        """How many numbers are larger than the limit, and their sum; of a bin that it cuts, a share."""
        values = self.values[self.values > limit]
        count, total = float(values.size), float(values.sum())
        lower, upper = _bounds(self.keys)
        lower, upper = np.maximum(lower, self.least), np.minimum(upper, self.most)
        over = lower > limit
        count, total = count + float(self.counts[over].sum()), total + float(self.totals[over].sum())
        for cut in np.flatnonzero(~over & (upper > limit)):  # one, or none
            share = float((upper[cut] - limit) / (upper[cut] - lower[cut]))
            count += share * int(self.counts[cut])
            total += share * int(self.counts[cut]) * (limit + float(upper[cut])) / 2
        return count, total

    # ------------------------------------------------------------------

    def _count(self, count: int, total: float, least: float, most: float) -> None:
        self.count += count
        self.sum += total
        self.least, self.most = min(self.least, least), max(self.most, most)

    def _put(self, values: NDArray[np.float64]) -> None:
        if not self.keys.size and self.values.size + values.size <= self.exact:
            self.values = np.sort(np.concatenate([self.values, values]))
            return
        values = np.concatenate([self.values, values])
        self.values = _none()
        self._bin(_keys(values), np.ones(values.size, np.int64), values)

    def _bin(self, keys: NDArray[np.int64], counts: NDArray[np.int64], totals: NDArray[np.float64]) -> None:
        if not keys.size:
            return
        if self.values.size:
            keys = np.concatenate([keys, _keys(self.values)])
            counts = np.concatenate([counts, np.ones(self.values.size, np.int64)])
            totals = np.concatenate([totals, self.values])
            self.values = _none()
        self.keys, place = np.unique(np.concatenate([self.keys, keys]), return_inverse=True)
        held, sums = np.zeros(self.keys.size, np.int64), np.zeros(self.keys.size)
        np.add.at(held, place, np.concatenate([self.counts, counts]))
        np.add.at(sums, place, np.concatenate([self.totals, totals]))
        self.counts, self.totals = held, sums

    def _rank(self, share: float) -> int:
        return max(1, math.ceil(share * self.count))

    def _value(self, rank: int) -> float:
        lower, upper, place = self._ranked(rank)
        return lower + place * (upper - lower)

    def _ranked(self, rank: int) -> tuple[float, float, float]:
        """Bounds of the number of this rank, from 1, and its place between them, if they are evenly spread."""
        if self.values.size:
            value = float(self.values[rank - 1])
            return value, value, 0.0
        upto = np.cumsum(self.counts)
        place = int(np.searchsorted(upto, rank))
        lower, upper = _bounds(self.keys[place : place + 1])
        count = int(self.counts[place])
        inside = (rank - int(upto[place]) + count - 0.5) / count
        return max(float(lower[0]), self.least), min(float(upper[0]), self.most), inside


def _keys(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """The bin of each number; a larger number never has a smaller key."""
    size = np.abs(values)
    with np.errstate(divide="ignore"):
        place = np.floor(np.log(size) / _LOG)
    key = np.clip(place, _LEAST - 1, _MOST).astype(np.int64) + _SHIFT
    return np.where(key <= 0, 0, np.sign(values).astype(np.int64) * key)


def _bounds(keys: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The ends of these bins, to be cut at the smallest and the largest number; the outermost have no end."""
    size = np.abs(keys)
    near, far = np.exp((size - _SHIFT) * _LOG), np.exp((size - _SHIFT + 1) * _LOG)
    near[size == 0], far[size == 0] = -(far[size == 0]), far[size == 0]
    far[size == _MOST + _SHIFT] = math.inf
    negative = keys < 0
    return np.where(negative, -far, near), np.where(negative, -near, far)
