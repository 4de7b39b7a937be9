"""A run's log as the series that its report draws and tabulates: read from the tables of orchestrator/analysis.

Times are seconds after the origin: the beginning of the first learner step, or of the log where no learner stepped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import duckdb
import numpy as np

from orchestrator.analysis.checks import prepare
from orchestrator.analysis.verdicts import Verdict

TRACEBACK_MOST = 6_000  # characters, the end
FAILURES_MOST, SKIPPED_MOST = 5, 240  # the newest
PHASES = {"starting": "importing", "importing": "importing"}  # as they are drawn


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


Span = tuple[float, float]  # seconds after the origin


@dataclass(frozen=True)
class Lane:
    """What one incarnation was doing, from when to when. Spans are in seconds after the origin."""

    learner: str
    incarnation: int
    phases: tuple[tuple[float, float, str], ...]  # start, stop, phase: placing, importing, compiling, ...
    frozen: tuple[Span, ...]
    expired: tuple[Span, ...]  # without a lease
    dead: Span | None  # from its death to the next incarnation's request, or to the end
    reason: str  # why it was fenced or lost; empty while it lives


@dataclass(frozen=True)
class Data:
    """Everything that the report's figures and tables show."""

    summary: Mapping[str, Any]
    verdicts: Sequence[Verdict]
    sizes: tuple[int, ...] | None  # elements of each fragment; None: no syncer ever started
    configured: int  # learners that the newest epoch began with
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
    waits: list[tuple[float, ...]]  # quorum_s, grace_s, sync_s of all commits: median, 95 %, longest, mean
    learners: tuple[str, ...]
    steps: int  # of all learners
    peer_bytes: int  # of states that learners received from each other
    failed: int  # learners' loops
    failures: list[tuple[str, int, int, str]]  # learner, incarnation, step, traceback: the newest
    skips: int  # faults that found no target
    skipped: list[tuple[str, str, str]]  # kind, target, reason: the newest
    versions: Mapping[str, str]


def collect(database: duckdb.DuckDBPyConnection, summary: Mapping[str, Any], verdicts: Sequence[Verdict]) -> Data:
    """The series of the log in `database`. `summary` and `verdicts` are those of the same log, made before."""
    prepare(database, "lanes", "series")

    def rows(query: str) -> list[tuple[Any, ...]]:
        return database.execute(query).fetchall()

    def newest(columns: str, kind: str, most: int) -> tuple[int, list[tuple[Any, ...]]]:
        """How many facts of a kind there are, and the newest."""
        told = rows(f"SELECT count(*) OVER (), {columns} FROM {kind} ORDER BY position DESC LIMIT {most}")
        return (told[0][0] if told else 0), [row[1:] for row in reversed(told)]

    ((first, end, stepped_at, steps, not_finite),) = rows("FROM extent")
    origin = next((at for at in (stepped_at, first) if at is not None), 0.0)
    end = origin if end is None else end
    curve = sorted([(origin, 0), *rows("FROM curve")])
    when, committed = zip(*curve, strict=True)

    def tokens(at: float) -> int:
        """Committed by then, interpolated between commits."""
        return round(float(np.interp(at, when, committed)))

    _, started = newest("sizes, len(learners)", "SyncerStarted", 1)
    failed, failures = newest(
        f"told_in, told_by, step, right(traceback, {TRACEBACK_MOST})", "LoopFailed", FAILURES_MOST
    )
    skips, skipped = newest("fault_kind, target, reason", "FaultSkipped", SKIPPED_MOST)
    _, versions = newest("versions", "RunStarted", 1)
    seconds: dict[str, dict[str, float]] = {}
    for learner, category, spent in rows("FROM spent"):
        seconds.setdefault(learner, {})[category] = spent
    return Data(
        summary,
        verdicts,
        tuple(started[0][0]) if started else None,
        started[0][1] if started else 0,
        end - origin,
        stepped_at is not None,
        [LossBin(at - origin, tokens(at), *shares) for at, shares in rows("FROM training")],
        not_finite,
        {name: (begin, last, whole) for name, begin, last, whole in rows("FROM auxiliaries")},
        [
            PlotPoint((origin if at is None else at) - origin, told, loss)
            for at, told, loss in rows("SELECT * EXCLUDE (step) FROM held_out ORDER BY step")
        ],
        _marks(rows, summary, origin, tokens),
        lanes(rows, end, origin),
        rows("SELECT count(*) - (SELECT count(*) FROM drawn) FROM roster")[0][0],
        seconds,
        [tuple(shares) for (shares,) in rows("FROM waits")],
        tuple(name for (name,) in rows("FROM learners")),
        steps,
        rows("SELECT coalesce(sum(bytes), 0)::BIGINT FROM StateReceived WHERE source = 'peer'")[0][0],
        failed,
        failures,
        skips,
        skipped,
        json.loads(versions[0][0]) if versions else {},
    )


def all_reduced(elements: int, places: int) -> float:
    """Bytes that each of so many places sends, and receives, to average one float32 gradient by a ring."""
    return 4 * 2 * (places - 1) / places * elements if places else 0.0


def _marks(rows: Any, summary: Mapping[str, Any], origin: float, tokens: Callable[[float], int]) -> list[FaultMark]:
    """The summary's faults in its order, then injected ones that it does not list."""
    injected = {(target, at - origin): (kind, healed) for target, at, kind, healed in rows("FROM struck_at")}
    marks = []
    for number, row in enumerate(summary["faults"], start=1):
        if row["at_s"] is None:
            continue
        kind, _ = injected.pop((row["target"], row["at_s"]), (str(row["kind"]), None))
        until = None if row["recovery_s"] is None else row["at_s"] + row["recovery_s"]
        marks.append(FaultMark(number, kind, row["target"], row["at_s"], tokens(row["at_s"] + origin), until))
    for number, ((target, at), (kind, healed)) in enumerate(injected.items(), start=len(summary["faults"]) + 1):
        until = None if healed is None else healed - origin
        marks.append(FaultMark(number, kind, target, at, tokens(at + origin), until))
    return marks


def lanes(rows: Any, end: float, origin: float) -> list[Lane]:
    """The newest incarnations: of the learners that were wanted first, each one's oldest first. `end`: of the log."""
    spans: dict[str, dict[int, list[Any]]] = {}
    for table in ("phases", "frozen", "expired"):
        of = spans[table] = {}
        columns = "phase" if table == "phases" else "until"
        for who, at, other in rows(f"SELECT who, t, {columns} FROM {table} ORDER BY position"):
            of.setdefault(who, []).append((at, other))
    found = []
    for who, learner, number, requested, begun, over, died, noticed, again, reason in rows("FROM drawn"):
        stop = died if died is not None else noticed if over in ("stopped", "drained") and noticed else end
        marks = [(requested, "placing")] if requested is not None else []
        marks += [(at, PHASES.get(phase, phase)) for at, phase in spans["phases"].get(who, ())]
        if begun is not None and not any(phase == "stepping" for _, phase in marks):
            marks.append((begun, "stepping"))
        drawn = [
            (at - origin, min(until, stop) - origin, phase)
            for (at, phase), (until, _) in pairwise([*marks, (stop, "")])
            if phase != "stopped" and at < min(until, stop)
        ]
        ended = end if (at := died if over == "killed" else noticed if over else None) is None else at
        found.append(
            Lane(
                learner,
                number,
                tuple(drawn),
                tuple((at - origin, until - origin) for at, until in spans["frozen"].get(who, ()) if at < until),
                tuple(
                    (at - origin, (max(at, ended) if until is None else until) - origin)
                    for at, until in spans["expired"].get(who, ())
                    if at < (max(at, ended) if until is None else until)
                ),
                None if died is None else (died - origin, max(died, end if again is None else again) - origin),
                reason,
            )
        )
    return found
