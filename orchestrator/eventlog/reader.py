"""Reads a run's log in its canonical order, in parts, with bounded memory.

The order is the syncer's chain, so facts precede the commits that cover them. The orchestrator's and chaos's facts are
merged into it by wall time: before the first of the syncer's own facts that is later, where of the times up to a fact
the latest counts.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from orchestrator.eventlog.compactor import (
    FORMAT,
    Segment,
    add_group,
    part_of,
    segment_in,
    segment_key,
    segments_folder,
)
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import REGISTRY
from orchestrator.eventlog.log_writer import LOGS, groups_folder
from orchestrator.eventlog.tables import INT, SCHEMAS, LogPart, Rows, seconds
from orchestrator.recipe.problems import InputError
from orchestrator.recipe.toml_text import load
from outer.journal.chain import SEGMENT_ROWS, Chain, ChainLink, Segmented, identity
from outer.journal.framing import Damaged
from outer.journal.object_store import Folder, Objects, objects
from outer.protocol.facts import Record

DAMAGE_MAX = 100  # messages kept
LISTED = 64  # polls: one of so many lists the store


@dataclass
class Findings:
    """The damage of a log, in words; more than DAMAGE_MAX of a kind are left out."""

    unreadable: list[str] = field(default_factory=list)  # objects whose bytes are not as they were written
    unlinked: list[str] = field(default_factory=list)  # objects that are missing, inserted or swapped
    unknown: int = 0  # facts of kinds that this version does not know

    def note(self, to: list[str], what: str) -> None:
        if what not in to and len(to) < DAMAGE_MAX:
            to.append(what)

    @property
    def damage(self) -> list[str]:
        return [*self.unreadable, *self.unlinked]


class ChainReader:
    """`poll` gives what is new in one log. Survives a group that becomes part of a segment between two polls."""

    def __init__(self, store: Objects, log: str, findings: Findings) -> None:
        self._store, self.log, self.findings = store, log, findings
        self.segments = 0  # read so far
        self.seal = ""  # of the last
        self.rows = 0  # read so far
        self._run, self._link = "", ChainLink()  # of the last group that was read, itself or in a segment
        self._polls = 0
        self._overtaken = False  # whether groups have become a segment while they were read

    def poll(self, quick: bool = False) -> Iterator[LogPart]:
        """Raises OSError; then the next call goes on at the same place.

        `quick`: where listings are dear, look only right behind what was read, and at all of it now and then.
        """
        self._polls += 1
        quick = quick and self._store.retries and self._link.position >= 0 and self._polls % LISTED != 0
        yield from self._segments(all_of_them=self.rows == 0 or self._polls == 1)
        while True:
            yield from self._groups(quick)
            if not self._overtaken:
                return
            yield from self._segments()

    # -------------------------------------------------------------- segments

    def _segments(self, all_of_them: bool = False) -> Iterator[LogPart]:
        names = self._store.names(segments_folder(self.log)) if all_of_them else []
        there = [int(name.rpartition("/")[2]) for name in names]
        while True:
            number, segment = self.segments, None
            name = f"segment {number} of {self.log}"
            try:
                segment = self._segment(number)
                if segment is None and (later := [each for each in there if each > number]):
                    for missing in range(number, later[0]):
                        self.findings.note(self.findings.unlinked, f"segment {missing} of {self.log} is missing")
                    self.segments, self.seal = later[0], ""
                    continue
                if segment is None:
                    return
                fresh = segment.stop > self.rows and segment.log == self.log  # else it was read as groups
                part = part_of(self._store, segment) if fresh else None
            except Damaged as error:
                self.findings.note(self.findings.unreadable, f"{name}: {error}")
                if segment is None:
                    self.segments, self.seal = number + 1, ""
                    continue
                part = None
            if (segment.log, segment.number) != (self.log, number):
                told = f"segment {segment.number} of {segment.log} is at the place of {name}"
                self.findings.note(self.findings.unlinked, told)
            if segment.before != self.seal and (self.seal or not number):
                self.findings.note(self.findings.unlinked, f"{name} does not follow the segment before it")
            for each in segment.damage:
                self.findings.note(self.findings.unreadable, f"{self.log}: {each}")
            self.segments, self.seal = number + 1, segment.seal
            if part is not None:
                self._run, self._link = segment.run, ChainLink(segment.last, segment.group)
                yield self._counted(part)

    def _segment(self, number: int) -> Segment | None:
        try:
            return segment_in(self._store.read(segment_key(self.log, number)))
        except FileNotFoundError:
            return None

    # -------------------------------------------------------------- groups

    def _groups(self, quick: bool) -> Iterator[LogPart]:
        self._overtaken = False
        run = self._run if quick else identity(self._store, groups_folder(self.log))
        if run is None:
            return
        if run != self._run:
            self._run, self._link = run, ChainLink()
        damage: list[str] = []
        rows, link = Rows(self.rows), self._link
        chain, here = Chain(self._store, groups_folder(self.log), run), (self._link, self.rows)
        for group in chain.ahead(*here) if quick else chain.forward(*here, damage):
            if damage and self._became_segment():
                break
            try:
                add_group(rows, group)
            except Damaged as error:
                damage.append(str(error))
            link = ChainLink(group.position, group.seal)
            if len(rows) >= SEGMENT_ROWS:
                self._link = link
                yield self._counted(rows.part())
                rows = Rows(self.rows)
        self._overtaken = bool(damage) and self._became_segment()
        if len(rows):
            self._link = link
            yield self._counted(rows.part())
        self._link = link
        for each in () if self._overtaken else damage:
            broken = "it follows" in each or "it is missing" in each
            to = self.findings.unlinked if broken else self.findings.unreadable
            self.findings.note(to, f"{self.log}: {each}")

    def _became_segment(self) -> bool:
        """Whether what is missing among the groups is in a segment by now."""
        try:
            return self._segment(self.segments) is not None
        except Damaged:
            return True

    def _counted(self, part: LogPart) -> LogPart:
        """The rows that were not read before."""
        part = part.tail(self.rows) if part.start < self.rows else part
        self.rows = part.stop
        if (facts := part.tables.get("facts")) is not None:
            kinds = pc.value_counts(facts["kind"])
            self.findings.unknown += sum(each["counts"] for each in kinds.to_pylist() if each["values"] not in REGISTRY)
        return part


Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
SYNCER, ORCHESTRATOR, CHAOS = LOGS
RECORDS = tuple(kind.__name__ for kind in get_args(Record))
SEAL_FILE = "seal.json"
RECIPE_FILE = "config.toml"


def store_of(run_dir: Path) -> Objects:
    """Where a run's log is: in its folder, or where its recipe's durability.store says. Raises ValueError, OSError."""
    path, told = run_dir / RECIPE_FILE, run_dir / "store"  # the latter of orchestrator/store/published.py
    if told.is_file():
        return objects(told.read_text(encoding="utf-8"))
    try:
        elsewhere = load(path).durability.store if path.is_file() and not (run_dir / "log").is_dir() else None
    except InputError:
        elsewhere = None  # a recipe that cannot be read hides no log that is in the folder
    if elsewhere is None or (run_dir / "log").is_dir():  # a tape's log is in its folder, whatever its recipe says
        return Folder(run_dir.absolute())
    return objects(elsewhere)


def intact(run_dir: Path) -> Iterator[LogPart]:
    """A run's whole log. Raises ValueError, at the end, if something of it cannot be read; OSError."""
    log = LogReader(run_dir)
    yield from log.rest()
    if log.findings.unreadable:
        raise ValueError(log.findings.unreadable[0])


def events(run_dir: Path) -> Iterator[Event]:
    """Every fact of a run's log as an object: slow. Raises OSError; what is damaged is left out."""
    for part in LogReader(run_dir).rest():
        yield from part.events()


def read_run(run_dir: Path) -> list[Event]:
    """A whole log as a list. For short runs: it is all in memory."""
    return list(events(run_dir))


def records(parts: Iterable[LogPart]) -> Iterator[tuple[int, Record]]:
    """(epoch, record), in the syncer's order: what a syncer starts from when its journal is damaged."""
    for part in parts:
        for event in part.only(("commits", "contributions"), RECORDS).events():
            if event.writer == SYNCER:
                yield event.incarnation, event.fact


class LogReader:
    """Reads a run's log, once or as it grows."""

    def __init__(self, run_dir: Path, store: Objects | None = None) -> None:
        self.findings = Findings()
        store = store or store_of(run_dir)
        self.syncer = ChainReader(store, SYNCER, self.findings)
        self.others = {log: ChainReader(store, log, self.findings) for log in (ORCHESTRATOR, CHAOS)}
        self._held: deque[_Dated] = deque()
        self._latest = dict.fromkeys(LOGS, float("-inf"))  # the latest time of each log's own facts so far
        self._guests = _NOBODY
        self._shift = 0  # guests so far

    @property
    def rows(self) -> int:
        """Rows read so far."""
        return self.syncer.rows + sum(each.rows for each in self.others.values())

    def poll(self, quick: bool = True) -> Iterator[LogPart]:
        """The new facts. What orchestrator or chaos tells later than what it belongs before comes where it is found.

        Raises OSError; then the next call goes on at the same place. `quick`: see ChainReader.poll.
        """
        for part in self.syncer.poll(quick):
            self._held.append(self._dated(part))  # first: a caller may stop at any part
            yield from self._merged()
        yield from self._merged()
        yield from self._rest_of_guests()

    def rest(self) -> Iterator[LogPart]:
        """All that is there: the run is over, or is not waited for. Memory is bounded by the length of a segment."""
        return self.poll(quick=False)

    # -------------------------------------------------------------- merging

    def _dated(self, part: LogPart) -> _Dated:
        """The syncer's own facts of a part, and the latest time up to each."""
        own = [table.select(["position", "time"]) for name in ("commits",) if (table := part.tables.get(name))]
        if (facts := part.tables.get("facts")) is not None:
            own.append(facts.filter(pc.equal(facts["writer"], SYNCER)).select(["position", "time"]))
        table = pa.concat_tables([_PLACED, *own]).sort_by("position")
        dates = self._up_to(SYNCER, seconds(table["time"]))
        return _Dated(part, table["position"].to_numpy(), dates)

    def _up_to(self, log: str, times: Floats) -> Floats:
        """The latest time up to each of a log's next ones."""
        dates = np.maximum.accumulate(np.concatenate([[self._latest[log]], times]))
        self._latest[log] = float(dates[-1])
        return dates[1:]

    def _look(self) -> None:
        """See what guests are new. They wait in the order of their dates."""
        for log, chain in self.others.items():
            for part in chain.poll(quick=True):
                if (facts := part.tables.get("facts")) is not None:
                    facts = facts.sort_by("position")
                    dates = pa.array(self._up_to(log, seconds(facts["time"])))
                    dated = facts.append_column("date", dates).append_column("log", pa.array([log] * len(facts)))
                    self._guests = pa.concat_tables([self._guests, dated])
        self._guests = self._guests.sort_by([("date", "ascending"), ("log", "descending"), ("position", "ascending")])

    def _until(self, date: float) -> tuple[pa.Table, Floats]:
        """Take the guests before this time, in their order; and the dates of them."""
        count = int(np.searchsorted(self._guests["date"].to_numpy(), date, side="left"))
        taken, self._guests = self._guests.slice(0, count), self._guests.slice(count)
        return taken.drop_columns(["date", "log"]), taken["date"].to_numpy()

    def _merged(self) -> Iterator[LogPart]:
        """The parts that are held, with the guests that belong into them."""
        self._look()  # after the chain: what was written before it is there
        while self._held:
            part, positions, dates = self._held.popleft()
            guests, their = self._until(float(dates[-1]) if len(dates) else float("-inf"))
            yield self._with(guests, positions[np.searchsorted(dates, their, side="right")], part)

    def _rest_of_guests(self) -> Iterator[LogPart]:
        guests, _ = self._until(float("inf"))
        if guests.num_rows:
            rows = np.full(guests.num_rows, self.syncer.rows)
            yield self._with(guests, rows, LogPart(self.syncer.rows, 0, {}))

    def _with(self, guests: pa.Table, rows: Ints, part: LogPart) -> LogPart:
        """A part of the syncer's chain with guests before these rows of it: each fact at its place in the whole log."""
        tables = {
            name: _moved(
                table, (own := table["position"].to_numpy()) + np.searchsorted(rows, own, side="right") + self._shift
            )
            for name, table in part.tables.items()
        }
        if guests.num_rows:
            placed = _moved(guests, rows + np.arange(len(rows)) + self._shift)
            tables["facts"] = pa.concat_tables([tables["facts"], placed] if "facts" in tables else [placed])
        start, self._shift = part.start + self._shift, self._shift + len(rows)
        return LogPart(start, part.rows + len(rows), tables)


class _Dated(NamedTuple):
    """A part of the syncer's chain, its own facts' positions, and the latest time up to each."""

    part: LogPart
    positions: Ints
    dates: Floats


_PLACED = pa.schema([SCHEMAS["facts"].field(name) for name in ("position", "time")]).empty_table()
_NOBODY = SCHEMAS["facts"].append(pa.field("date", pa.float64())).append(pa.field("log", pa.string())).empty_table()


def _moved(table: pa.Table, positions: Ints) -> pa.Table:
    return table.set_column(0, SCHEMAS["facts"].field("position"), pa.array(positions, INT))


# ------------------------------------------------------------------ the seal of a run that is over


def seal(ends: Mapping[str, Segmented]) -> dict[str, Any]:
    """The content of seal.json: where each log ended."""
    logs = {log: {"segments": end.segments, "seal": end.seal, "rows": end.rows} for log, end in ends.items()}
    return {"format": FORMAT, "logs": logs}


def sealed(run_dir: Path) -> Mapping[str, Mapping[str, Any]] | None:
    """Where each log ended; None if the run was not sealed. Raises ValueError for damage."""
    try:
        record = json.loads((run_dir / SEAL_FILE).read_text(encoding="utf-8"))
        if record["format"] != FORMAT:
            raise ValueError(f"its format is {record['format']!r}, not {FORMAT}")
        return {
            str(log): {name: end[name] for name in ("segments", "seal", "rows")} for log, end in record["logs"].items()
        }
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"{SEAL_FILE} is damaged: {error!r}") from error


def differs(reader: LogReader, ends: Mapping[str, Mapping[str, Any]]) -> str:
    """How a log that was read to its end differs from its seal; empty if it does not."""
    for log, chain in ((SYNCER, reader.syncer), *reader.others.items()):
        end = ends.get(log, {"segments": 0, "seal": "", "rows": 0})
        if chain.rows != end["rows"]:
            return f"{log} has {chain.rows} facts, {end['rows']} were sealed"
        if (chain.segments, chain.seal) != (end["segments"], end["seal"]):
            return f"the last segment of {log} is not the one that was sealed"
    return ""
