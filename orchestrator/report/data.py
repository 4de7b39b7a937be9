"""A run's log as the series that its report draws and tabulates. A pure function of the log.

Times are seconds after the origin: the beginning of the first learner step, or of the log where no learner stepped.
"""

from __future__ import annotations

import math
import re
import statistics
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from learners.protocol.facts import Adopted, AdoptionRefused, LoopFailed, StepFinished
from orchestrator.accounting.goodput import account, first_step_at
from orchestrator.accounting.history import OVERWRITING, History
from orchestrator.accounting.verdicts import Verdict
from orchestrator.eventlog.facts import (
    REGISTRY,
    Evaluated,
    FaultHealed,
    FaultInjected,
    FaultSkipped,
    RunStarted,
)
from orchestrator.report.incarnation_phases import Lane, lanes
from orchestrator.report.learner_traffic import Link, links
from orchestrator.report.series import binned, chunks
from outer.protocol.facts import ReadFailed, Refused

LOSS_BINS, LOSS_STEPS = 240, 8  # at most so many bins, of at least about so many steps
MERGE_BINS = 160


@dataclass(frozen=True)
class Point:
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
class Mark:
    """A fault, or a death that no fault explains, as the figures show it."""

    number: int  # its line in the table of faults, from 1
    kind: str
    target: str
    incarnation: int | None
    at_s: float
    tokens: int
    until_s: float | None  # when it was recovered from, or healed


@dataclass(frozen=True)
class MergeBin:
    """Waits of neighbouring outer steps: medians and maxima, seconds."""

    at_s: float
    middle: tuple[float, float, float]  # quorum, grace, sync
    most: tuple[float, float, float]


@dataclass(frozen=True)
class Rounds:
    """How many of a round's commits each learner took part in."""

    commits: tuple[int, ...]
    by_learner: dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Data:
    """Everything that the report's figures and tables show."""

    summary: Mapping[str, Any]
    verdicts: Sequence[Verdict]
    history: History
    origin: float  # Unix seconds
    end_s: float  # the last event
    stepped: bool  # whether there was a learner step
    training: list[LossBin]
    not_finite: int  # steps whose loss was no number; left out of `training`
    held_out: list[Point]
    marks: list[Mark]
    lanes: list[Lane]
    rounds: Rounds | None
    seconds: dict[str, dict[str, float]]  # learner -> category of goodput -> seconds
    contribution_age: Counter[int]  # learner steps done since it was read, at the merge
    version_age: Counter[int]  # syncer steps committed since it was made, at the adoption
    waits: list[tuple[float, float, float]]  # quorum_s, grace_s, sync_s of every commit
    merges: list[MergeBin]
    verdict_reasons: Counter[str]
    sources: dict[tuple[str, int], str]  # where an incarnation got its first state from
    links: list[Link]
    refusals: Counter[tuple[str, str]]  # (message, reason)
    failures: list[tuple[str, int, int, str]]  # learner, incarnation, step, traceback
    skipped: list[FaultSkipped]
    versions: Mapping[str, str]
    kinds: Counter[str]


def collect(
    history: History, recipe: Mapping[str, Any], summary: Mapping[str, Any], verdicts: Sequence[Verdict]
) -> Data:
    """The series of a log. `summary` and `verdicts` are those of the same log."""
    started = first_step_at(history)
    origin = started if started is not None else min((event.at for event in history.events), default=0.0)
    clock = _Clock(history, origin)
    goodput = account(history)
    training, not_finite = _training(history, clock)
    versions = [said.fact.versions for said in history.of(RunStarted)]
    waits = [(said.fact.quorum_s, said.fact.grace_s, said.fact.sync_s) for said in history.commits]
    return Data(
        summary,
        verdicts,
        history,
        origin,
        max((event.at for event in history.events), default=origin) - origin,
        started is not None,
        training,
        not_finite,
        _held_out(history, clock),
        _marks(history, clock, summary),
        lanes(history, origin),
        _rounds(history),
        dict(goodput.seconds) if goodput else {},
        _contribution_age(history),
        _version_age(history),
        waits,
        _merges(history, origin),
        Counter(re.sub(r"\d+", "N", said.fact.reason) for said in history.commits),
        _sources(history),
        links(history, recipe),
        _refusals(history),
        [(said.writer, said.incarnation, said.fact.step, said.fact.traceback) for said in history.of(LoopFailed)],
        [said.fact for said in history.of(FaultSkipped)],
        versions[-1] if versions else {},
        Counter(type(event.fact).__name__ for event in history.events),
    )


class _Clock:
    """Times after the origin and the tokens committed by then, interpolated between commits."""

    def __init__(self, history: History, origin: float) -> None:
        self.origin = origin
        self._steps = [said.fact.syncer_step for said in history.commits]
        self._commits = [(origin, 0), *sorted((said.at, said.fact.tokens_committed) for said in history.commits)]
        self._by_step = [(said.at, said.fact.tokens_committed) for said in history.commits]

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


def _training(history: History, clock: _Clock) -> tuple[list[LossBin], int]:
    steps = sorted((said.at, said.fact.loss) for said in history.of(StepFinished))
    finite = [(at, loss) for at, loss in steps if math.isfinite(loss)]
    bins = [
        LossBin(bin.x - clock.origin, clock.tokens(bin.x), bin.middle, bin.low, bin.high)
        for bin in binned(finite, min(LOSS_BINS, -(-len(finite) // LOSS_STEPS)))
    ]
    return bins, len(steps) - len(finite)


def _held_out(history: History, clock: _Clock) -> list[Point]:
    points = {said.fact.syncer_step: said.fact.loss for said in history.of(Evaluated) if math.isfinite(said.fact.loss)}
    return [Point(*clock.at_step(step), points[step]) for step in sorted(points)]


def _marks(history: History, clock: _Clock, summary: Mapping[str, Any]) -> list[Mark]:
    """The summary's faults in its order, then injected ones that it does not list."""
    healed = {said.fact.fault: said.at - clock.origin for said in history.of(FaultHealed)}
    injected = {(said.fact.target, said.at - clock.origin): said.fact for said in history.of(FaultInjected)}
    marks = []
    for number, row in enumerate(summary["faults"], start=1):
        if row["at_s"] is None:
            continue
        fact = injected.pop((row["target"], row["at_s"]), None)
        until = None if row["recovery_s"] is None else row["at_s"] + row["recovery_s"]
        kind = fact.fault_kind if fact else str(row["kind"])
        incarnation = fact.incarnation if fact else _died(history, row["target"], row["at_s"] + clock.origin)
        marks.append(_mark(number, kind, row["target"], incarnation, row["at_s"], until, clock))
    for number, ((target, at), fact) in enumerate(injected.items(), start=len(summary["faults"]) + 1):
        marks.append(_mark(number, fact.fault_kind, target, fact.incarnation, at, healed.get(fact.fault), clock))
    return marks


def _mark(
    number: int, kind: str, target: str, incarnation: int | None, at: float, until: float | None, clock: _Clock
) -> Mark:
    return Mark(number, kind, target, incarnation, at, clock.tokens(at + clock.origin), until)


def _died(history: History, learner: str, at: float) -> int | None:
    incarnations = [
        incarnation
        for incarnation in history.incarnations_of(learner)
        if incarnation.died is not None and abs(incarnation.died - at) < 1e-6
    ]
    return incarnations[0].number if incarnations else None


def _rounds(history: History) -> Rounds | None:
    """Round n is the syncer steps (n - 1) H + 1 to n H."""
    if history.rules is None or not history.commits:
        return None
    length = history.rules.round_steps
    count = (max(said.fact.syncer_step for said in history.commits) - 1) // length + 1
    commits = [0] * count
    taken = {name: [0] * count for name in history.learners}
    for said in history.commits:
        number = (said.fact.syncer_step - 1) // length
        commits[number] += 1
        for one in said.fact.participants:
            if one.weight > 0:
                taken.setdefault(one.learner, [0] * count)[number] += 1
    return Rounds(tuple(commits), {name: tuple(row) for name, row in taken.items()})


def _contribution_age(history: History) -> Counter[int]:
    """Histogram of the steps that a learner had finished since the read, when its contribution merged."""
    finished = {key: [said.at for said in incarnation.steps] for key, incarnation in history.incarnations.items()}
    numbers = {key: [said.fact.step for said in incarnation.steps] for key, incarnation in history.incarnations.items()}
    ages: Counter[int] = Counter()
    for commit in history.commits:
        for one in commit.fact.participants:
            key = (one.learner, one.incarnation)
            done = bisect_right(finished.get(key, []), commit.at)
            if done:
                ages[max(0, numbers[key][done - 1] - one.step)] += 1
    return ages


def _version_age(history: History) -> Counter[int]:
    """Histogram of the commits after a version's own, when a stepping learner adopted it."""
    at = sorted(said.at for said in history.commits)
    order = {said.fact.syncer_step: index for index, said in enumerate(history.commits, start=1)}
    ages: Counter[int] = Counter()
    for said in history.of(Adopted):
        if said.fact.mode != "bootstrap" and said.fact.version in order:
            ages[max(0, bisect_right(at, said.at) - order[said.fact.version])] += 1
    return ages


def _merges(history: History, origin: float) -> list[MergeBin]:
    bins = []
    for chunk in chunks(history.commits, MERGE_BINS):
        columns = list(zip(*((s.fact.quorum_s, s.fact.grace_s, s.fact.sync_s) for s in chunk), strict=True))
        middle = tuple(statistics.median(column) for column in columns)
        most = tuple(max(column) for column in columns)
        bins.append(MergeBin(statistics.fmean(s.at for s in chunk) - origin, middle, most))
    return bins


def _sources(history: History) -> dict[tuple[str, int], str]:
    """`syncer` or `peer NAME`, for every incarnation that adopted a version."""
    first = {
        key: "syncer"
        for key, incarnation in history.incarnations.items()
        if any(a.fact.mode in OVERWRITING for a in incarnation.adoptions)
    }
    for said in history.of(REGISTRY.get("StateReceived", type(None))):
        first[said.writer, said.incarnation] = f"peer {said.fact.donor}" if said.fact.source == "peer" else "syncer"
    return first


def _refusals(history: History) -> Counter[tuple[str, str]]:
    found = Counter((said.fact.message, said.fact.reason) for said in history.of(Refused))
    found.update(("read", said.fact.reason) for said in history.of(ReadFailed))
    found.update(("adoption", said.fact.reason) for said in history.of(AdoptionRefused))
    return found
