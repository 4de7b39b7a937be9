"""The distribution of a stream of numbers in bounded memory: exact while they are few, then bins 1 % wide.

Magnitudes from 1e-13 to 1e13 have bins of their own, smaller ones count as 0, larger ones share the last bin: about
12,000 bins at most, of either sign, and only those that hold a number are kept.
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

    count: int = 0
    least: float = math.inf
    most: float = -math.inf
    values: NDArray[np.float64] = field(default_factory=_none)  # sorted; empty once there are bins
    keys: NDArray[np.int64] = field(default_factory=_no_keys)  # the bins that hold a number, ascending
    counts: NDArray[np.int64] = field(default_factory=_no_keys)

    def add(self, values: ArrayLike) -> None:
        """Count these numbers, an array of any shape or a number."""
        new = np.asarray(values, np.float64).ravel()
        if not (finite := np.isfinite(new)).all():
            new = new[finite]
        if new.size:
            self.count += new.size
            self.least, self.most = min(self.least, float(new.min())), max(self.most, float(new.max()))
            self._put(new)

    def quantile(self, share: float) -> tuple[float, float]:
        """Bounds of the smallest number that at least this share of all do not exceed; NaN where there is none."""
        if not self.count:
            return math.nan, math.nan
        rank = max(1, math.ceil(share * self.count))
        if self.values.size:
            value = float(self.values[rank - 1])
            return value, value
        place = int(np.searchsorted(np.cumsum(self.counts), rank))
        lower, upper = _bounds(self.keys[place : place + 1])
        return max(float(lower[0]), self.least), min(float(upper[0]), self.most)

    def _put(self, values: NDArray[np.float64]) -> None:
        if not self.keys.size and self.values.size + values.size <= EXACT:
            self.values = np.sort(np.concatenate([self.values, values]))
            return
        keys = _keys(np.concatenate([self.values, values]))
        self.values = _none()
        self.keys, place = np.unique(np.concatenate([self.keys, keys]), return_inverse=True)
        self.counts = np.bincount(place, np.concatenate([self.counts, np.ones(keys.size)])).astype(np.int64)


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
