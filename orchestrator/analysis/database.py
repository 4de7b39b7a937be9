"""The log as tables of DuckDB: every fact in its place, ready for queries.

`steps`, `adoptions`, `commits`, `contributions` and `facts` have a row for each fact, as docs/run-folder.md says, with
two columns more: `t`, Unix seconds; and, beside `learner` and `incarnation`, `who`, the incarnation's number in
`incarnations`. `position` is the place in the log's canonical order. Every other kind of fact is a view of its own name
over `facts`, with its fields as columns: `SELECT * FROM LeaseExpired`.
"""

from __future__ import annotations

import json
import math
import tempfile
import types
import typing
from collections.abc import Iterable, Sequence
from dataclasses import fields
from functools import cache
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from learners.protocol.facts import Adopted, StepFinished
from orchestrator.eventlog.block import NONE, Block, as_blocks
from orchestrator.eventlog.events import Event, finite, kind_of
from orchestrator.eventlog.facts import REGISTRY
from outer.protocol.facts import Committed, Participant

INT, FLOAT, TEXT = pa.int64(), pa.float64(), pa.string()
_KINDS = {int: INT, float: FLOAT, str: TEXT, int | None: INT, float | None: FLOAT}
FAMILIES = ("base", "books", "roster", "time", "goodput", "faults", "series")  # of sql/: each needs those before it
MEMORY_MB = 400
WRITERS = ("syncer", "orchestrator", "chaos")  # everybody else who writes is a learner
_RENAMED = {"position": "sample"}  # StepFinished.position: the place in the log has that name


def _columns(kind: type[Any], *without: str) -> list[tuple[str, pa.DataType]]:
    hints = typing.get_type_hints(kind)
    named = [(each.name, _KINDS.get(hints[each.name], TEXT)) for each in fields(kind) if each.name not in without]
    return [(_RENAMED.get(name, name), dtype) for name, dtype in named]


_PLACE = [("position", INT), ("who", INT), ("sequence", INT), ("t", FLOAT)]
_TOLD = [("position", INT), ("told_by", INT)]
_PART = [("syncer_step", INT), ("fragment", INT), ("part", INT), ("who", INT)]
_WRITER = [("writer", TEXT), ("incarnation", INT), ("sequence", INT), ("t", FLOAT), ("kind", TEXT), ("fact", TEXT)]
SCHEMAS = {
    "steps": pa.schema([*_PLACE, *_columns(StepFinished)]),
    "adoptions": pa.schema([*_PLACE, *_columns(Adopted)]),
    "commits_told": pa.schema([*_TOLD, *_PLACE[2:], *_columns(Committed, "participants")]),
    "contributions_told": pa.schema([*_TOLD, *_PART, *_columns(Participant, "learner", "incarnation")]),
    "facts": pa.schema([("position", INT), *_WRITER]),
    "incarnations": pa.schema([("who", INT), ("learner", TEXT), ("incarnation", INT)]),
}


class _Numbers(dict[tuple[str, int], int]):
    """The incarnations, numbered from 0."""

    def __missing__(self, key: tuple[str, int]) -> int:
        number = self[key] = len(self)
        return number


def connect() -> duckdb.DuckDBPyConnection:
    """A database in memory, with a view for every kind of fact and no row yet.

    Of a long log more than `MEMORY_MB` goes to temporary files.
    """
    database = duckdb.connect(
        config={"threads": 1, "memory_limit": f"{MEMORY_MB}MB", "temp_directory": tempfile.gettempdir()}
    )
    for each in _made():
        database.execute(each)
    return database


@cache
def _made() -> list[duckdb.Statement]:
    made = ["CREATE TABLE prepared (family VARCHAR)"]  # of those in sql/, whose tables there are
    for name, schema in SCHEMAS.items():
        columns = ", ".join(f"{each.name} {_DUCK[each.type]}" for each in schema)
        made.append(f"CREATE TABLE {name} ({columns})")
    for kind, fact in REGISTRY.items():
        if fact not in (StepFinished, Adopted, Committed):
            made.append(f"CREATE VIEW {kind} AS {_view(kind, fact)}")
    return duckdb.extract_statements(";".join(made))


_DUCK = {INT: "BIGINT", FLOAT: "DOUBLE", TEXT: "VARCHAR"}


def _view(kind: str, fact: type[Any]) -> str:
    """A kind of fact as a query: its writer, `told_in`, with its incarnation, `told_by`; when; and its fields."""
    hints = typing.get_type_hints(fact)
    columns = ", ".join(_column(each.name, hints[each.name]) for each in fields(fact))
    place = "position, writer AS told_in, incarnation AS told_by, sequence, t"
    return f"SELECT {place}, {columns} FROM facts WHERE kind = '{kind}'"


def _column(name: str, hint: Any) -> str:
    inner = [each for each in typing.get_args(hint) if each is not types.NoneType]
    if typing.get_origin(hint) in (types.UnionType, typing.Union) and len(inner) == 1:
        hint = inner[0]
    plain = {int: "BIGINT", float: "DOUBLE", bool: "BOOLEAN"}
    if hint in plain:
        return f"(fact->>'$.{name}')::{plain[hint]} AS \"{name}\""
    if hint is str:
        return f"fact->>'$.{name}' AS \"{name}\""
    if typing.get_origin(hint) is tuple and inner[0] in (int, str):
        return f"(fact->'$.{name}')::{'BIGINT' if inner[0] is int else 'VARCHAR'}[] AS \"{name}\""
    return f"(fact->'$.{name}')::JSON AS \"{name}\""


def filled(log: Iterable[Event] | Iterable[Block]) -> duckdb.DuckDBPyConnection:
    """A database of this log, given as blocks or as events, in its canonical order."""
    database = connect()
    tables = Tables(database)
    for block in as_blocks(log):
        tables.take(block)
    return database


class Tables:
    """Puts the log's blocks, one after the other, into a database's tables."""

    def __init__(self, database: duckdb.DuckDBPyConnection) -> None:
        self._database = database
        self._who = _Numbers()

    def take(self, block: Block) -> None:
        known = len(self._who)
        words, steps, adopted = np.array(block.names, object), block.steps, block.adoptions
        commits, parts = block.commits, block.contributions
        who = np.array([-1 if name in WRITERS else self._who[name, number] for name, number in block.sources], np.int64)
        epoch = np.array([number for _, number in block.sources], np.int64)
        progress = [None if math.isnan(share) else share for share in steps.progress.tolist()]
        aux = [None if each is None else _json(each) for each in steps.aux.tolist()]
        read_at = [None if step == NONE else step for step in adopted.read_at.tolist()]
        place = np.arange(len(parts.step)) - commits.first[parts.commit]
        told_by = epoch[commits.source]
        rows = [
            (at, event.writer, event.incarnation, event.sequence, event.at, kind_of(event.fact), _json(event.fields))
            for at, event in block.others
        ]
        for _, event in block.others:
            for key in _about(event):
                self._who[key]
        self._put("steps", steps.position, who[steps.source], *steps[2:11], words[steps.waited_for], progress, aux)
        self._put("adoptions", adopted.position, who[adopted.source], *adopted[2:7], words[adopted.mode], read_at,
            adopted.bytes)  # fmt: skip
        self._put("commits_told", commits.position, told_by, *commits[2:16])
        self._put("contributions_told", *(column[parts.commit] for column in (commits.position, told_by)),
            *(column[parts.commit] for column in (commits.syncer_step, commits.fragment)), place, who[parts.learner],
            *parts[2:])  # fmt: skip
        self._put("facts", *zip(*rows, strict=True))
        fresh = [(number, *key) for key, number in [*self._who.items()][known:]]
        self._put("incarnations", *zip(*fresh, strict=True))

    def _put(self, table: str, *columns: Any) -> None:
        if columns and len(columns[0]):
            schema = SCHEMAS[table]
            arrays = [_array(values, each.type) for values, each in zip(columns, schema, strict=True)]
            self._database.register("arriving", pa.Table.from_arrays(arrays, schema=schema))
            self._database.execute(f"INSERT INTO {table} FROM arriving")
            self._database.unregister("arriving")


def _about(event: Event) -> Sequence[tuple[str, int]]:
    """The incarnations of learners that a fact tells of."""
    fact = event.fact
    told = []
    if event.writer not in WRITERS:
        told.append((event.writer, event.incarnation))
    learner = getattr(fact, "learner", getattr(fact, "target", None))
    if isinstance(learner, str) and isinstance(number := getattr(fact, "incarnation", None), int):
        told.append((learner, number))
    return told


def _array(values: Any, dtype: pa.DataType) -> pa.Array:
    """Half a surrogate pair, which JSON can spell and UTF-8 cannot, becomes a question mark."""
    try:
        return pa.array(values, dtype)
    except UnicodeEncodeError:
        return pa.array([each if each is None else each.encode(errors="replace").decode() for each in values], dtype)


def _json(values: Any) -> str:
    return json.dumps(finite(values), separators=(",", ":"), allow_nan=False, ensure_ascii=False)
