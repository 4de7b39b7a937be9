"""A run's metrics as a fold over its log: which fact changes which metric, by how much.

Counters count since the run began, so a reader that keeps what it read last knows what is new. Fed a log from its
beginning to its end, the counters equal the books and the summary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from orchestrator.accounting.accounts import Accounts
from orchestrator.accounting.ledger import COMMITTED, FATES, REASONS, Books
from orchestrator.accounting.summary import downloaded
from orchestrator.eventlog.block import Block
from orchestrator.eventlog.events import Event, kind_of
from orchestrator.eventlog.facts import Evaluated, LearnerLost, LearnerRequested
from orchestrator.telemetry.catalog import CATALOG, KINDS, OTHER, Buckets, LabelLimits, Sample
from outer.numeric.formats import known
from outer.protocol.facts import LearnerFenced, SyncerStarted

WRITER = "@writer"  # in place of a field's name: the event's writer
DEATHS_KEPT = 64  # of a learner that has not come back


@dataclass(frozen=True)
class Rule:
    """One rare fact moves one counter: by 1 or by the number in a field, under labels taken from fields."""

    metric: str
    labels: Mapping[str, str] = field(default_factory=dict)  # label -> field
    amount: str = ""  # field, or "" for 1


RULES: Mapping[str, tuple[Rule, ...]] = {
    # the syncer's
    "LearnerFenced": (Rule("diloco_learners_fenced_total", {"learner": "learner", "reason": "reason"}),),
    "LeaseExpired": (Rule("diloco_lease_expiries_total", {"learner": "learner"}),),
    "StepReopened": (Rule("diloco_steps_reopened_total"),),
    "Refused": (Rule("diloco_refusals_total", {"learner": "learner", "reason": "reason"}),),
    "ReadFailed": (Rule("diloco_reads_failed_total", {"learner": "learner", "reason": "reason"}),),
    "DrainStarted": (Rule("diloco_drains_total", {"learner": "learner"}),),
    # learners'
    "AdoptionRefused": (Rule("diloco_adoptions_refused_total", {"learner": WRITER, "reason": "reason"}),),
    "LoopFailed": (Rule("diloco_loops_failed_total", {"learner": WRITER}),),
    "StateReceived": (Rule("diloco_state_bytes_total", {"learner": WRITER, "source": "source"}, "bytes"),),
    "DonorFailed": (Rule("diloco_donors_failed_total", {"learner": WRITER}),),
    "Donated": (Rule("diloco_donations_total", {"learner": WRITER}),),
    # the orchestrator's and chaos's
    "FaultInjected": (Rule("diloco_faults_injected_total", {"kind": "fault_kind"}),),
    "FaultSkipped": (Rule("diloco_faults_skipped_total", {"kind": "fault_kind"}),),
}
_STEP_COLUMNS = {"diloco_tokens_processed_total": "tokens", "diloco_step_seconds_total": "seconds"}
_COMMIT_COLUMNS = {
    "diloco_live_at_commits_total": "live",
    "diloco_quorum_wait_seconds_total": "quorum_s",
    "diloco_grace_wait_seconds_total": "grace_s",
    "diloco_sync_seconds_total": "sync_s",
}


class MetricsFold:
    """Needs the accounts to take each block first."""

    def __init__(self, codec: str, accounts: Accounts) -> None:
        """`codec`: the contributions' number format, of the recipe."""
        self._codec = codec
        self._accounts = accounts
        self._values: dict[tuple[str, ...], float] = {}  # by metric and the values of its labels
        self._buckets: dict[tuple[str, ...], Buckets] = {}
        self._bounds = LabelLimits()
        self._sizes: tuple[int, ...] = ()
        self._pools: dict[str, str] = {}
        self._lost: dict[str, str] = {}  # learner -> what ended its newest incarnation
        self._dead: dict[str, dict[int, float]] = {}  # learner -> incarnation -> when it died, until recovered from
        self._committed_at: float | None = None

    @property
    def over(self) -> bool:
        """Whether the log says that the run has ended."""
        return self._accounts.roster.over

    def take(self, block: Block) -> None:
        self._count(block)
        for _, event in block.others:
            self._rare(event)
        self._steps(block)
        self._adoptions(block)
        self._commits(block)
        self._fates()

    def finish(self, books: Books) -> None:
        """The log has been read to its end. What the books say of every token is final."""
        for learner, ledger in books.by_learner.items():
            self._set("diloco_tokens_committed_total", ledger.committed, learner=learner)
            for reason, tokens in ledger.discarded.items():
                self._set("diloco_tokens_discarded_total", tokens, learner=learner, reason=reason)

    def samples(self) -> Iterator[Sample]:
        """Every series as it is now."""
        series: list[tuple[tuple[str, ...], float | Buckets]] = [*self._values.items(), *self._buckets.items()]
        for (name, *labels), value in series:
            yield Sample(name, value, dict(zip(CATALOG[name].label_names[1:], labels, strict=True)))
        times = self._accounts.times
        known = {
            "diloco_last_commit_timestamp_seconds": self._committed_at,
            "diloco_commit_interval_seconds": times.gaps.median if times.gaps.count else None,
            "diloco_outer_downtime_seconds": times.outer_downtime,
        }
        yield from (Sample(name, value) for name, value in known.items() if value is not None)

    # -------------------------------------------------------------- values

    def _key(self, name: str, labels: Mapping[str, str]) -> tuple[str, ...]:
        return (name, *self._bounds.admit(Sample(name, 0, labels)).values())

    def _add(self, name: str, amount: float, **labels: str) -> None:
        """Only a positive, finite amount counts: a counter never decreases."""
        if 0 < amount < math.inf:
            key = self._key(name, labels)
            self._values[key] = self._values.get(key, 0) + amount

    def _set(self, name: str, value: float, **labels: str) -> None:
        if math.isfinite(value) and (value or CATALOG[name].kind == "gauge"):
            self._values[self._key(name, labels)] = value

    def _observe(self, name: str, values: Any, **labels: str) -> None:
        limits = CATALOG[name].buckets
        known = np.asarray(values, np.float64)
        known = known[np.isfinite(known) & (known >= 0)]
        if len(known):
            buckets = self._buckets.setdefault(self._key(name, labels), Buckets([0] * (len(limits) + 1)))
            counts = np.bincount(np.searchsorted(limits, known), minlength=len(limits) + 1)
            buckets.counts = [before + new for before, new in zip(buckets.counts, counts.tolist(), strict=True)]
            buckets.sum += float(known.sum())

    def _by_learner(self, name: str, block: Block, sources: Any, amounts: Any = None, **labels: str) -> None:
        """Add amounts, one for each row, to the learners of these sources."""
        if amounts is not None and amounts.dtype.kind == "f":
            amounts = np.where(np.isfinite(amounts) & (amounts > 0), amounts, 0.0)
        totals = np.bincount(sources, amounts, minlength=len(block.sources))
        for source in np.flatnonzero(totals).tolist():
            total = float(totals[source])
            total = total if amounts is not None and amounts.dtype.kind == "f" else int(total)
            self._add(name, total, learner=block.sources[source][0], **labels)

    # -------------------------------------------------------------- a block

    def _count(self, block: Block) -> None:
        columns = {
            "StepFinished": len(block.steps.at),
            "Adopted": len(block.adoptions.at),
            "Committed": len(block.commits.at),
        }
        for kind, count in columns.items():
            self._add("diloco_facts_total", count, kind=kind)
        for _, event in block.others:
            kind = kind_of(event.fact)
            self._add("diloco_facts_total", 1, kind=kind if kind in KINDS else OTHER)

    def _rare(self, event: Event) -> None:
        fact = event.fact
        for rule in RULES.get(type(fact).__name__, ()):
            labels = {
                label: event.writer if name == WRITER else str(getattr(fact, name))
                for label, name in rule.labels.items()
            }
            self._add(rule.metric, getattr(fact, rule.amount) if rule.amount else 1, **labels)
        match fact:
            case SyncerStarted():
                self._sizes = fact.sizes
            case LearnerRequested():
                self._pools[fact.learner] = fact.pool
                if fact.incarnation > 1:
                    cause = self._lost.pop(fact.learner, OTHER)
                    self._add("diloco_restarts_total", 1, learner=fact.learner, cause=cause)
            case LearnerLost() | LearnerFenced():
                if isinstance(fact, LearnerLost):
                    self._lost[fact.learner] = fact.cause
                self._die(fact.learner, fact.incarnation)
            case Evaluated():
                finite = math.isfinite(fact.loss)
                self._add("diloco_evaluations_total", 1, outcome="finite" if finite else "non_finite")

    def _steps(self, block: Block) -> None:
        steps = block.steps
        if not len(steps.at):
            return
        self._by_learner("diloco_steps_total", block, steps.source)
        for name, column in _STEP_COLUMNS.items():
            self._by_learner(name, block, steps.source, getattr(steps, column))
        for word in ("span", "data", "adoption", "snapshot"):
            waiting = steps.waited_for == block.code(word)
            self._by_learner(
                "diloco_step_wait_seconds_total", block, steps.source[waiting], steps.waited_s[waiting], kind=word
            )
        pools = [self._pools.get(learner, OTHER) for learner, _ in block.sources]
        for pool in {*pools}:
            here = np.array([each == pool for each in pools])[steps.source]
            self._observe("diloco_step_duration_seconds", steps.seconds[here], pool=pool)

    def _adoptions(self, block: Block) -> None:
        adopted = block.adoptions
        for mode in np.unique(adopted.mode).tolist():
            sources = adopted.source[adopted.mode == mode]
            self._by_learner("diloco_adoptions_total", block, sources, mode=block.names[mode])
        amounts = downloaded(adopted, self._elements(adopted.fragment))
        self._by_learner("diloco_version_bytes_total", block, adopted.source, amounts)

    def _elements(self, fragments: Any) -> Any:
        """Return the elements of each of these fragments; 0 for one that no SyncerStarted has."""
        sizes = np.zeros(max(len(self._sizes), 1 + int(fragments.max(initial=0))), np.int64)
        sizes[: len(self._sizes)] = self._sizes
        return sizes[fragments]

    def _commits(self, block: Block) -> None:
        commits, parts = self._accounts.records.commits, self._accounts.records.contributions
        if not len(commits.at):
            return
        self._committed_at = float(commits.at[-1])
        for name, column in _COMMIT_COLUMNS.items():
            values = getattr(commits, column)
            self._add(name, values[np.isfinite(values) & (values > 0)].sum().item())
        for fragment in np.unique(commits.fragment).tolist():
            here = np.flatnonzero(commits.fragment == fragment)
            self._add("diloco_commits_total", len(here), fragment=str(fragment))
            self._set("diloco_merged_norm", float(commits.norm[here[-1]]), fragment=str(fragment))
        self._by_learner("diloco_contributions_total", block, parts.learner[parts.weight > 0])
        forms = [known(codec or self._codec) for codec in parts.codec.tolist()]
        sizes = self._elements(commits.fragment)[parts.commit].tolist()
        payloads = [form.bytes(size) if form else 0 for form, size in zip(forms, sizes, strict=True)]
        amounts = np.array(payloads, np.int64)
        self._by_learner("diloco_contribution_bytes_total", block, parts.learner, amounts)
        self._come_back(block)

    def _fates(self) -> None:
        """Tokens whose fate has become certain."""
        for (learner, _), rows in self._accounts.books.settled:
            sums = dict(zip(FATES, np.bincount(rows.fate, rows.tokens, len(FATES)).tolist(), strict=True))
            self._add("diloco_tokens_committed_total", int(sums[COMMITTED]), learner=learner)
            for reason in REASONS:
                self._add("diloco_tokens_discarded_total", int(sums[reason]), learner=learner, reason=reason)

    # -------------------------------------------------------------- recoveries

    def _die(self, learner: str, number: int) -> None:
        roster = self._accounts.roster
        kept = reversed(roster.remains)  # it may have been dropped in this block
        incarnation = roster.table.get((learner, number)) or next((x for x in kept if x.key == (learner, number)), None)
        if incarnation is not None and incarnation.over == "killed" and incarnation.died is not None:
            dead = self._dead.setdefault(learner, {})
            dead[number] = incarnation.died
            if len(dead) > DEATHS_KEPT:
                del dead[min(dead)]

    def _come_back(self, block: Block) -> None:
        """A death lasts until the first commit with a contribution of a later incarnation."""
        commits, parts = self._accounts.records.commits, self._accounts.records.contributions
        for source in np.unique(parts.learner).tolist() if any(self._dead.values()) else ():
            learner, newest = block.sources[source]
            at = float(commits.at[parts.commit[np.argmax(parts.learner == source)]])
            for number in [number for number in self._dead.get(learner, ()) if number < newest]:
                seconds = at - self._dead[learner].pop(number)
                self._add("diloco_recoveries_total", 1, learner=learner)
                self._observe("diloco_recovery_duration_seconds", [seconds])
                self._set("diloco_last_recovery_seconds", seconds, learner=learner)
