"""Which steps of one learner incarnation are contained in something that was merged, and their tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Mark(NamedTuple):
    """A point in an incarnation's life: after this step it had processed so many tokens."""

    step: int
    tokens: int


@dataclass
class Coverage:
    """A union of intervals (from, to] of steps. Tokens are exact, because every end is a known mark."""

    intervals: list[tuple[Mark, Mark]]

    def __init__(self) -> None:
        self.intervals = []

    @property
    def tokens(self) -> int:
        return sum(end.tokens - begin.tokens for begin, end in self.intervals)

    @property
    def last_step(self) -> int:
        """The last covered step; 0 when there is none."""
        return self.intervals[-1][1].step if self.intervals else 0

    def add(self, begin: Mark, end: Mark) -> int:
        """Cover (begin, end]. Returns the tokens that were not covered before."""
        assert begin.step < end.step and begin.tokens < end.tokens
        before = self.tokens
        apart = [(b, e) for b, e in self.intervals if e.step < begin.step or end.step < b.step]
        touching = [(b, e) for b, e in self.intervals if not (e.step < begin.step or end.step < b.step)]
        merged = (min([begin, *(b for b, _ in touching)]), max([end, *(e for _, e in touching)]))
        self.intervals = sorted([*apart, merged])
        return self.tokens - before
