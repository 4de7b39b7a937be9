"""What one trial comes to: gaps between steps before and after a SIGKILL, commits, and who ended.

Pure: from times alone, of Unix seconds, which on one host are one clock.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LEARNER, COORDINATOR, RESTARTED = "learner", "coordinator", "coordinator, restarted"  # what is killed

BEFORE_S = 10.0  # fault-free, once all step and commit
AFTER_S = {LEARNER: 20.0, COORDINATOR: 65.0, RESTARTED: 65.0}  # watched; torchft gives a quorum up after 60 s


@dataclass(frozen=True)
class Watched:
    """One learner that was not killed."""

    before_gap_s_median: float
    before_gap_s_max: float
    after_gap_s_max: float  # the gap in which the kill fell included, and one that was still open at the end
    open: bool  # its longest gap was not over at the end of the window: it is at least so long
    last_step_s: float  # after the kill; negative: none followed

    @property
    def ratio(self) -> float:
        return self.after_gap_s_max / self.before_gap_s_max


@dataclass(frozen=True)
class Ended:
    """A process that ended by itself within the window."""

    code: int
    after_s: float  # the kill


@dataclass(frozen=True)
class Trial:
    system: str
    killed: str
    learners: dict[str, Watched]
    before_commit_gap_s_max: float
    next_commit_s: float | None  # after the kill
    commits: int  # in the window after it
    back_s: float | None  # until a commit has a part of the killed learner's next life
    ended: dict[str, Ended]


def trial(
    system: str,
    killed: str,
    at: float,
    steps: Mapping[str, Sequence[float]],
    commits: Sequence[float],
    back: float | None,
    ended: Mapping[str, Ended],
) -> Trial:
    """`steps`: by learner, when each was finished; `at`, `commits`, `back`: when."""
    end = at + AFTER_S[killed]
    later = [time - at for time in commits if at < time <= end]
    return Trial(
        system,
        killed,
        {name: watched(times, at, end) for name, times in steps.items()},
        max(gaps(commits, at - BEFORE_S, at)),
        min(later, default=None),
        len(later),
        None if back is None else back - at,
        dict(ended),
    )


def watched(times: Sequence[float], at: float, end: float) -> Watched:
    before = gaps(times, at - BEFORE_S, at)
    last = max(time for time in times if time <= end)
    begin = max(time for time in times if time <= at)
    closed = max(gaps(times, begin, end), default=0.0)
    return Watched(statistics.median(before), max(before), max(closed, end - last), end - last > closed, last - at)


def gaps(times: Sequence[float], begin: float, end: float) -> list[float]:
    """Between neighbouring times, both within [begin, end]."""
    return [b - a for a, b in itertools.pairwise(time for time in times if begin <= time <= end)]
