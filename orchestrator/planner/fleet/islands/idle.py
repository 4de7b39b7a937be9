"""When learners step, and when none does: goodput and uptime of a fleet from what each learner did.

Goodput (section 7): the share of the allocated time spent on useful steps, a step with slices missing in proportion.
Uptime: the share of the time in which at least one learner steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np


class Measured(NamedTuple):
    """Of one fleet over one stretch of time; shares, 0 to 1."""

    goodput: float
    uptime: float


@dataclass
class Record:
    """One learner over the measured stretch."""

    begin: float = 0.0  # of its first step in it, seconds
    end: float = 0.0  # from when the next step after it could begin
    useful_s: float = 0.0  # its steps in full ones, times their length
    idle_from: list[float] = field(default_factory=list)  # rising
    idle_until: list[float] = field(default_factory=list)

    def idle(self, begin: float, end: float) -> None:
        self.idle_from.append(begin)
        self.idle_until.append(end)


def measured(records: Sequence[Record], begin: float, end: float) -> Measured:
    """The mean goodput of learners of equal size, each over its own stretch, and the uptime from `begin` to `end`."""
    shares = [record.useful_s / (record.end - record.begin) for record in records]
    goodput = min(1.0, sum(shares) / len(shares))  # sums of many steps round upwards too
    return Measured(goodput, 1.0 - all_idle_s(records, begin, end) / (end - begin))


def all_idle_s(records: Sequence[Record], begin: float, end: float) -> float:
    """Seconds between `begin` and `end` in which every one of the learners stood still."""
    starts = np.concatenate([np.clip(record.idle_from, begin, end) for record in records])
    stops = np.concatenate([np.clip(record.idle_until, begin, end) for record in records])
    times = np.concatenate([starts, stops])
    order = np.argsort(times, kind="stable")
    idle = np.cumsum(np.concatenate([np.ones(len(starts), np.int64), np.full(len(stops), -1)])[order])
    spans = np.diff(times[order], append=end)
    return float(spans[idle == len(records)].sum())
