"""The report's view of a run's log, as a fold: series, counts and rare events, in memory that does not grow."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from learners.protocol.facts import AdoptionRefused, LoopFailed, StateReceived
from orchestrator.accounting.accounts import Accounts
from orchestrator.accounting.sketch import Sketch
from orchestrator.accounting.summary import downloaded
from orchestrator.eventlog.block import Block, Commits, ContributionRows, Ints
from orchestrator.eventlog.events import Event, Unknown, kind_of
from orchestrator.eventlog.facts import (
    Evaluated,
    FaultHealed,
    FaultInjected,
    FaultSkipped,
    PoolScaled,
    RunStarted,
)
from orchestrator.report.series import BoundedTally, Ends, Series, Thinned
from outer.numeric import formats
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
AUX_BINS, AUX_NAMES = 10, 64
OVERWRITING = ("bootstrap", "overwrite")
COMMON = frozenset(
    {
        "StepFinished", "Adopted", "Committed", "StepOpened", "StepReopened", "StepPassed", "SpanGranted",
        "SpanReturned", "SyncerStarted", "Refused", "ReadFailed", "AdoptionRefused",
    }
)  # fmt: skip


@dataclass(eq=False)
class ReportFold:
    """Needs the accounts to take each block first. orchestrator/report/data.py makes the data of it."""

    accounts: Accounts
    first_at: float = math.inf  # Unix seconds: of any event, the last event, and the beginning of the first step
    last_at: float = -math.inf
    stepped_at: float = math.inf
    added: dict[str, None] = field(default_factory=dict)  # learners of pools that were scaled up
    versions: dict[str, str] = field(default_factory=dict)
    curve: Thinned = field(default_factory=Thinned)  # when committed, Unix seconds; syncer step; tokens by then
    training: Series = field(default_factory=lambda: Series(LOSS_BINS, LOSS_STEPS))
    not_finite: int = 0
    auxiliary: dict[str, Series] = field(default_factory=dict)  # values beside the loss that the task's loss returns
    held_out: Thinned = field(default_factory=lambda: Thinned(POINTS))  # syncer step, loss
    merges: Series = field(default_factory=lambda: Series(MERGE_BINS))
    waits: list[Sketch] = field(default_factory=lambda: [Sketch(WAITS_KEPT) for _ in range(3)])
    verdict_reasons: BoundedTally = field(default_factory=BoundedTally)
    rounds: RoundsFold = field(default_factory=lambda: RoundsFold())
    traffic: TrafficFold = field(default_factory=lambda: TrafficFold())
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
        self._steps(block)
        self._commits(commits)
        self.traffic.take(block, commits, contributions)
        self.rounds.take(block, commits, contributions)
        self._adopted(block)
        for _, event in block.others:
            self._rare(event)

    def _prepare(self, event: Event) -> None:
        """Take the facts by which the block's columns are read."""
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

    def _steps(self, block: Block) -> None:
        steps, finite = block.steps, np.isfinite(block.steps.loss)
        self.not_finite += int(np.count_nonzero(~finite))
        self.training.take(steps.at[finite], steps.loss[finite])
        found: dict[str, list[tuple[float, float]]] = {}
        for at, values in zip(steps.at.tolist(), steps.aux.tolist(), strict=True):
            for name, value in (values or {}).items():
                found.setdefault(name, []).append((at, value))
        for name, rows in found.items():
            if name in self.auxiliary or len(self.auxiliary) < AUX_NAMES:
                self.auxiliary.setdefault(name, Series(AUX_BINS)).take(*zip(*rows, strict=True))

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


# ------------------------------------------------------------------ learner traffic

# Bytes between the syncer and each learner, against those of data-parallel training of the same steps.
# Computed from the log's sizes of fragments, merged contributions, adoptions and received states. Payloads only, each
# byte once. Headers, refused contributions, and what came after the last adoption are not in the log.


GRADIENT_BYTES = 4  # of one float32


@dataclass(frozen=True)
class LinkTraffic:
    """One learner's traffic over the whole run, all incarnations, in bytes."""

    learner: str
    up: int | None  # contributions that merged; None: the recipe does not name a known codec
    down: int  # versions adopted while stepping
    joins: int  # versions adopted to begin with
    peers: int  # states received from another learner
    steps: int
    data_parallel: float  # a ring all-reduce of every step's float32 gradient among all configured learners

    @property
    def total(self) -> int | None:
        return None if self.up is None else self.up + self.down + self.joins + self.peers


@dataclass
class TrafficTotals:
    """What passed one learner's link, in bytes but for `up`, and the steps that it made."""

    up: int = 0  # elements
    otherwise: int = 0  # of contributions in a number format other than the run's
    down: int = 0
    joins: int = 0
    peers: int = 0
    steps: int = 0


@dataclass(eq=False)
class TrafficFold:
    """A fold of every learner's traffic."""

    sizes: tuple[int, ...] = ()  # elements of each fragment
    learners: dict[str, TrafficTotals] = field(default_factory=dict)

    def start(self, rules: SyncerStarted) -> None:
        self.sizes = rules.sizes

    def take(self, block: Block, commits: Commits, contributions: ContributionRows) -> None:
        """`commits` and `contributions`: those of the block that no earlier epoch made."""
        if self.sizes:
            sizes = np.array([*self.sizes, 0], np.int64)
            adopted, joining = block.adoptions, block.adoptions.mode == block.code("bootstrap")

            def known(fragments: Any) -> Any:
                return np.minimum(fragments, len(self.sizes))  # a strange log may name others: they count nothing

            elements, own = sizes[known(commits.fragment)[contributions.commit]], contributions.codec != ""
            self._add(block, "up", contributions.learner[~own], elements[~own])
            if own.any():
                forms = [formats.known(codec) for codec in contributions.codec[own].tolist()]
                sent = [form.bytes(n) if form else 0 for form, n in zip(forms, elements[own].tolist(), strict=True)]
                self._add(block, "otherwise", contributions.learner[own], np.array(sent, np.int64))
            came = downloaded(adopted, sizes[known(adopted.fragment)])
            self._add(block, "joins", adopted.source[joining], came[joining])
            self._add(block, "down", adopted.source[~joining], came[~joining])
        self._add(block, "steps", block.steps.source, np.ones(len(block.steps.source), np.int64))
        for _, event in block.others:
            if isinstance(event.fact, StateReceived) and event.fact.source == "peer":
                self._of(event.writer).peers += event.fact.bytes

    def _add(self, block: Block, name: str, sources: Any, amounts: Any) -> None:
        totals = np.zeros(len(block.sources), np.int64)
        np.add.at(totals, sources, amounts)
        for source in np.flatnonzero(totals).tolist():
            sent = self._of(block.sources[source][0])
            setattr(sent, name, getattr(sent, name) + int(totals[source]))

    def _of(self, learner: str) -> TrafficTotals:
        return self.learners.setdefault(learner, TrafficTotals())

    def links(self, names: tuple[str, ...], configured: int, recipe: Mapping[str, Any]) -> list[LinkTraffic]:
        """One link for each of these learners; `configured`: how many a data-parallel run would have."""
        form = formats.known((recipe.get("sync") or {}).get("codec"))
        a_step = 2 * (configured - 1) / configured * sum(self.sizes) * GRADIENT_BYTES if configured else 0.0
        made = []
        for name in names:
            sent = self.learners.get(name, TrafficTotals())
            up = None if form is None else round(sent.up * form.bits / 8) + sent.otherwise
            made.append(LinkTraffic(name, up, sent.down, sent.joins, sent.peers, sent.steps, sent.steps * a_step))
        return made


# ------------------------------------------------------------------ participation

# Who took part in which rounds.


COLUMNS = 180  # of rounds; an even number


@dataclass(frozen=True)
class Rounds:
    """How many of the commits of neighbouring rounds each learner took part in, column by column."""

    count: int  # rounds
    per: int  # rounds in a column
    commits: tuple[int, ...]
    by_learner: dict[str, tuple[int, ...]]


@dataclass(eq=False)
class RoundsFold:
    """Round n is the syncer steps (n - 1) H + 1 to n H. Of a long run, neighbouring rounds share a column."""

    round_steps: int = 0  # H
    per: int = 1
    count: int = 0
    commits: Ints = field(default_factory=lambda: np.zeros(COLUMNS, np.int64))
    taken: dict[str, Ints] = field(default_factory=dict)

    def take(self, block: Block, commits: Commits, contributions: ContributionRows) -> None:
        if not self.round_steps or not len(commits.syncer_step):
            return
        rounds = (commits.syncer_step - 1) // self.round_steps
        self.count = max(self.count, int(rounds.max()) + 1)
        while self.count > COLUMNS * self.per:
            self.per *= 2
            self.commits = _paired(self.commits)
            self.taken = {name: _paired(row) for name, row in self.taken.items()}
        columns = rounds // self.per
        np.add.at(self.commits, columns, 1)
        weighed = contributions.weight > 0
        where, who = columns[contributions.commit[weighed]], contributions.learner[weighed]
        for source in np.unique(who).tolist():
            row = self.taken.setdefault(block.sources[source][0], np.zeros(COLUMNS, np.int64))
            np.add.at(row, where[who == source], 1)

    def rounds(self, learners: tuple[str, ...]) -> Rounds | None:
        """Of these learners and all others that took part; None without a commit."""
        if not self.count:
            return None
        columns, nobody = -(-self.count // self.per), np.zeros(COLUMNS, np.int64)
        names = dict.fromkeys([*learners, *self.taken])
        return Rounds(
            self.count,
            self.per,
            tuple(self.commits[:columns].tolist()),
            {name: tuple(self.taken.get(name, nobody)[:columns].tolist()) for name in names},
        )


def _paired(row: Ints) -> Ints:
    sums = np.zeros_like(row)
    sums[: len(row) // 2] = row[::2] + row[1::2]
    return sums
