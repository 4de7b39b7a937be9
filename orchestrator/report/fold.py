"""What the report shows of a run's log, as a fold: series, counts and rare events, in memory that does not grow."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from learners.protocol.facts import AdoptionRefused, LoopFailed, StateReceived
from orchestrator.accounting.accounts import Accounts
from orchestrator.accounting.sketch import Sketch
from orchestrator.eventlog.block import Block, Commits
from orchestrator.eventlog.events import Event, Unknown, kind_of
from orchestrator.eventlog.facts import (
    Evaluated,
    FaultHealed,
    FaultInjected,
    FaultSkipped,
    PoolScaled,
    RunStarted,
)
from orchestrator.report.learner_traffic import TrafficFold
from orchestrator.report.participation import Ages, RoundsFold
from orchestrator.report.series import BoundedTally, Ends, Series, Thinned
from outer.protocol.facts import ReadFailed, Refused, SyncerStarted

LOSS_BINS, LOSS_STEPS = 240, 8  # at most so many bins, of at least about so many steps
MERGE_BINS = 160
POINTS = 512  # held-out losses
WAITS_KEPT = 4_096  # as exact numbers
INCARNATIONS_KEPT = 32  # the newest of each learner
FAULTS_KEPT = 1_024
FAILURES_KEPT = 5
TRACEBACK_MOST = 6_000  # characters, the end
SKIPPED_KEPT = 240
TIMELINE_FIRST, TIMELINE_LAST = 160, 80
TEXT_MOST = 160  # characters of a detail in the timeline
AUX_BINS, AUX_NAMES = 480, 64
OVERWRITING = ("bootstrap", "overwrite")
COMMON = frozenset(
    {
        "StepFinished", "Adopted", "Committed", "StepOpened", "StepReopened", "StepPassed", "SpanGranted",
        "SpanReturned", "SyncerStarted", "ReferenceLosses", "Refused", "ReadFailed", "AdoptionRefused",
    }
)  # fmt: skip


@dataclass(eq=False)
class ReportFold:
    """Needs the accounts to take each block first. orchestrator/report/data.py makes the data of it."""

    accounts: Accounts
    kinds: BoundedTally = field(default_factory=BoundedTally)
    first_at: float = math.inf  # Unix seconds: of any event, the last event, and the beginning of the first step
    last_at: float = -math.inf
    stepped_at: float = math.inf
    added: dict[str, None] = field(default_factory=dict)  # learners of pools that were scaled up
    versions: dict[str, str] = field(default_factory=dict)
    curve: Thinned = field(default_factory=Thinned)  # when committed, Unix seconds; syncer step; tokens by then
    training: Series = field(default_factory=lambda: Series(LOSS_BINS, LOSS_STEPS))
    not_finite: int = 0
    auxiliary: Auxiliary = field(default_factory=lambda: Auxiliary())
    held_out: Thinned = field(default_factory=lambda: Thinned(POINTS))  # syncer step, loss
    merges: Series = field(default_factory=lambda: Series(MERGE_BINS))
    waits: list[Sketch] = field(default_factory=lambda: [Sketch(WAITS_KEPT) for _ in range(3)])
    verdict_reasons: BoundedTally = field(default_factory=BoundedTally)
    rounds: RoundsFold = field(default_factory=RoundsFold)
    ages: Ages = field(default_factory=Ages)
    traffic: TrafficFold = field(default_factory=TrafficFold)
    sources: dict[str, dict[int, str]] = field(default_factory=dict)  # learner -> incarnation -> syncer | peer NAME
    refusals: BoundedTally = field(default_factory=BoundedTally)  # (message, reason)
    injected: Ends = field(default_factory=lambda: Ends(0, FAULTS_KEPT))  # (at, FaultInjected)
    healed: Ends = field(default_factory=lambda: Ends(0, FAULTS_KEPT))  # (fault, at)
    failures: Ends = field(default_factory=lambda: Ends(0, FAILURES_KEPT))
    skipped: Ends = field(default_factory=lambda: Ends(SKIPPED_KEPT, 0))
    timeline: Ends = field(default_factory=lambda: Ends(TIMELINE_FIRST, TIMELINE_LAST))

    @property
    def learners(self) -> tuple[str, ...]:
        """Every learner that was ever wanted, in order of appearance."""
        return tuple(dict.fromkeys([*self.accounts.roster.configured, *self.added]))

    def take(self, block: Block) -> None:
        for _, event in block.others:
            self._prepare(event)
        commits, contributions = self.accounts.records.commits, self.accounts.records.contributions
        self._times(block)
        self._count(block)
        self._steps(block)
        self._commits(commits)
        self.traffic.take(block, commits, contributions)
        self.rounds.take(block, commits, contributions)
        self.ages.take(block, commits, contributions)
        self._adopted(block)
        for _, event in block.others:
            self._rare(event)

    def _prepare(self, event: Event) -> None:
        """What the block's columns are read by."""
        if isinstance(event.fact, SyncerStarted):
            self.traffic.start(event.fact)
            self.rounds.round_steps = self.rounds.round_steps or event.fact.round_steps
        elif isinstance(event.fact, PoolScaled):
            self.added.update(dict.fromkeys(event.fact.added))

    def _times(self, block: Block) -> None:
        columns = (block.steps.at, block.adoptions.at, block.commits.at, [event.at for _, event in block.others])
        known = [column for column in columns if len(column)]
        if known:
            self.first_at = min(self.first_at, *(float(np.min(column)) for column in known))
            self.last_at = max(self.last_at, *(float(np.max(column)) for column in known))
        steps = block.steps
        if len(steps.at):
            self.stepped_at = min(self.stepped_at, float((steps.at - steps.seconds - steps.waited_s).min()))

    def _count(self, block: Block) -> None:
        for kind, count in (
            ("StepFinished", len(block.steps.at)),
            ("Adopted", len(block.adoptions.at)),
            ("Committed", len(block.commits.at)),
            *((kind_of(event.fact), 1) for _, event in block.others),
        ):
            if count:
                self.kinds.take(kind, count)

    def _steps(self, block: Block) -> None:
        steps, finite = block.steps, np.isfinite(block.steps.loss)
        self.not_finite += int(np.count_nonzero(~finite))
        self.training.take(steps.at[finite], steps.loss[finite])
        for values in filter(None, steps.aux.tolist()):
            self.auxiliary.take(values)

    def _commits(self, commits: Commits) -> None:
        self.curve.take(commits.at, commits.syncer_step, commits.tokens_committed)
        waits = (commits.quorum_s, commits.grace_s, commits.sync_s)
        self.merges.take(commits.at, *waits)
        for sketch, column in zip(self.waits, waits, strict=True):
            sketch.add(column)
        for reason in commits.reason.tolist():
            self.verdict_reasons.take(re.sub(r"\d+", "N", reason))

    def _adopted(self, block: Block) -> None:
        """An incarnation that adopts a version has its first state from the syncer, unless it says otherwise."""
        modes = [block.code(mode) for mode in OVERWRITING]
        adopted = np.unique(block.adoptions.source[np.isin(block.adoptions.mode, modes)])
        for source in adopted.tolist():
            known = self._known(block.sources[source][0])
            known.setdefault(block.sources[source][1], "syncer")

    def _known(self, learner: str) -> dict[int, str]:
        """The sources of its newest incarnations."""
        known = self.sources.setdefault(learner, {})
        while len(known) > INCARNATIONS_KEPT:
            del known[min(known)]
        return known

    def _rare(self, event: Event) -> None:
        fact = event.fact
        match fact:
            case RunStarted():
                self.versions = dict(fact.versions)
            case Evaluated() if math.isfinite(fact.loss):
                self.held_out.take([fact.syncer_step], [fact.loss])
            case StateReceived():
                peer = f"peer {fact.donor}" if fact.source == "peer" else "syncer"
                self._known(event.writer)[event.incarnation] = peer
            case Refused():
                self.refusals.take((fact.message, fact.reason))
            case ReadFailed():
                self.refusals.take(("read", fact.reason))
            case AdoptionRefused():
                self.refusals.take(("adoption", fact.reason))
            case FaultInjected():
                self.injected.take((event.at, fact))
            case FaultHealed():
                self.healed.take((fact.fault, event.at))
            case FaultSkipped():
                self.skipped.take(fact)
            case LoopFailed():
                self.failures.take((event.writer, event.incarnation, fact.step, fact.traceback[-TRACEBACK_MOST:]))
        if (kind := kind_of(fact)) not in COMMON:
            told = fact.fields if isinstance(fact, Unknown) else asdict(fact)
            writer = event.writer if event.incarnation == 1 else f"{event.writer} #{event.incarnation}"
            self.timeline.take((event.at, writer, kind, "; ".join(_fields(told))))


def _fields(fact: dict[str, Any]) -> Iterator[str]:
    for name, value in fact.items():
        if value in (None, "", 0) or isinstance(value, dict):
            continue
        words = f"{value:.6g}" if isinstance(value, float) else " ".join(str(value).split())
        yield f"{name.replace('_', ' ')} {words if len(words) <= TEXT_MOST else words[:TEXT_MOST] + '…'}"


@dataclass(eq=False)
class Auxiliary:
    """Sums of the auxiliary values that the task's loss returns, over bins of `size` steps."""

    size: int = 1
    count: int = 0  # steps
    bins: list[dict[str, tuple[float, int]]] = field(default_factory=list)  # name -> sum, finite values

    def take(self, values: dict[str, float]) -> None:
        if self.count % self.size == 0:
            if len(self.bins) == AUX_BINS:
                self.bins = [_summed(pair) for pair in zip(self.bins[::2], self.bins[1::2], strict=True)]
                self.size *= 2
            self.bins.append({})
        self.count += 1
        sums = self.bins[-1]
        for name, value in values.items():
            if name in sums or len(sums) < AUX_NAMES:
                total, count = sums.get(name, (0.0, 0))
                sums[name] = (total + value, count + 1) if math.isfinite(value) else (total, count)

    def means(self) -> dict[str, tuple[float | None, ...]]:
        """By name: over the first tenth of the steps, over the last, and over all; to a bin."""
        tenth = -(-self.count // 10)
        bins = -(-tenth // self.size)
        parts = [_summed(self.bins[:bins]), _summed(self.bins[-bins:] if bins else []), _summed(self.bins)]
        return {name: tuple(_mean(*part.get(name, (0.0, 0))) for part in parts) for name in sorted(parts[-1])}


def _summed(bins: Any) -> dict[str, tuple[float, int]]:
    sums: dict[str, tuple[float, int]] = {}
    for each in bins:
        for name, (total, count) in each.items():
            before, known = sums.get(name, (0.0, 0))
            if name in sums or len(sums) < AUX_NAMES:
                sums[name] = before + total, known + count
    return sums


def _mean(total: float, count: int) -> float | None:
    return total / count if count else None
