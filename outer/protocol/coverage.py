"""Counts the steps and tokens of one learner incarnation that commits contain, each once."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import NamedTuple

INTERVALS_MAX = 256  # more than the rounds leave that a contribution's base may be behind


class Mark(NamedTuple):
    """A point in an incarnation's progress: its step count and the tokens it had processed by then."""

    step: int
    tokens: int


class Coverage:
    """A union of step intervals (begin, end]. Token counts are exact because every interval ends at a known Mark.

    Gaps are discarded steps. Those before the newest INTERVALS_MAX intervals can never be covered, and are forgotten.
    """

    def __init__(self) -> None:
        self.intervals: list[tuple[Mark, Mark]] = []  # sorted, disjoint
        self.tokens = 0

    @property
    def last_step(self) -> int:
        """The last covered step, or 0."""
        return self.intervals[-1][1].step if self.intervals else 0

    @property
    def last_tokens(self) -> int:
        """The tokens that it had processed by then."""
        return self.intervals[-1][1].tokens if self.intervals else 0

    @property
    def left_out(self) -> int:
        """Tokens of steps before the last covered one that are not covered."""
        return self.last_tokens - self.tokens

    def add(self, begin: Mark, end: Mark) -> int:
        """Cover the steps (begin, end]. Returns how many of their tokens were not covered before."""
        assert begin.step < end.step and begin.tokens < end.tokens
        first = bisect_left(self.intervals, begin.step, key=lambda interval: interval[1].step)
        last = bisect_right(self.intervals, end.step, key=lambda interval: interval[0].step)
        touching = self.intervals[first:last]
        begin = min(begin, *(b for b, _ in touching)) if touching else begin
        end = max(end, *(e for _, e in touching)) if touching else end
        self.intervals[first:last] = [(begin, end)]
        fresh = end.tokens - begin.tokens - sum(e.tokens - b.tokens for b, e in touching)
        self.tokens += fresh
        if len(self.intervals) > INTERVALS_MAX:
            self.intervals[:2] = [(self.intervals[0][0], self.intervals[1][1])]
        return fresh
