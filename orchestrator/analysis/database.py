"""The log as tables of DuckDB: every fact in its place, ready for queries.

`steps`, `adoptions`, `commits`, `contributions` and `facts` have a row for each fact, as docs/run-folder.md says, but
`t`, Unix seconds, instead of `time`; and `who`, the number in `incarnations`, instead of a learner and its incarnation.
`position` is the place in the log's canonical order. Every other kind of fact is a view of its own name
over `facts`, with its fields as columns: `SELECT * FROM LeaseExpired`.
"""

from __future__ import annotations

import json
import tempfile
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa

from learners.protocol.facts import Adopted, StepFinished
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import REGISTRY
from orchestrator.eventlog.log_writer import LOGS
from orchestrator.eventlog.tables import FLOAT, INT, SCHEMAS, TEXT, TIME, LogPart, as_parts
from outer.protocol.facts import Committed

# Of sql/: each needs those before it.
FAMILIES = ("base", "books", "roster", "time", "goodput", "faults", "lanes", "series")
MEMORY_MB = 400
AT_ONCE = 2**19  # rows: an insertion takes its time, however few they are
SMALL = 20_000  # rows: of fewer, to optimize a query takes longer than to execute it
_TYPES = {INT: "BIGINT", FLOAT: "DOUBLE", TEXT: "VARCHAR"}
_NAMES = {"commits": "commits_told", "contributions": "contributions_told"}  # a later epoch may tell one again
Used = duckdb.DuckDBPyConnection | None  # a database whose log is no longer needed: to open another takes 20 ms


def connect() -> duckdb.DuckDBPyConnection:
    """A database in memory, with a view for every kind of fact and no row yet.

    Of a long log more than `MEMORY_MB` goes to temporary files.
    """
    database = duckdb.connect(
        config={"threads": 1, "memory_limit": f"{MEMORY_MB}MB", "temp_directory": tempfile.gettempdir()}
    )
    # DuckDB guesses too few rows of what is filtered by a field in JSON, and joins them by nested loops.
    database.execute("SET GLOBAL asof_loop_join_threshold = 0")
    for each in (*_tables(), *_views()):
        database.execute(each)
    return database


@cache
def _tables() -> list[duckdb.Statement]:
    made = ["CREATE OR REPLACE TABLE prepared (family VARCHAR)"]  # of those in sql/, whose tables there are
    made.append("CREATE OR REPLACE TABLE incarnations (who BIGINT, learner VARCHAR, incarnation BIGINT)")
    for name in SCHEMAS:
        columns = ", ".join(f"{each} {type_}" for each, (type_, _) in _columns(name).items())
        made.append(f"CREATE OR REPLACE TABLE {_NAMES.get(name, name)} ({columns})")
    return duckdb.extract_statements(";".join(made))


@cache
def _views() -> list[duckdb.Statement]:
    kinds = (each for each in REGISTRY.items() if each[1] not in (StepFinished, Adopted, Committed))
    return duckdb.extract_statements(";".join(f"CREATE VIEW {kind} AS {_view(kind, fact)}" for kind, fact in kinds))


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


# ------------------------------------------------------------------ the log's rows


def _columns(table: str) -> dict[str, tuple[str, str]]:
    """The columns of one of SCHEMAS in the database: type, and expression of those of the log's."""
    found, names = {}, SCHEMAS[table].names
    for each in SCHEMAS[table]:
        if each.type == TIME:
            found["t"] = "DOUBLE", f"epoch_us({each.name}) / 1e6"
        elif each.name == "learner":
            found["who"] = "BIGINT", "who"
        elif each.name != "incarnation" or "learner" not in names:
            found[each.name] = _TYPES[each.type], f'"{each.name}"'
    return found


def _insertion(table: str) -> str:
    columns = _columns(table)
    source = "arriving" + (" JOIN incarnations USING (learner, incarnation)" if "who" in columns else "")
    order = "position, part" if "part" in columns else "position"
    expressions = ", ".join(expression for _, expression in columns.values())
    return f"INSERT INTO {_NAMES.get(table, table)} SELECT {expressions} FROM {source} ORDER BY {order}"


_INSERTIONS = {name: _insertion(name) for name in SCHEMAS}


def filled(log: Iterable[Event] | Iterable[LogPart], used: Used = None) -> duckdb.DuckDBPyConnection:
    """A database of this log, given as parts or as events, in its canonical order; `used` is emptied for it."""
    database = (used or connect()).cursor()  # has no temporary tables
    for each in _tables():
        database.execute(each)
    known, waiting, rows = dict[tuple[str, int], int](), list[LogPart](), 0
    for part in as_parts(log):
        waiting.append(part)
        rows += part.rows
        if part.stop - waiting[0].start >= AT_ONCE:
            _insert(database, known, waiting)
            waiting = []
    _insert(database, known, waiting)
    if rows < SMALL:
        database.execute("PRAGMA disable_optimizer; SET asof_loop_join_threshold = 64")
    return database


def _insert(database: duckdb.DuckDBPyConnection, known: dict[tuple[str, int], int], parts: Sequence[LogPart]) -> None:
    """Put parts into the tables; `known`: the numbers of incarnations so far."""

    def put(statement: str, rows: pa.Table) -> None:
        database.register("arriving", rows)
        database.execute(statement)
        database.unregister("arriving")

    if fresh := sorted(set().union(*map(_incarnations, parts)) - known.keys()):
        known |= {key: len(known) + number for number, key in enumerate(fresh)}
        columns = zip(*((known[key], *key) for key in fresh), strict=True)
        put("INSERT INTO incarnations FROM arriving", pa.table([*columns], ["who", "learner", "incarnation"]))
    for name, statement in _INSERTIONS.items():
        if tables := [part.tables[name] for part in parts if name in part.tables]:
            put(statement, pa.concat_tables(tables))


def _incarnations(part: LogPart) -> set[tuple[str, int]]:
    """The incarnations of learners that stepped, adopted, took part in a commit, told a fact, or that one names."""
    found = set[tuple[str, int]]()
    for name in ("steps", "adoptions", "contributions"):
        if (table := part.tables.get(name)) is not None:
            found.update(_pairs(table.group_by(["learner", "incarnation"], use_threads=False).aggregate([])))
    if (facts := part.tables.get("facts")) is not None:
        found.update(pair for pair in _pairs(facts.select(["writer", "incarnation"])) if pair[0] not in LOGS)
        for kind, fact in zip(facts["kind"].to_pylist(), map(json.loads, facts["fact"].to_pylist()), strict=True):
            learner, number = fact.get("learner", fact.get("target")), fact.get("incarnation")
            if kind in REGISTRY and isinstance(learner, str) and isinstance(number, int) and abs(number) < 2**63:
                found.add((learner, number))
    return found


def _pairs(table: pa.Table) -> Iterator[tuple[str, int]]:
    return zip(*(column.to_pylist() for column in table.columns), strict=True)
