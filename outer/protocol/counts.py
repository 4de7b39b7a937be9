"""What one syncer epoch has counted, of each learner and in all: for status pages and metrics, from 0 in each epoch.

The machine decides nothing by it.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from outer.protocol.facts import Committed, LearnerFenced, LeaseExpired, ReadFailed, Refused, StepReopened

REASONS_MAX = 32  # by which one learner's events are told apart; learners word some of them
OTHER = "other"
LEFT_OUT = "left_out"  # tokens between two contributions that merged
BY_REASON = {LearnerFenced: "fences", Refused: "refusals", ReadFailed: "reads_failed"}


def add(counter: Counter[str], reason: str, amount: int = 1) -> None:
    """Count this reason, as `other` if there are too many of them."""
    counter[reason if reason in counter or len(counter) < REASONS_MAX else OTHER] += amount


@dataclass
class LearnerCounts:
    """Of one learner, over all its incarnations."""

    tokens_processed: int = 0  # as reported
    tokens_committed: int = 0
    tokens_discarded: Counter[str] = field(default_factory=Counter)  # of incarnations that are fenced, by why
    contributions: int = 0  # merged, with a weight above 0
    contribution_bytes: int = 0  # payloads of the merged ones
    lease_expiries: int = 0
    fences: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    reads_failed: Counter[str] = field(default_factory=Counter)


@dataclass
class Counts:
    """`learners` has those whom the syncer knows; what a stranger does is in the log alone."""

    learners: dict[str, LearnerCounts] = field(default_factory=dict)
    commits: int = 0
    steps_reopened: int = 0
    live: int = 0  # sums over commits, as the four below
    quorum_s: float = 0.0
    grace_s: float = 0.0
    sync_s: float = 0.0
    norms: dict[int, float] = field(default_factory=dict)  # newest, by fragment

    def of(self, learner: str) -> LearnerCounts:
        if (counts := self.learners.get(learner)) is None:
            counts = self.learners[learner] = LearnerCounts()
        return counts

    def note(self, fact: Any) -> None:
        """Count a fact that the syncer writes to the log."""
        if type(fact) is StepReopened:
            self.steps_reopened += 1
        elif (learner := self.learners.get(getattr(fact, "learner", ""))) is None:
            return
        elif (name := BY_REASON.get(type(fact))) is not None:
            add(getattr(learner, name), fact.reason)
        elif type(fact) is LeaseExpired:
            learner.lease_expiries += 1

    def commit(self, record: Committed, sizes: dict[str, tuple[int, ...]]) -> None:
        """Count a commit that is durable. `sizes`: bytes of a contribution, by codec and fragment."""
        self.commits += 1
        self.live += record.live
        self.quorum_s += record.quorum_s
        self.grace_s += record.grace_s
        self.sync_s += record.sync_s
        self.norms[record.fragment] = record.norm
        for each in record.participants:
            learner = self.of(each.learner)
            learner.contributions += each.weight > 0
            learner.contribution_bytes += sizes[each.codec if each.codec in sizes else ""][record.fragment]

    def view(self) -> dict[str, Any]:
        """Return a copy as plain values."""
        norms = {str(fragment): norm for fragment, norm in self.norms.items() if math.isfinite(norm)}
        own = {name: value for name, value in vars(self).items() if name not in ("learners", "norms")}
        return {**own, "norms": norms, "learners": {name: _plain(each) for name, each in self.learners.items()}}


def _plain(counts: LearnerCounts) -> dict[str, Any]:
    return {name: dict(value) if isinstance(value, Counter) else value for name, value in vars(counts).items()}
