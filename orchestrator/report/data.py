"""A run's log as the series that its report draws and tabulates, made of what the report's fold kept of it.

Times are seconds after the origin: the beginning of the first learner step, or of the log where no learner stepped.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from learners.protocol.facts import LoopFailed
from orchestrator.accounting.roster import Incarnation
from orchestrator.accounting.sketch import Sketch
from orchestrator.accounting.time.explanations import expired, suspended
from orchestrator.accounting.verdicts import Verdict
from orchestrator.eventlog.facts import FaultSkipped
from orchestrator.report.fold import ReportFold
from orchestrator.report.series import Bin
from outer.protocol.facts import SyncerStarted


@dataclass(frozen=True)
class PlotPoint:
    """One value, with its place on both axes."""

    at_s: float
    tokens: int  # committed by then
    value: float


@dataclass(frozen=True)
class LossBin:
    """Losses of neighbouring steps, in the task's unit."""

    at_s: float
    tokens: float
    middle: float
    low: float  # 10 % of the steps are below
    high: float  # 90 %


@dataclass(frozen=True)
class FaultMark:
    """A fault, or a death that no fault explains, as the figures show it."""

    number: int  # its line in the table of faults, from 1
    kind: str
    target: str
    at_s: float
    tokens: int
    until_s: float | None  # when it was recovered from, or healed


@dataclass(frozen=True)
class Data:
    """Everything that the report's figures and tables show."""

    summary: Mapping[str, Any]
    verdicts: Sequence[Verdict]
    rules: SyncerStarted | None  # of the newest epoch
    end_s: float  # the last event
    stepped: bool  # whether there was a learner step
    training: list[LossBin]
    not_finite: int  # steps whose loss was no number; left out of `training`
    auxiliaries: dict[str, tuple[float, float, float]]  # means over the first steps, the last, and all
    held_out: list[PlotPoint]
    marks: list[FaultMark]
    lanes: list[Lane]
    lanes_left_out: int  # older incarnations
    seconds: Mapping[str, Mapping[str, float]]  # learner -> category of goodput -> seconds
    waits: Sequence[Sketch]  # quorum_s, grace_s, sync_s of all commits
    learners: tuple[str, ...]
    steps: int  # of all learners
    peer_bytes: int  # of states that learners received from each other
    failed: int  # learners' loops
    failures: Sequence[tuple[str, int, LoopFailed]]  # learner, incarnation; the newest
    skips: int  # faults that found no target
    skipped: Sequence[FaultSkipped]  # the newest
    versions: Mapping[str, str]


def collect(fold: ReportFold, summary: Mapping[str, Any], verdicts: Sequence[Verdict]) -> Data:
    """The series of a log. `summary` and `verdicts` are those of the same log."""
    goodput = fold.accounts.results().goodput
    roster = fold.accounts.roster
    incarnations = [*roster.remains, *roster.table.values()]
    stepped = math.isfinite(fold.stepped_at)
    origin = fold.stepped_at if stepped else fold.first_at if math.isfinite(fold.first_at) else 0.0
    end = fold.last_at if math.isfinite(fold.last_at) else origin
    clock, learners = _Clock(fold, origin), fold.learners
    return Data(
        summary,
        verdicts,
        roster.rules,
        end - origin,
        stepped,
        _training(fold, clock),
        fold.not_finite,
        {name: _means(series.bins()) for name, series in sorted(fold.auxiliary.items())},
        _held_out(fold, clock),
        _marks(fold, clock, summary),
        lanes(incarnations, learners, end, origin),
        roster.dropped - len(roster.remains),
        goodput.seconds if goodput else {},
        fold.waits,
        learners,
        fold.steps,
        fold.peer_bytes,
        fold.failed,
        fold.failures,
        fold.skips,
        fold.skipped,
        fold.versions,
    )


def all_reduced(elements: int, places: int) -> float:
    """Bytes that each of so many places sends, and receives, to average one float32 gradient by a ring."""
    return 4 * 2 * (places - 1) / places * elements if places else 0.0


class _Clock:
    """Times after the origin and the tokens committed by then, interpolated between commits."""

    def __init__(self, fold: ReportFold, origin: float) -> None:
        self.origin = origin
        rows: list[tuple[float, int, int]] = [(row[0], int(row[1]), int(row[2])) for row in fold.curve.all().tolist()]
        self._steps = [step for _, step, _ in rows]
        self._by_step = [(at, tokens) for at, _, tokens in rows]
        self._commits = [(origin, 0), *sorted(self._by_step)]

    def tokens(self, at: float) -> int:
        index = bisect_right(self._commits, at, key=lambda commit: commit[0])
        if index in (0, len(self._commits)):
            return self._commits[index - 1][1] if index else 0
        (before, tokens), (after, more) = self._commits[index - 1 : index + 1]
        return round(tokens + (more - tokens) * (at - before) / (after - before))

    def at_step(self, syncer_step: int) -> tuple[float, int]:
        """When the parameters of this syncer step were committed, and the tokens committed then."""
        index = bisect_right(self._steps, syncer_step)
        at, tokens = self._by_step[index - 1] if index else (self.origin, 0)
        return at - self.origin, tokens


def _training(fold: ReportFold, clock: _Clock) -> list[LossBin]:
    return [
        LossBin(bin.x - clock.origin, clock.tokens(bin.x), *(bin.values.middle(share) for share in (0.5, 0.1, 0.9)))
        for bin in fold.training.bins()
    ]


def _held_out(fold: ReportFold, clock: _Clock) -> list[PlotPoint]:
    points = {int(step): loss for step, loss in fold.held_out.all().tolist()}
    return [PlotPoint(*clock.at_step(step), points[step]) for step in sorted(points)]


def _marks(fold: ReportFold, clock: _Clock, summary: Mapping[str, Any]) -> list[FaultMark]:
    """The summary's faults in its order, then injected ones that it does not list."""
    healed = {fault: at - clock.origin for fault, at in fold.healed}
    injected = {(fact.target, at - clock.origin): fact for at, fact in fold.injected}
    marks = []
    for number, row in enumerate(summary["faults"], start=1):
        if row["at_s"] is None:
            continue
        fact = injected.pop((row["target"], row["at_s"]), None)
        until = None if row["recovery_s"] is None else row["at_s"] + row["recovery_s"]
        kind = fact.fault_kind if fact else str(row["kind"])
        tokens = clock.tokens(row["at_s"] + clock.origin)
        marks.append(FaultMark(number, kind, row["target"], row["at_s"], tokens, until))
    for number, ((target, at), fact) in enumerate(injected.items(), start=len(summary["faults"]) + 1):
        tokens = clock.tokens(at + clock.origin)
        marks.append(FaultMark(number, fact.fault_kind, target, at, tokens, healed.get(fact.fault)))
    return marks


def _means(bins: Sequence[Bin]) -> tuple[float, float, float]:
    """Over the first bin, the last, and all."""
    columns = [bin.values for bin in bins]
    count = sum(column.count for column in columns)
    whole = sum(column.sum for column in columns) / count if count else math.nan
    return columns[0].mean, columns[-1].mean, whole


# ------------------------------------------------------------------ incarnation phases

# What each incarnation of each learner was doing, from when to when. The report draws it as lanes.


Span = tuple[float, float]  # seconds after the origin
PHASES = {"starting": "importing", "importing": "importing", "compiling": "compiling", "joining": "joining"}
UNDRAWN = ("stopped",)


@dataclass(frozen=True)
class Lane:
    """One incarnation. Spans are in seconds after the origin."""

    learner: str
    incarnation: int
    requested: float | None
    phases: tuple[tuple[float, float, str], ...]  # start, stop, phase: placing, importing, compiling, ...
    frozen: tuple[Span, ...]
    expired: tuple[Span, ...]  # without a lease
    dead: Span | None  # from its death to the next incarnation's request, or to the end
    reason: str  # why it was fenced or lost; empty while it lives
    steps: int
    tokens: int

    @property
    def begun(self) -> float | None:
        """When its first step began."""
        return next((start for start, _, phase in self.phases if phase == "stepping"), None)


def lanes(incarnations: Iterable[Incarnation], learners: Sequence[str], end: float, origin: float) -> list[Lane]:
    """The incarnations: of the learners that were wanted first, each one's oldest first. `end`: of the log."""
    by_learner: dict[str, list[Incarnation]] = {name: [] for name in learners}
    for incarnation in sorted(incarnations, key=lambda each: each.key):
        by_learner.setdefault(incarnation.learner, []).append(incarnation)
    out = []
    for each in by_learner.values():
        for incarnation, successor in zip(each, [*each[1:], None], strict=True):
            heir = successor.requested if successor is not None else None
            out.append(_lane(incarnation, end if heir is None else heir, end, origin))
    return out


def _lane(incarnation: Incarnation, heir: float, end: float, origin: float) -> Lane:
    died = incarnation.died if incarnation.over == "killed" else None
    stop = (
        died
        if died is not None
        else incarnation.noticed
        if incarnation.over in ("stopped", "drained") and incarnation.noticed
        else end
    )
    marks = [(incarnation.requested, "placing")] if incarnation.requested is not None else []
    marks += [(at, PHASES.get(phase, phase)) for at, phase in incarnation.phases]
    if not any(phase == "stepping" for _, phase in marks) and incarnation.begun is not None:
        marks.append((incarnation.begun, "stepping"))
    drawn = [
        (begin, min(until, stop), phase)
        for (begin, phase), (until, _) in pairwise([*marks, (stop, "")])
        if phase not in UNDRAWN and begin < min(until, stop)
    ]

    def spans(intervals: Iterable[tuple[float, float]]) -> tuple[Span, ...]:
        return tuple((start - origin, until - origin) for start, until in intervals if start < until)

    return Lane(
        incarnation.learner,
        incarnation.number,
        None if incarnation.requested is None else incarnation.requested - origin,
        tuple((start - origin, until - origin, phase) for start, until, phase in drawn),
        spans(suspended(incarnation)),
        spans(expired(incarnation, end)),
        (died - origin, max(died, heir) - origin) if died is not None else None,
        incarnation.reason,
        incarnation.steps,
        incarnation.tokens,
    )
