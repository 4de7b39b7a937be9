"""Follows what a fragment's value is made of: which steps of which incarnations, how often each, without arrays.

A version is the one before it and the ranges of steps that its merge added; a learner's value is the version that it
grew from and the learner's own steps since. So the usual merge costs one range a participant. What is not usual
(another base, a step twice, a step taken back) comes out of the same sums with its count, 2 or -1. Weights and
numbers are left out: a merge adds up what its contributions bring.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

Key = tuple[str, int]  # learner, incarnation


class Range(NamedTuple):
    """Steps (after, upto] of one incarnation, so many times."""

    unit: Key
    after: int
    upto: int
    times: int = 1


class ValueVersion:
    """One value of one fragment at the syncer: its parent's content and these ranges."""

    __slots__ = ("depth", "durable", "fragment", "newest", "number", "odd", "parent", "ranges")

    def __init__(self, fragment: int, number: int, parent: ValueVersion | None, ranges: tuple[Range, ...]) -> None:
        self.fragment, self.number, self.parent, self.ranges = fragment, number, parent, ranges
        self.durable = parent is None  # the journal has it; the first value is the task's own
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.newest: dict[Key, int] = {} if parent is None else dict(parent.newest)  # the last step of each
        self.odd: bool = parent is not None and parent.odd  # its steps have to be counted one by one
        for unit, after, upto, times in ranges:
            if times != 1 or not self.newest.get(unit, 0) <= after < upto:
                self.odd = True
            self.newest[unit] = max(upto, self.newest.get(unit, 0))

    def __repr__(self) -> str:
        return f"v{self.number}"

    def lineage(self) -> list[Range]:
        """Every range in it, newest first."""
        ranges: list[Range] = []
        version: ValueVersion | None = self
        while version is not None:
            ranges += version.ranges
            version = version.parent
        return ranges


class Content(NamedTuple):
    """A learner's value of a fragment: what it grew from, what else it was handed, and its own steps (since, step]."""

    root: ValueVersion
    carried: tuple[Range, ...]  # a donor's steps; or what is left where a difference did not come out even
    unit: Key
    since: int
    step: int

    @property
    def ranges(self) -> tuple[Range, ...]:
        """All that it holds beyond its root."""
        own = (Range(self.unit, self.since, self.step),) if self.step > self.since else ()
        return self.carried + own

    def beyond(self, base: ValueVersion) -> tuple[Range, ...]:
        """Itself minus a version: what a merge onto that version adds."""
        return self.ranges if self.root is base else self.ranges + apart(self.root, base)


def rebased(mine: Content, anchor: Content, onto: ValueVersion) -> Content:
    """onto + mine - anchor: the local value carried over to a new version."""
    same = mine.root is anchor.root and mine.carried == anchor.carried
    if same and mine.since == anchor.since and anchor.step >= anchor.since:
        return Content(onto, (), mine.unit, anchor.step, mine.step)
    left = mine.ranges + negated(anchor.ranges) + apart(mine.root, anchor.root)
    return Content(onto, settled(left), mine.unit, mine.step, mine.step)


def apart(one: ValueVersion, other: ValueVersion) -> tuple[Range, ...]:
    """one - other, both of one fragment."""
    ours: list[Range] = []
    theirs: list[Range] = []
    while one is not other:
        if one.depth >= other.depth:
            assert one.parent is not None, "versions of one fragment have one beginning"
            ours += one.ranges
            one = one.parent
        else:
            assert other.parent is not None
            theirs += other.ranges
            other = other.parent
    return tuple(ours) + negated(theirs)


def negated(ranges: Iterable[Range]) -> tuple[Range, ...]:
    return tuple(Range(unit, after, upto, -times) for unit, after, upto, times in ranges)


def counts(ranges: Iterable[Range]) -> dict[tuple[Key, int], int]:
    """How often each step is in there; steps that cancel out are left out."""
    total: dict[tuple[Key, int], int] = defaultdict(int)
    for unit, after, upto, times in ranges:
        for step in range(after + 1, upto + 1):
            total[unit, step] += times
    return {step: count for step, count in total.items() if count}


def settled(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """The same with what cancels out gone; a range a step."""
    return tuple(Range(unit, step - 1, step, count) for (unit, step), count in sorted(counts(ranges).items()))


def uneven(ranges: Iterable[Range]) -> str:
    """Which step is in there more than once, or less than not at all; empty when none is."""
    for (unit, step), count in sorted(counts(ranges).items()):
        if count != 1:
            return f"step {step} of {unit[0]} {unit[1]} counts {count:+d}"
    return ""
