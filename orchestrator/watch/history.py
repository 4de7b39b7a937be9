"""What a run's log tells, in bounded memory: read on as it grows, and made into figures by the report's own queries.

Of the whole run there are curves, which become coarser, and the facts by which learners' lanes are drawn; of the newest
rows everything, from which faults' stories are told. A story, once told, is kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from orchestrator.analysis.checks import prepare
from orchestrator.analysis.database import Used, connect, filled
from orchestrator.eventlog.events import kind_of
from orchestrator.eventlog.tables import LogPart, seconds
from orchestrator.report.data import lanes
from orchestrator.report.tables import PHASES, short
from orchestrator.store.status_text import number
from orchestrator.store.status_text import seconds as duration
from orchestrator.telemetry.tracking import HELD_OUT, Curves, Point

POINTS_MAX = 400  # of a curve
WINDOW_ROWS = 65_536  # of the log, the newest: what stories are told from
FACTS_MAX, EDGES_MAX = 20_000, 4_000  # of the whole run: facts of LASTING; incarnations' first and last steps
ROUNDS_MAX, STORIES_MAX, LINES_MAX = 12, 100, 200  # the newest; lines of one part
TEXT_MAX = 240  # characters of a fact
LASTING = (
    "RunStarted", "SyncerStarted", "RunResumed", "PoolScaled", "LearnerRequested", "LearnerStarted", "PhaseEntered",
    "Resumed", "LearnerAttached", "LeaseExpired", "LeaseRenewed", "LearnerFenced", "LearnerLost", "SyncerLost",
    "FaultInjected", "FaultHealed", "Finished", "RunFinished",
)  # fmt: skip
ROUTINE = ("StepOpened", "StepPassed")
WORDS = {
    "kill": "was killed", "death": "died", "freeze": "was frozen", "slow": "was slowed", "straggle": "straggled",
    "link": "was cut off", "corrupt": "sent damaged values", "non_finite": "computed values that are not finite",
    "wrong_config": "came back with another recipe",
}  # fmt: skip
MILESTONES = ("noticed", "restart decided", "process up", "imported", "compiled", "joined", "contributing again")
assert len(MILESTONES) == len(PHASES)


class RunHistory:
    """One run's. Feed it the log's parts in order; `lanes` and `stories` compute, and the caller paces them."""

    def __init__(self) -> None:
        self.rows = 0
        self.changed = False  # since the last call of `lanes`
        self.points: list[list[float | None]] = []  # Unix seconds, syncer step, tokens, loss, participation
        self.held_out: list[tuple[float, int, float]] = []  # Unix seconds, syncer step, loss
        self.rounds: dict[int, dict[str, Any]] = {}  # by syncer step, the newest
        self.origin: float | None = None  # the beginning of the first step, in Unix seconds
        self.end: float | None = None  # the newest fact
        self._curves = Curves(1)
        self._window: deque[LogPart] = deque()
        self._facts: pa.Table | None = None  # of LASTING
        self._edges: pa.Table | None = None
        self._stories: dict[int, dict[str, Any]] = {}  # by position
        self._open, self._told = False, 0  # whether a story may go on; the rows when they were told
        self._used: Used = None

    def take(self, part: LogPart) -> list[dict[str, Any]]:
        """Read a part; return its newest facts as lines."""
        self.rows += part.rows
        for point in self._curves.take(part):
            self._point(point)
        for name in ("steps", "commits", "facts"):
            if (table := part.tables.get(name)) is not None and table.num_rows:
                self.end = max(self.end or 0.0, pc.max(table["time"]).cast(pa.int64()).as_py() / 1e6)
        self._rounds(part)
        self._keep(part)
        return list(_lines(part))

    @property
    def untold(self) -> bool:
        """Whether a story may have begun, or gone on, since they were told."""
        return self._open and self._told != self.rows

    # -------------------------------------------------------------- what is kept

    def _point(self, point: Point) -> None:
        values = point.values
        if HELD_OUT in values:
            self.held_out.append((point.at, point.step, values[HELD_OUT]))
            if len(self.held_out) > POINTS_MAX:
                del self.held_out[1:-1:2]
            return
        told = [values.get(name) for name in ("tokens/committed", "loss/train", "participation")]
        self.points.append([point.at, point.step, *told])
        if len(self.points) > POINTS_MAX:
            pairs = zip(self.points[::2], self.points[1::2], strict=False)
            self.points = [[*late[:3], *map(_mean, early[3:], late[3:])] for early, late in pairs]
            self._curves.every *= 2

    def _rounds(self, part: LogPart) -> None:
        if (commits := part.tables.get("commits")) is None:
            return
        newest = commits.sort_by("position").slice(max(0, commits.num_rows - ROUNDS_MAX))
        names = ("position", "time", "syncer_step", "fragment", "live", "quorum_s", "grace_s", "sync_s", "reason")
        one = LogPart(part.start, part.rows, {"commits": newest})
        found = {row[0]: dict(zip(names, row, strict=True), learners=[]) for row in one.in_order("commits", *names)}
        if (parts := part.tables.get("contributions")) is not None:
            of = LogPart(part.start, part.rows, {"contributions": parts.filter(
                pc.is_in(parts["position"], newest["position"].combine_chunks()))})  # fmt: skip
            for position, learner, steps, weight in of.in_order(
                "contributions", "position", "learner", "steps", "weight"
            ):
                found[position]["learners"].append([learner, steps, weight])
        self.rounds |= {row["syncer_step"]: row for row in found.values()}
        for old in sorted(self.rounds)[:-ROUNDS_MAX]:
            del self.rounds[old]

    def _keep(self, part: LogPart) -> None:
        self._window.append(part)
        while sum(each.rows for each in self._window) - self._window[0].rows >= WINDOW_ROWS:
            self._window.popleft()
        if (facts := part.only((), LASTING).tables.get("facts")) is not None and facts.num_rows:
            self.changed = self._open = True
            kept = facts if self._facts is None else pa.concat_tables([self._facts, facts])
            self._facts = kept.slice(max(0, kept.num_rows - FACTS_MAX)).combine_chunks()
        if (steps := part.tables.get("steps")) is not None and steps.num_rows:
            if self.origin is None:
                begun = seconds(steps["time"]) - steps["seconds"].to_numpy() - steps["waited_s"].to_numpy()
                self.origin = float(begun.min())
            self._edges = _edges(steps if self._edges is None else pa.concat_tables([self._edges, _edges(steps)]))

    # -------------------------------------------------------------- what is computed

    def _filled(self, parts: Iterable[LogPart], *families: str) -> duckdb.DuckDBPyConnection:
        self._used = self._used or connect()
        database = filled(parts, self._used)
        database.execute("PRAGMA disable_optimizer; SET asof_loop_join_threshold = 64")
        prepare(database, *families)
        return database

    def lanes(self) -> dict[str, Any]:
        """What every learner was doing, by the report's queries; times are seconds after the first step."""
        self.changed = False
        tables = {"facts": self._facts, "steps": self._edges}
        part = LogPart(0, self.rows, {name: table for name, table in tables.items() if table is not None})
        database = self._filled([part], "base", "roster", "lanes")

        def rows(query: str) -> list[tuple[Any, ...]]:
            return database.execute(query).fetchall()

        origin = self.origin if self.origin is not None else self.end or 0.0
        drawn = [asdict(lane) | {"open": not lane.reason} for lane in lanes(rows, self.end or origin, origin)]
        struck = [[target, at - origin, kind] for target, at, kind, _ in rows("FROM struck_at")]
        return {"origin": origin, "lanes": _rounded(drawn), "struck": _rounded(struck)}

    def stories(self) -> list[dict[str, Any]]:
        """The newest faults, each in words, the newest first."""
        start = self._window[0].start if self._window else 0
        older = [] if self._facts is None else [LogPart(0, start, {"facts": self._facts.filter(
            pc.less(self._facts["position"], start))})]  # fmt: skip
        database = self._filled([*older, *self._window], "base", "books", "roster", "faults")
        found = database.execute(f"FROM fault_rows WHERE position >= {start} ORDER BY position")
        names = [name for name, *_ in found.description or ()]
        origin = self.origin or 0.0
        rows = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
        self._stories |= {row["position"]: story(row, (row["t"] or origin) - origin) for row in rows}
        for old in sorted(self._stories)[:-STORIES_MAX]:
            del self._stories[old]
        self._open, self._told = any(row["recovery_s"] is None for row in rows), self.rows
        return [self._stories[position] for position in sorted(self._stories, reverse=True)]


def story(row: Mapping[str, Any], at_s: float) -> dict[str, Any]:
    """A fault in words. `row`: as in `fault_rows`, or in the summary's faults with their phases."""
    what = row["kind"] if row["injected"] else "death"
    begun = f"{row['target']} {WORDS.get(what, what)} at {duration(at_s)}"
    cause = "injected" if row["injected"] else "by no fault that was injected"
    over = "not recovered" if row["recovery_s"] is None else f"recovered after {short(row['recovery_s'])}"
    known = [f"{words} {short(row[phase])}" for phase, words in zip(PHASES, MILESTONES, strict=True) if row[phase]]
    phases = f" ({', '.join(known)})" if known else ""
    lost = f"; {number(row['tokens_lost'])} tokens lost" if row["tokens_lost"] else ""
    return {name: row[name] for name in ("target", "kind", "recovery_s")} | {
        "at_s": at_s,
        "words": f"{begun}, {cause}: {over}{phases}{lost}.",
    }


def _mean(early: float | None, late: float | None) -> float | None:
    known = [each for each in (early, late) if each is not None]
    return sum(known) / len(known) if known else None


def _edges(steps: pa.Table) -> pa.Table:
    """The first and the last step of each incarnation."""
    ends = steps.group_by(["learner", "incarnation"], use_threads=False).aggregate(
        [("position", "min"), ("position", "max")]
    )
    wanted = pa.chunked_array([*ends["position_min"].chunks, *ends["position_max"].chunks])
    kept = steps.filter(pc.is_in(steps["position"], wanted.combine_chunks())).sort_by("position")
    return kept.slice(max(0, kept.num_rows - EDGES_MAX)).combine_chunks()


def _lines(part: LogPart) -> Iterator[dict[str, Any]]:
    """The newest facts, without what comes with every step and round, of which there is too much to read."""
    if (facts := part.tables.get("facts")) is None:
        return
    facts = facts.filter(pc.invert(pc.is_in(facts["kind"], pa.array(ROUTINE)))).sort_by("position")
    if (left := facts.num_rows - LINES_MAX) > 0:
        yield {"at": None, "writer": "", "kind": "", "text": f"{left:,} facts before these are not shown"}
    for event in LogPart(part.start, part.rows, {"facts": facts.slice(max(0, left))}).events():
        fields = event.fields.items()
        text = ", ".join(f"{name} {_value(value)}" for name, value in fields if value not in (None, "", [], {}))
        short = text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"
        yield {"at": event.at, "writer": event.writer, "kind": kind_of(event.fact), "text": short}


def _value(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " ".join(map(_value, value[:16]))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _rounded(value: Any) -> Any:
    """Times to the hundredth of a second."""
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(each) for each in value]
    return round(value, 2) if isinstance(value, float) else value
