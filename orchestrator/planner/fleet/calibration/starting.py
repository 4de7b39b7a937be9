"""Fits how much learners that start together slow each other down, from the times of each phase of each start.

On one host they share cores and disk. One number stands for all of it: that many starts at once go on at full speed,
more share it equally. The fit is the number with which all starts come to the most nearly equal work.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, pstdev

STEP = 0.25  # of the number that is looked for

Marks = Sequence[float]  # of one start: when each of its phases began, and the last one ended


def abreast(starts: Sequence[Marks]) -> float | None:
    """How many starts at once go on at full speed; None if no two ever overlapped."""
    most = max((count for _, _, count in crowds(starts)), default=0)
    if most < 2:
        return None
    candidates = [1.0 + STEP * i for i in range(round((most - 1) / STEP) + 1)]
    return min(candidates, key=lambda each: (round(_spread(starts, each), 6), -each))


def works(starts: Sequence[Marks], beside: Sequence[Marks], most: float | None) -> list[list[float]]:
    """The seconds that each phase of each start would have taken alone. `beside`: all starts that there were."""
    among = crowds(beside)
    return [[_work(among, begin, end, most) for begin, end in pairwise(marks)] for marks in starts]


def crowds(starts: Sequence[Marks]) -> list[tuple[float, float, int]]:
    """[from, to) and how many were starting then, wherever any was."""
    edges = sorted({at for marks in starts for at in (marks[0], marks[-1])})
    counted = ((a, b, sum(marks[0] <= a and b <= marks[-1] for marks in starts)) for a, b in pairwise(edges))
    return [(a, b, count) for a, b, count in counted if count]


def _work(among: Sequence[tuple[float, float, int]], begin: float, end: float, most: float | None) -> float:
    if most is None:
        return max(0.0, end - begin)
    parts = ((min(end, b) - max(begin, a), count) for a, b, count in among)
    return sum(seconds * min(1.0, most / count) for seconds, count in parts if seconds > 0.0)


def _spread(starts: Sequence[Marks], most: float) -> float:
    """Standard deviation over mean, of the whole work of each."""
    whole = [sum(phases) for phases in works(starts, starts, most)]
    return pstdev(whole) / fmean(whole) if fmean(whole) else 0.0
