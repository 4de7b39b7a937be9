"""When to stop collecting and merge: a pure verdict with its reason (paper section 3, quorum and grace)."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Decision(Enum):
    WAIT = "wait"
    OPEN_GRACE = "open_grace"
    MERGE = "merge"


class Verdict(NamedTuple):
    decision: Decision
    reason: str


def adaptive_grace(gamma: float, overlap_steps: int, step_s: float, quorum_s: float, sync_s: float) -> float:
    """Seconds that more than K learners may be waited for.

    gamma * slack, held within [0, xi_step], with slack = tau * xi_step - (xi_quorum + xi_sync): what is left of
    the overlap once the quorum and the merge have taken their usual time.
    """
    slack = overlap_steps * step_s - (quorum_s + sync_s)
    return min(max(gamma * slack, 0.0), step_s)


def decide(
    now: float, *, quorum: int, live: int, reported: int, quorum_at: float | None, grace_s: float | None
) -> Verdict:
    """Judge one open syncer step.

    `reported` counts the live learners that finished a step after the syncer step opened; `quorum_at` is when
    the K-th of them did, None while grace has not been opened; `grace_s` None is without end.
    """
    if live < quorum:
        return Verdict(Decision.WAIT, f"{live} learners alive, the quorum is {quorum}")
    if reported < quorum:
        return Verdict(Decision.WAIT, f"{reported} of {quorum} reported")
    if reported >= live:
        return Verdict(Decision.MERGE, f"all {live} live learners reported")
    if quorum_at is None:
        if grace_s == 0.0:
            return Verdict(Decision.MERGE, f"{reported} of {live} reported, no slack for grace")
        return Verdict(Decision.OPEN_GRACE, f"{reported} of {live} reported")
    if grace_s is None:
        return Verdict(Decision.WAIT, f"{reported} of {live} reported, grace is without end")
    if now >= quorum_at + grace_s:
        return Verdict(Decision.MERGE, f"grace is over, {reported} of {live} reported")
    return Verdict(Decision.WAIT, f"{reported} of {live} reported, in grace")
