"""Quorum and grace: decides when to stop collecting reports and merge, with the reason (paper section 3).

A verdict has three values, never a bool. The step times and delays that adaptive grace needs are averaged here too.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from outer.config import SyncConfig


class Decision(Enum):
    WAIT = "wait"
    OPEN_GRACE = "open_grace"
    MERGE = "merge"


class QuorumVerdict(NamedTuple):
    decision: Decision
    reason: str


def adaptive_grace(gamma: float, overlap_steps: int, step_s: float, quorum_s: float, sync_s: float) -> float:
    """Seconds to wait for more than K learners (paper section 3, adaptive grace).

    gamma * slack, clipped to [0, xi_step], where slack = tau * xi_step - (xi_quorum + xi_sync) is the part of the
    overlap that the quorum and the merge usually leave unused.
    """
    slack = overlap_steps * step_s - (quorum_s + sync_s)
    return min(max(gamma * slack, 0.0), step_s)


def decide(
    now: float, *, quorum: int, live: int, reported: int, quorum_at: float | None, grace_s: float | None
) -> QuorumVerdict:
    """Judge one open syncer step. `OpenStep.judge` calls it after every event.

    `quorum`: K. `reported`: how many live learners finished a step after this syncer step opened. `quorum_at`: when
    the K-th of them reported, None before grace. `grace_s`: the grace granted, None for endless.
    """
    if live < quorum:
        return QuorumVerdict(Decision.WAIT, f"{live} learners alive, the quorum is {quorum}")
    if reported < quorum:
        return QuorumVerdict(Decision.WAIT, f"{reported} of {quorum} reported")
    if reported >= live:
        return QuorumVerdict(Decision.MERGE, f"all {live} live learners reported")
    if quorum_at is None:
        if grace_s == 0.0:
            return QuorumVerdict(Decision.MERGE, f"{reported} of {live} reported, no slack for grace")
        return QuorumVerdict(Decision.OPEN_GRACE, f"{reported} of {live} reported")
    if grace_s is None:
        return QuorumVerdict(Decision.WAIT, f"{reported} of {live} reported, grace is without end")
    if now >= quorum_at + grace_s:
        return QuorumVerdict(Decision.MERGE, f"grace is over, {reported} of {live} reported")
    return QuorumVerdict(Decision.WAIT, f"{reported} of {live} reported, in grace")


# ------------------------------------------------------------------ step times and delays


@dataclass
class Average:
    """Exponential moving average. The first sample counts fully."""

    smoothing: float
    value: float = 0.0
    samples: int = 0

    def add(self, sample: float) -> None:
        self.value = sample if not self.samples else self.value + self.smoothing * (sample - self.value)
        self.samples += 1


class StepTiming:
    """How long quorums and commits usually take, in seconds, and the grace that follows from it."""

    def __init__(self, config: SyncConfig) -> None:
        self._config = config
        self.quorum_s = Average(config.smoothing)  # xi_quorum: opening to the K-th report
        self.sync_s = Average(config.smoothing)  # xi_sync: decision to durable
        self.merge_s = Average(config.smoothing)  # the part of it after the last answer
        # Opening to durable, without the wait for earlier steps and merges, in the last four rounds.
        self.exchanges_s = deque([0.0], maxlen=4 * config.round_steps)

    def open_max(self, step_s: float) -> int:
        """How many syncer steps may be open: tau, or those that pass in the longest of the newest exchanges, but less
        than a round, so that no fragment is open twice. `step_s`: xi_step, in seconds.

        The wait for earlier steps and merges does not count: it grows with what is open, which would grow with it.
        """
        passing = 0 if self._config.overlap == "strict" else math.ceil(max(self.exchanges_s) / max(step_s, 1e-9))
        return max(1, self._config.overlap_steps, min(self._config.round_steps - 1, passing))

    def room_s(self, step_s: float, since_s: float) -> float:
        """Return the seconds that answers may take: the rest of tau steps `since_s` after opening, less the merge."""
        return max(0.0, max(1, self._config.overlap_steps) * step_s - since_s - self.merge_s.value)

    def usual_room_s(self, step_s: float) -> float:
        """Return the usual time for answers: what quorum, grace and merge leave of tau steps."""
        return self.room_s(step_s, self.quorum_s.value + (self.grace_s(step_s) or 0.0))

    def grace_s(self, step_s: float) -> float | None:
        """The grace for a quorum reached now, in seconds; None for endless. `step_s`: xi_step."""
        config = self._config
        if config.grace == "infinite":
            return None
        if config.grace != "adaptive":
            return float(config.grace)
        return adaptive_grace(config.gamma, config.overlap_steps, step_s, self.quorum_s.value, self.sync_s.value)
