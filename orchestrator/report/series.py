"""Long series made short, in memory that does not grow with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from orchestrator.accounting.sketch import Sketch

T = TypeVar("T")
KEPT = 16_384  # rows of a series that are kept as they are; a longer one is kept as bins
POINTS = 4_096  # of a thinned line


@dataclass(eq=False)
class Bin:
    """Neighbouring rows drawn as one."""

    count: int = 0
    total: float = 0.0  # sum of their places
    values: Sketch = field(default_factory=Sketch)

    @property
    def x(self) -> float:
        """The mean of their places."""
        return self.total / self.count

    def take(self, rows: NDArray[np.float64]) -> None:
        """Rows [n, 2]: place, value."""
        self.count += len(rows)
        self.total += float(rows[:, 0].sum())
        self.values.add(rows[:, 1])

    def merge(self, other: Bin) -> None:
        self.count += other.count
        self.total += other.total
        self.values.merge(other.values)


@dataclass(eq=False)
class Series:
    """Rows in the order in which they come, to be drawn as at most `most` bins of at least about `least` rows.

    A long series is kept as bins of `size` rows; where there are too many, neighbours become one. `most` is even.
    """

    most: int
    least: int = 1
    size: int = 0  # 0: the rows are kept
    rows: NDArray[np.float64] | None = None  # [n, 2]
    kept: list[Bin] = field(default_factory=list)

    def take(self, x: ArrayLike, y: ArrayLike) -> None:
        """Rows of a place and a value, arrays of [n]."""
        rows = np.column_stack([x, y]).astype(np.float64)
        if not len(rows):
            return
        if self.size == 0:
            self.rows = rows if self.rows is None else np.concatenate([self.rows, rows])
            if len(self.rows) <= KEPT:
                return
            self.size, rows, self.rows = -(-KEPT // self.most), self.rows, None
        while len(rows):
            if self.kept and self.kept[-1].count < self.size:
                room = self.size - self.kept[-1].count
                self.kept[-1].take(rows[:room])
                rows = rows[room:]
            elif len(self.kept) < self.most:
                self.kept.append(Bin())
            else:
                self._halve()

    def _halve(self) -> None:
        for first, second in zip(self.kept[::2], self.kept[1::2], strict=True):
            first.merge(second)
        self.kept, self.size = self.kept[::2], 2 * self.size

    def bins(self) -> list[Bin]:
        """All that came, by place."""
        if self.rows is None:
            return sorted(self.kept, key=lambda bin: bin.x)
        ordered = self.rows[np.argsort(self.rows[:, 0], kind="stable")]
        made = []
        for chunk in chunks(ordered, min(self.most, -(-len(ordered) // self.least))):
            made.append(Bin())
            made[-1].take(chunk)
        return made


@dataclass(eq=False)
class Thinned:
    """Rows of numbers, of which every second is left out whenever there are too many; the last one is always there."""

    most: int = POINTS
    every: int = 1
    count: int = 0
    rows: NDArray[np.float64] | None = None  # [n, columns]
    last: NDArray[np.float64] | None = None  # [columns]

    def take(self, *columns: ArrayLike) -> None:
        """Arrays of [n], one for each column."""
        rows = np.column_stack(columns).astype(np.float64)
        if not len(rows):
            return
        self.last = rows[-1].copy()
        places = np.arange(self.count, self.count + len(rows))
        self.count += len(rows)
        rows = rows[places % self.every == 0]
        self.rows = rows if self.rows is None else np.concatenate([self.rows, rows])
        while len(self.rows) > self.most:
            self.rows, self.every = self.rows[::2].copy(), 2 * self.every

    def all(self) -> NDArray[np.float64]:
        """[n, columns], in the order in which they came."""
        if self.rows is None or self.last is None:
            return np.empty((0, 0))
        missing = (self.count - 1) % self.every != 0
        return np.concatenate([self.rows, self.last[None]]) if missing else self.rows


def chunks(items: Sequence[T] | NDArray[Any], most: int) -> Iterator[Any]:
    """The items in at most so many runs of neighbours, of sizes that differ by at most one."""
    count = min(most, len(items))
    for index in range(count):
        yield items[index * len(items) // count : (index + 1) * len(items) // count]


def merged(intervals: Sequence[tuple[float, float]], gap: float) -> list[tuple[float, float]]:
    """Intervals that overlap, or lie closer than `gap`, drawn as one."""
    out: list[tuple[float, float]] = []
    for start, stop in sorted(intervals):
        if out and start - out[-1][1] <= gap:
            out[-1] = (out[-1][0], max(out[-1][1], stop))
        else:
            out.append((start, stop))
    return out
