"""Reads a run's log in its canonical order, in parts, with bounded memory.

The order is the syncer's chain, so facts precede the commits that cover them. The orchestrator's and chaos's facts are
merged into it by wall time: before the first of the syncer's own facts that is later, where of the times up to a fact
the latest counts.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from orchestrator.eventlog.chain_reader import ChainReader, Findings
from orchestrator.eventlog.compactor import FORMAT
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.log_writer import LOGS
from orchestrator.eventlog.tables import INT, SCHEMAS, LogPart, seconds
from orchestrator.recipe.problems import InputError
from orchestrator.recipe.toml_text import load
from outer.journal.chain import Segmented
from outer.journal.object_store import Folder, Objects, objects
from outer.protocol.facts import Record

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
SYNCER, ORCHESTRATOR, CHAOS = LOGS
RECORDS = tuple(kind.__name__ for kind in get_args(Record))
SEAL_FILE = "seal.json"
RECIPE_FILE = "config.toml"


def store_of(run_dir: Path) -> Objects:
    """Where a run's log is: in its folder, or where its recipe's durability.store says. Raises ValueError, OSError."""
    path = run_dir / RECIPE_FILE
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
