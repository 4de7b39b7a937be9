"""The series of the report's figures, which its script draws (templates/figures.js), as JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from orchestrator.report.data import Data

LEARNERS_MOST = 64  # rows of a figure

# Where the learners' time went: all of it, and magnified what was not productive.
GROUPS: dict[str, tuple[str, tuple[str, ...]]] = {  # role: (words, categories of goodput)
    "productive": ("productive", ("productive",)),
    "pending": ("in flight", ("in_flight",)),
    "wasted": ("wasted", ("wasted_killed", "wasted_drained", "wasted_overlap", "wasted_refused", "wasted_run_ended")),
    "waiting": ("waiting for data or adoption", ("data_stall", "sync_blocked")),
    "frozen": ("frozen", ("suspended",)),
    "dead": ("fault noticed, restart decided", ("fault_detect", "fault_recover")),
    "placing": ("waiting for a place", ("provision_wait",)),
    "importing": ("starting, importing", ("startup",)),
    "compiling": ("compiling", ("compile",)),
    "joining": ("joining", ("bootstrap",)),
    "draining": ("leaving", ("drain",)),
    "unexplained": ("unattributed", ("unattributed",)),
}


def grouped(spent: Mapping[str, float]) -> dict[str, float]:
    """One learner's seconds by role; categories that no group names are unexplained."""
    seconds = {role: sum(spent.get(name, 0.0) for name in names) for role, (_, names) in GROUPS.items()}
    known = {name for _, names in GROUPS.values() for name in names}
    seconds["unexplained"] += sum(value for name, value in spent.items() if name not in known)
    return seconds


def drawn(data: Data) -> dict[str, Any]:
    """What the figures show. `trained`: seconds, tokens, median, 10 %, 90 %; `held`: seconds, tokens, loss."""
    return {
        "end": data.end_s,
        "trained": [(each.at_s, each.tokens, each.middle, each.low, each.high) for each in data.training],
        "held": [(each.at_s, each.tokens, each.value) for each in data.held_out],
        "marks": [asdict(mark) for mark in data.marks],
        "lanes": [asdict(lane) for lane in data.lanes],
        "time": [(name, grouped(spent)) for name, spent in list(data.seconds.items())[:LEARNERS_MOST]],
        "groups": {role: words for role, (words, _) in GROUPS.items()},
    }
