"""Turns log lines into samples: which fact changes which metric, by how much.

Facts are read by the names of kinds and fields, so a newer log can be read; tests compare the names with the facts'
definitions. Fed a log from its beginning, the counters equal the books and the summary.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.accounting.summary import ELEMENT_BYTES
from orchestrator.telemetry.catalog import CATALOG, KINDS, OTHER, Sample
from orchestrator.telemetry.fates import COMMITTED, Fates
from orchestrator.telemetry.log_tail import Line
from orchestrator.telemetry.recoveries import Recoveries

GAPS_ALLOWED = 2  # medians that a gap may last before it counts as downtime, as in orchestrator/accounting/goodput.py
WRITER = "@writer"  # in place of a field's name: the event's writer


@dataclass(frozen=True)
class Rule:
    """One fact moves one metric: by 1 or by the number in a field, under labels taken from fields."""

    metric: str
    labels: Mapping[str, str]  # label -> field
    amount: str = ""  # field, or "" for 1


RULES: Mapping[str, tuple[Rule, ...]] = {
    # the syncer's
    "LearnerFenced": (Rule("diloco_learners_fenced_total", {"learner": "learner", "reason": "reason"}),),
    "LeaseExpired": (Rule("diloco_lease_expiries_total", {"learner": "learner"}),),
    "StepReopened": (Rule("diloco_steps_reopened_total", {}),),
    "Refused": (Rule("diloco_refusals_total", {"learner": "learner", "reason": "reason"}),),
    "ReadFailed": (Rule("diloco_reads_failed_total", {"learner": "learner", "reason": "reason"}),),
    "Committed": (
        Rule("diloco_commits_total", {"fragment": "fragment"}),
        Rule("diloco_live_at_commits_total", {}, "live"),
        Rule("diloco_quorum_wait_seconds_total", {}, "quorum_s"),
        Rule("diloco_grace_wait_seconds_total", {}, "grace_s"),
        Rule("diloco_sync_seconds_total", {}, "sync_s"),
        Rule("diloco_merged_norm", {"fragment": "fragment"}, "norm"),
    ),
    "DrainStarted": (Rule("diloco_drains_total", {"learner": "learner"}),),
    # learners'
    "StepFinished": (
        Rule("diloco_tokens_processed_total", {"learner": WRITER}, "tokens"),
        Rule("diloco_steps_total", {"learner": WRITER}),
        Rule("diloco_step_seconds_total", {"learner": WRITER}, "seconds"),
    ),
    "Adopted": (Rule("diloco_adoptions_total", {"learner": WRITER, "mode": "mode"}),),
    "AdoptionRefused": (Rule("diloco_adoptions_refused_total", {"learner": WRITER, "reason": "reason"}),),
    "LoopFailed": (Rule("diloco_loops_failed_total", {"learner": WRITER}),),
    "StateReceived": (
        Rule("diloco_states_received_total", {"learner": WRITER, "source": "source"}),
        Rule("diloco_state_bytes_total", {"learner": WRITER, "source": "source"}, "bytes"),
    ),
    "DonorFailed": (Rule("diloco_donors_failed_total", {"learner": WRITER}),),
    "Donated": (Rule("diloco_donations_total", {"learner": WRITER}),),
    # the orchestrator's and chaos's
    "FaultInjected": (Rule("diloco_faults_injected_total", {"kind": "fault_kind"}),),
    "FaultSkipped": (Rule("diloco_faults_skipped_total", {"kind": "fault_kind"}),),
}


class Measures:
    """The samples of one run's log. Pass each line once, in order."""

    def __init__(self, codec: str, version: str) -> None:
        """`codec`: the contributions' number format, of the recipe; `version`: this package's."""
        self._bytes_up = ELEMENT_BYTES.get(codec, 0)
        self._version = version
        self._sizes: list[int] = []
        self._pools: dict[str, str] = {}
        self._lost: dict[str, str] = {}  # learner -> what ended its newest incarnation
        self._committed_step = 0.0
        self._fates, self._recoveries, self._commit_intervals = Fates(), Recoveries(), CommitIntervals()
        self._special: dict[str, Callable[[Line], Iterator[Sample]]] = {
            "RunStarted": self._run_started,
            "SyncerStarted": self._syncer_started,
            "LearnerRequested": self._requested,
            "LearnerLost": self._lost_one,
            "StepFinished": self._stepped,
            "Adopted": self._adopted,
            "Committed": self._committed,
            "Evaluated": self._evaluated,
            "ReferenceLosses": self._references,
        }

    def take(self, line: Line) -> Iterator[Sample]:
        """The samples of one log line."""
        yield Sample("diloco_facts_total", 1, {"kind": line.kind if line.kind in KINDS else OTHER})
        if line.kind == "Committed" and self._is_repeated(line):
            return
        for rule in RULES.get(line.kind, ()):
            amount = number(line.fact.get(rule.amount)) if rule.amount else 1
            if amount is not None and (amount or CATALOG[rule.metric].kind == "gauge"):
                yield Sample(rule.metric, amount, _labels(rule, line))
        if line.kind in self._special:
            yield from self._special[line.kind](line)
        for fate in self._fates.take(line):
            yield _told(*fate)
        for recovery in self._recoveries.take(line):
            yield Sample("diloco_recoveries_total", 1, {"learner": recovery.learner})
            yield Sample("diloco_recovery_seconds_total", max(0.0, recovery.seconds), {"learner": recovery.learner})
            yield Sample("diloco_recovery_duration_seconds", recovery.seconds)
            yield Sample("diloco_last_recovery_seconds", recovery.seconds, {"learner": recovery.learner})

    def _is_repeated(self, line: Line) -> bool:
        """Whether this commit was repeated by a new epoch."""
        step = number(line.fact.get("syncer_step"))
        if step is None:
            return False  # damaged, which is for others to find
        repeated, self._committed_step = step <= self._committed_step, max(step, self._committed_step)
        return repeated

    def close(self) -> Iterator[Sample]:
        """The last samples, once the log is read to its end."""
        for fate in self._fates.close():
            yield _told(*fate)

    def commit_intervals(self) -> Iterator[Sample]:
        """Samples computed from all commits so far; not to be called for every line."""
        for name, value in (
            ("diloco_last_commit_timestamp_seconds", self._commit_intervals.last),
            ("diloco_commit_interval_seconds", self._commit_intervals.interval_s),
            ("diloco_outer_downtime_seconds", self._commit_intervals.downtime_s),
        ):
            if value is not None:
                yield Sample(name, value)

    # -------------------------------------------------------------- facts that take more than a rule

    def _run_started(self, line: Line) -> Iterator[Sample]:
        versions = line.fact["versions"]
        known = {name: str(versions[name]) for name in ("python", "ray", "jax") if versions.get(name)}
        yield Sample("diloco_build_info", 1, {"version": self._version, **known})

    def _syncer_started(self, line: Line) -> Iterator[Sample]:
        self._sizes = list(line.fact["sizes"])
        yield from ()

    def _requested(self, line: Line) -> Iterator[Sample]:
        learner = line.fact["learner"]
        self._pools[learner] = line.fact["pool"]
        if line.fact["incarnation"] > 1:
            cause = self._lost.pop(learner, OTHER)
            yield Sample("diloco_restarts_total", 1, {"learner": learner, "cause": cause})

    def _lost_one(self, line: Line) -> Iterator[Sample]:
        self._lost[line.fact["learner"]] = line.fact["cause"]
        yield from ()

    def _stepped(self, line: Line) -> Iterator[Sample]:
        fact = line.fact
        pool = self._pools.get(line.writer, OTHER)
        if (seconds := number(fact["seconds"])) is not None:
            yield Sample("diloco_step_duration_seconds", seconds, {"pool": pool})
        if fact["waited_for"]:
            labels = {"learner": line.writer, "kind": fact["waited_for"]}
            yield Sample("diloco_step_wait_seconds_total", fact["waited_s"], labels)

    def _adopted(self, line: Line) -> Iterator[Sample]:
        size = self._sizes[line.fact["fragment"]] * ELEMENT_BYTES["fp32"]
        yield Sample("diloco_version_bytes_total", size, {"learner": line.writer})

    def _committed(self, line: Line) -> Iterator[Sample]:
        fact = line.fact
        self._commit_intervals.add(line.at)
        yield Sample("diloco_commit_participants", len(fact["participants"]))
        if not fact["grace_s"]:
            yield Sample("diloco_commits_without_grace_total", 1)
        size = self._sizes[fact["fragment"]] * self._bytes_up
        for one in fact["participants"]:
            labels = {"learner": one["learner"]}
            if one["weight"] > 0:
                yield Sample("diloco_contributions_total", 1, labels)
            if size:
                yield Sample("diloco_contribution_bytes_total", size, labels)

    def _evaluated(self, line: Line) -> Iterator[Sample]:
        finite = number(line.fact["loss"]) is not None
        yield Sample("diloco_evaluations_total", 1, {"outcome": "finite" if finite else "non_finite"})

    def _references(self, line: Line) -> Iterator[Sample]:
        for model in ("bigram", "trigram"):
            if (loss := number(line.fact[model])) is not None:
                yield Sample("diloco_reference_loss", loss, {"model": model})


class CommitIntervals:
    """Intervals between commits, in seconds, sorted; 32 bytes for each commit."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._gaps: list[float] = []

    def add(self, at: float) -> None:
        if self._last is not None:
            insort(self._gaps, at - self._last)
        self._last = at

    @property
    def last(self) -> float | None:
        return self._last

    @property
    def interval_s(self) -> float | None:
        """The median; None before the second commit."""
        half = len(self._gaps) // 2
        return (self._gaps[half] + self._gaps[~half]) / 2 if self._gaps else None

    @property
    def downtime_s(self) -> float | None:
        """The seconds beyond two median intervals, summed over the intervals, as goodput's outer_downtime."""
        if self.interval_s is None:
            return None
        allowed = GAPS_ALLOWED * self.interval_s
        return math.fsum(gap - allowed for gap in self._gaps[bisect_right(self._gaps, allowed) :])


def number(value: Any) -> float | None:
    """A finite number of the log, else None. The log writes nan and inf as strings."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return value


def _labels(rule: Rule, line: Line) -> dict[str, str]:
    return {
        label: line.writer if field == WRITER else str(line.fact.get(field, OTHER))
        for label, field in rule.labels.items()
    }


def _told(learner: str, fate: str, tokens: int) -> Sample:
    if fate == COMMITTED:
        return Sample("diloco_tokens_committed_total", tokens, {"learner": learner})
    return Sample("diloco_tokens_discarded_total", tokens, {"learner": learner, "reason": fate})
