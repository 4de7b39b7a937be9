"""The report's view of a run's log, as a fold: series, counts and rare events, in memory that does not grow."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace

import numpy as np

from learners.protocol.facts import LoopFailed, StateReceived
from orchestrator.accounting.accounts import Accounts
from orchestrator.accounting.sketch import Sketch
from orchestrator.eventlog.block import Block, Commits
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import (
    Evaluated,
    FaultHealed,
    FaultInjected,
    FaultSkipped,
    PoolScaled,
    RunStarted,
)
from orchestrator.report.series import Series, Thinned

LOSS_BINS, LOSS_STEPS = 240, 8  # at most so many bins, of at least about so many steps
POINTS = 512  # held-out losses
WAITS_KEPT = 4_096  # as exact numbers
FAULTS_KEPT = 1_024
FAILURES_KEPT = 5
TRACEBACK_MOST = 6_000  # characters, the end
SKIPPED_KEPT = 240
AUX_BINS, AUX_NAMES = 10, 64


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
    waits: list[Sketch] = field(default_factory=lambda: [Sketch(WAITS_KEPT) for _ in range(3)])
    steps: int = 0
    peer_bytes: int = 0  # of states received from another learner
    injected: deque[tuple[float, FaultInjected]] = field(default_factory=lambda: deque(maxlen=FAULTS_KEPT))
    healed: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=FAULTS_KEPT))  # fault, at
    failed: int = 0
    failures: deque[tuple[str, int, LoopFailed]] = field(default_factory=lambda: deque(maxlen=FAILURES_KEPT))
    skips: int = 0
    skipped: deque[FaultSkipped] = field(default_factory=lambda: deque(maxlen=SKIPPED_KEPT))

    @property
    def learners(self) -> tuple[str, ...]:
        """Every learner that was ever wanted, in order of appearance."""
        return tuple(dict.fromkeys([*self.accounts.roster.configured, *self.added]))

    def take(self, block: Block) -> None:
        self._times(block)
        self._steps(block)
        self._commits(self.accounts.records.commits)
        for _, event in block.others:
            self._rare(event)

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
        self.steps += len(finite)
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
        for sketch, column in zip(self.waits, waits, strict=True):
            sketch.add(column)

    def _rare(self, event: Event) -> None:
        fact = event.fact
        match fact:
            case RunStarted():
                self.versions = dict(fact.versions)
            case Evaluated() if math.isfinite(fact.loss):
                self.held_out.take([fact.syncer_step], [fact.loss])
            case PoolScaled():
                self.added.update(dict.fromkeys(fact.added))
            case StateReceived(source="peer"):
                self.peer_bytes += fact.bytes
            case FaultInjected():
                self.injected.append((event.at, fact))
            case FaultHealed():
                self.healed.append((fact.fault, event.at))
            case FaultSkipped():
                self.skips += 1
                self.skipped.append(fact)
            case LoopFailed():
                self.failed += 1
                kept = replace(fact, traceback=fact.traceback[-TRACEBACK_MOST:])
                self.failures.append((event.writer, event.incarnation, kept))
