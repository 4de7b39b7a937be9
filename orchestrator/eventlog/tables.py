"""The log as tables: a row for each fact, in Arrow, and in Parquet files that any tool reads.

`SCHEMAS` says the columns. `position` is the fact's place: in a file, in its log's own chain; in what LogReader
gives, in the run's whole log. `time` is UTC. A commit has its row in `commits`, and one in `contributions` for each
participant. Every kind of fact without a table of its own is in `facts`, its fields as JSON.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from learners.protocol.facts import Adopted, StepFinished
from orchestrator.eventlog.events import Event, Unknown, fact_of, finite, kind_of
from outer.journal.groups import SYNCER
from outer.protocol.facts import Committed, Participant

INT, FLOAT, TEXT, TIME = pa.int64(), pa.float64(), pa.string(), pa.timestamp("us")
MICRO = 1_000_000
_TYPES = {int: INT, float: FLOAT, int | None: INT, float | None: FLOAT}
_RENAMED = {"position": "sample"}  # StepFinished.position: the place in the log has that name
_REPEATED = 8  # a column with fewer distinct values than rows / 8 is written with a dictionary

Place = tuple[str, int, int, float]  # of a fact: writer, incarnation, sequence, Unix seconds


def _fields(kind: type[Any], *without: str) -> list[pa.Field]:
    hints = {name: hint for name, hint in typing.get_type_hints(kind).items() if name not in without}
    return [
        pa.field(_RENAMED.get(name, name), _TYPES.get(hint, TEXT), type(None) in typing.get_args(hint))
        for name, hint in hints.items()
    ]


def _schema(*columns: tuple[str, pa.DataType] | pa.Field) -> pa.Schema:
    return pa.schema([pa.field(*each, nullable=False) if isinstance(each, tuple) else each for each in columns])


_ENVELOPE = (("incarnation", INT), ("sequence", INT), ("time", TIME))
_OF_LEARNER = (("position", INT), ("learner", TEXT), *_ENVELOPE)
_OF_SYNCER = (("position", INT), ("told_by", INT))  # its epoch
SCHEMAS = {
    "steps": _schema(*_OF_LEARNER, *_fields(StepFinished)),
    "adoptions": _schema(*_OF_LEARNER, *_fields(Adopted)),
    "commits": _schema(*_OF_SYNCER, *_ENVELOPE[1:], *_fields(Committed, "participants")),
    "contributions": _schema(
        *_OF_SYNCER, ("syncer_step", INT), ("fragment", INT), ("part", INT), *_fields(Participant)
    ),
    "facts": _schema(("position", INT), ("writer", TEXT), *_ENVELOPE, ("kind", TEXT), ("fact", TEXT)),
}
_SORTED = {
    "steps": ("learner", "incarnation", "position"),
    "adoptions": ("learner", "incarnation", "position"),
    "commits": ("position",),
    "contributions": ("learner", "incarnation", "position", "part"),
    "facts": ("writer", "incarnation", "position"),
}  # of a file: neighbours differ little
_PARTICIPANTS = [each.name for each in fields(Committed)].index("participants")


# ------------------------------------------------------------------ facts to tables


class Rows:
    """Collects the facts of one log, in the order of its chain; the first is row `start`."""

    def __init__(self, start: int = 0) -> None:
        self.start = self.next = start
        self._rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in SCHEMAS}

    def __len__(self) -> int:
        return self.next - self.start

    def skip_to(self, row: int) -> None:
        """The rows before this one are lost."""
        self.next = max(self.next, row)

    def add(self, event: Event) -> None:
        fact, place = event.fact, (event.writer, event.incarnation, event.sequence, event.at)
        if isinstance(fact, StepFinished):
            self.step(place, vars(fact).values())
        elif isinstance(fact, Adopted):
            self.adoption(place, vars(fact).values())
        elif isinstance(fact, Committed) and event.writer == SYNCER:
            parts = [vars(each).values() for each in fact.participants]
            self.commit(place, [parts if value is fact.participants else value for value in vars(fact).values()])
        else:
            values = event.fields if isinstance(fact, Committed | Unknown) else vars(fact)
            self._put("facts", (*place, kind_of(fact), to_json(values)))

    def step(self, place: Place, values: Iterable[Any]) -> None:
        """A StepFinished, by the values of its fields in order; so are the next two."""
        *most, aux = values
        text = None if aux is None else to_json({name: float(value) for name, value in aux.items()})
        self._put("steps", (*place, *most, text))

    def adoption(self, place: Place, values: Iterable[Any]) -> None:
        self._put("adoptions", (*place, *values))

    def commit(self, place: Place, values: Sequence[Any]) -> None:
        told_by, (step, fragment, *_), parts = place[1], values, values[_PARTICIPANTS]
        self._rows["contributions"] += [
            (self.next, told_by, step, fragment, part, *each) for part, each in enumerate(parts)
        ]
        self._put("commits", (*place[1:], *values[:_PARTICIPANTS], *values[_PARTICIPANTS + 1 :]))

    def _put(self, table: str, row: tuple[Any, ...]) -> None:
        self._rows[table].append((self.next, *row))
        self.next += 1

    def part(self) -> LogPart:
        """All rows so far."""
        tables = {
            name: pa.Table.from_arrays(
                [_column(values, field) for values, field in zip(zip(*rows, strict=True), SCHEMAS[name], strict=True)],
                schema=SCHEMAS[name],
            )
            for name, rows in self._rows.items()
            if rows
        }
        return LogPart(self.start, len(self), tables)


def part_of(events: Iterable[Event], start: int = 0) -> LogPart:
    """The rows of these events, which are in the log's order; the first has position `start`."""
    rows = Rows(start)
    for event in events:
        rows.add(event)
    return rows.part()


def as_parts(log: Iterable[Event] | Iterable[LogPart]) -> Iterator[LogPart]:
    """Parts as they are, and events as one part."""
    events: list[Event] = []
    for each in log:
        if isinstance(each, LogPart):
            yield each
        else:
            events.append(each)
    if events:
        yield part_of(events)


def to_json(values: Any) -> str:
    """Strict JSON: a number that is not finite is written as a string, its name."""
    try:
        return json.dumps(values, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    except ValueError:
        return json.dumps(finite(values), separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def _column(values: Sequence[Any], field: pa.Field) -> pa.Array:
    if field.type == TIME:
        return pa.array(np.rint(np.array(values, np.float64) * MICRO).astype(np.int64)).cast(TIME)
    try:
        return pa.array(values, field.type)
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can spell and UTF-8 cannot: a question mark
        return pa.array([each and each.encode(errors="replace").decode() for each in values], field.type)
    except pa.ArrowInvalid:
        if field.type != FLOAT:
            raise
        return pa.array([float(each) if type(each) is str else each for each in values], FLOAT)  # "nan" in a group


# ------------------------------------------------------------------ tables to facts


@dataclass(frozen=True)
class LogPart:
    """A stretch of a log: the facts at positions `start` to `stop`. The tables' rows are in any order."""

    start: int
    rows: int
    tables: Mapping[str, pa.Table]  # by name; one without rows is left out

    @property
    def stop(self) -> int:
        return self.start + self.rows

    def tail(self, start: int) -> LogPart:
        """The rows from `start` on."""
        kept = {name: table.filter(pc.greater_equal(table["position"], start)) for name, table in self.tables.items()}
        return LogPart(start, self.stop - start, {name: table for name, table in kept.items() if table.num_rows})

    def only(self, tables: Sequence[str], kinds: Sequence[str] = ()) -> LogPart:
        """These tables, and the facts of these kinds."""
        kept = {name: table for name, table in self.tables.items() if name in tables}
        if kinds and (facts := self.tables.get("facts")) is not None:
            kept["facts"] = facts.filter(pc.is_in(facts["kind"], pa.array(kinds)))
        return LogPart(self.start, self.rows, kept)

    def by_learner(self, name: str) -> Iterator[tuple[tuple[str, int], pa.Table]]:
        """The rows of a table by learner and incarnation, in the log's order."""
        if (table := self.tables.get(name)) is not None:
            table = table.sort_by([(column, "ascending") for column in ("learner", "incarnation", "position")])
            counts = table.group_by(["learner", "incarnation"], use_threads=False).aggregate([([], "count_all")])
            start = 0
            for learner, incarnation, count in zip(*map(_plain, counts.columns), strict=True):
                yield (learner, incarnation), table.slice(start, count)
                start += count

    def events(self) -> Iterator[Event]:
        """All facts as objects, in order: slow."""
        tables = (self._steps(), self._adoptions(), self._commits(), self._facts())
        return map(itemgetter(1), sorted(chain.from_iterable(tables), key=itemgetter(0)))

    def in_order(self, name: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """A table's rows, in the log's order, or these columns of them; `time` as Unix seconds."""
        if (table := self.tables.get(name)) is None:
            return iter(())
        table = table.sort_by([(each, "ascending") for each in ("position", "part") if each in table.schema.names])
        return zip(*map(_plain, table.select(columns or table.schema.names).columns), strict=True)

    def _steps(self) -> Iterator[tuple[int, Event]]:
        for position, who, which, sequence, at, *values, aux in self.in_order("steps"):
            known = None if aux is None else {name: float(value) for name, value in json.loads(aux).items()}
            yield position, Event(who, which, sequence, at, StepFinished(*[*values, known]))

    def _adoptions(self) -> Iterator[tuple[int, Event]]:
        for position, who, which, sequence, at, *values in self.in_order("adoptions"):
            yield position, Event(who, which, sequence, at, Adopted(*values))

    def _commits(self) -> Iterator[tuple[int, Event]]:
        parts: dict[int, list[Participant]] = {}
        for position, _, _, _, _, *one in self.in_order("contributions"):
            parts.setdefault(position, []).append(Participant(*one))
        for position, epoch, sequence, at, *values in self.in_order("commits"):
            values.insert(_PARTICIPANTS, tuple(parts.get(position, ())))
            yield position, Event(SYNCER, epoch, sequence, at, Committed(*values))

    def _facts(self) -> Iterator[tuple[int, Event]]:
        for position, who, which, sequence, at, kind, text in self.in_order("facts"):
            yield position, Event(who, which, sequence, at, fact_of(kind, json.loads(text)))


def seconds(times: pa.ChunkedArray) -> Any:
    """Unix seconds of a column of times, as an array of NumPy."""
    return times.cast(INT).to_numpy() / MICRO


def _plain(column: pa.ChunkedArray) -> list[Any]:
    values: Any = seconds(column) if column.type == TIME else None if column.null_count else column.to_numpy()
    return list(column.to_pylist() if values is None else values.tolist())


# ------------------------------------------------------------------ files


def write(name: str, table: pa.Table) -> bytes:
    """The content of a table's file."""
    table = table.sort_by([(column, "ascending") for column in _SORTED[name]]).combine_chunks()
    encodings = {each.name: _encoding(table[each.name]) for each in table.schema}
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        compression_level=9,
        use_dictionary=[each for each, encoding in encodings.items() if not encoding],
        column_encoding={each: encoding for each, encoding in encodings.items() if encoding},
        write_statistics=["position", "time"],
        store_schema=False,
    )
    return bytes(sink.getvalue())


def _encoding(column: pa.ChunkedArray) -> str:
    """The encoding that takes least; none: a dictionary."""
    if column.type not in (FLOAT, TEXT):
        return "DELTA_BINARY_PACKED"
    if pc.count_distinct(column, mode="all").as_py() * _REPEATED < len(column):
        return ""
    if column.type == TEXT:
        return "DELTA_LENGTH_BYTE_ARRAY"
    single = column.cast(pa.float32(), safe=False).cast(FLOAT).equals(column)  # then four of its bytes are zero
    return "BYTE_STREAM_SPLIT" if single else "PLAIN"


def read(name: str, content: bytes) -> pa.Table:
    """The table of a file. Raises ValueError for anything else."""
    table = pq.read_table(pa.BufferReader(content), use_threads=False, pre_buffer=False)
    if not table.schema.equals(SCHEMAS[name]):
        raise ValueError(f"its columns are not those of {name}")
    return table
