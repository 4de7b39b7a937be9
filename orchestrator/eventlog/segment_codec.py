"""A segment: a long stretch of the log as one object, in columns (Parquet) inside the journal's framing and its seal.

Four tables hold the frequent facts, in the columns of a Block; a fifth holds all others as JSON. Rows are sorted by
writer, so that neighbours differ little. `at` is kept in microseconds, everything else exactly.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from orchestrator.eventlog.block import (
    Adoptions,
    Block,
    Commits,
    ContributionRows,
    Key,
    PlacedEvent,
    Steps,
    dtypes,
)
from orchestrator.eventlog.events import Event, fact_of, finite, kind_of
from outer.journal.framing import Damaged, pack, unpack

FORMAT = 2
MICRO = 1_000_000
TABLES = {"steps": Steps, "adoptions": Adoptions, "commits": Commits, "contributions": ContributionRows}
_REPEATED = 8  # a column with fewer distinct values than rows / 8 is written with a dictionary
_HEX = frozenset("0123456789abcdef")

Column = NDArray[Any]


@dataclass(frozen=True)
class Segment:
    """The range that a segment covers: groups of one chain, and rows of its log."""

    log: str  # syncer | orchestrator | chaos
    run: str  # the chain's identity
    number: int  # from 0
    before: str  # seal of segment number - 1
    first: int  # positions in the chain, both included
    last: int
    group: str  # seal of the group at `last`
    row: int  # of the log, the first
    rows: int  # positions of facts; fewer facts if some are lost
    writers: tuple[tuple[str, int, int], ...] = ()  # up to which fact of whom the log goes: (writer, incarnation, last)
    damage: tuple[str, ...] = ()  # groups that could not be read when the segment was made, in words
    seal: str = ""  # its own


class _Others(NamedTuple):
    position: Column
    source: Column
    sequence: Column
    at: Column
    kind: Column
    fact: Column


def encode(segment: Segment, block: Block) -> tuple[list[bytes | memoryview], Segment]:
    """The chunks of the object, and the segment with its seal. `block` holds the rows that it covers."""
    sources = dict.fromkeys(block.sources)
    for placed in block.others:
        sources.setdefault((placed.event.writer, placed.event.incarnation))
    codes: dict[Key, int] = {key: code for code, key in enumerate(sources)}
    tables: dict[str, Any] = {name: getattr(block, name) for name in TABLES}
    tables["commits"] = block.commits._replace(first=np.diff(block.commits.first))  # how many took part
    written = [_write(table, name, block.start) for name, table in tables.items()]
    written.append(_write(_others(block, codes), "others", block.start))
    header = asdict(replace(segment, rows=block.rows)) | {
        "format": FORMAT,
        "sources": list(codes),
        "names": list(block.names),
        "packed": [packing for _, packing in written],
    }
    del header["seal"]
    content, seal = pack(header, [np.frombuffer(data, np.uint8) for data, _ in written])
    return content, replace(segment, rows=block.rows, seal=seal)


def decode(content: bytes) -> tuple[Segment, Block]:
    """The segment and its rows. Raises Damaged for anything else."""
    header, arrays, seal = unpack(content)
    segment = _segment(header, seal)
    try:
        sources = tuple((writer, incarnation) for writer, incarnation in header["sources"])
        packed = iter(zip(arrays, header["packed"], strict=True))
        tables: dict[str, Any] = {}
        for name, kind in TABLES.items():
            tables[name] = kind(**_read(*next(packed), kind, segment.row))
        commits = tables["commits"]
        tables["commits"] = commits._replace(first=np.concatenate([[0], np.cumsum(commits.first)]).astype(np.int64))
        others = _events(_Others(**_read(*next(packed), _Others, segment.row)), sources)
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        OverflowError,
        StopIteration,
        pa.ArrowException,
    ) as error:
        raise Damaged(f"its checksum is right, but its tables are not valid: {error!r}") from error
    return segment, Block(segment.row, segment.rows, sources, tuple(header["names"]), **tables, others=others)


def covers(content: bytes) -> Segment:
    """Return the range that a segment covers. Raises Damaged."""
    header, _, seal = unpack(content)
    return _segment(header, seal)


def _segment(header: dict[str, Any], seal: str) -> Segment:
    if header.get("format") != FORMAT:
        raise Damaged(f"it has format {header.get('format')!r}, not {FORMAT}")
    try:
        values: dict[str, Any] = {each.name: header[each.name] for each in fields(Segment) if each.name != "seal"}
        values["writers"] = tuple((str(who), int(which), int(last)) for who, which, last in values["writers"])
        return Segment(**values | {"damage": tuple(values["damage"])}, seal=seal)
    except (LookupError, TypeError, ValueError) as error:
        raise Damaged(f"its header is not valid: {error!r}") from error


# ------------------------------------------------------------------ others


def _others(block: Block, codes: dict[Key, int]) -> _Others:
    rows = [
        (
            position,
            codes[event.writer, event.incarnation],
            event.sequence,
            event.at,
            kind_of(event.fact),
            json.dumps(event.fields, separators=(",", ":"), allow_nan=False),
        )
        for position, event in block.others
    ]
    columns: Sequence[Sequence[Any]] = list(zip(*rows, strict=True)) or [()] * len(_Others._fields)
    kinds = (np.int64, np.int64, np.int64, np.float64, np.object_, np.object_)
    return _Others(*(_array(values, kind) for values, kind in zip(columns, kinds, strict=True)))


def _array(values: Sequence[Any], dtype: Any) -> Column:
    column = np.empty(len(values), dtype)
    column[:] = values
    return column


def _events(table: _Others, keys: Sequence[Key]) -> tuple[PlacedEvent, ...]:
    facts = json.loads(f"[{','.join(table.fact)}]")
    columns = (each.tolist() for each in (table.position, table.source, table.sequence, table.at, table.kind))
    rows = zip(*columns, facts, strict=True)
    return tuple(PlacedEvent(row, _event(keys[source], *rest)) for row, source, *rest in rows)


def _event(key: Key, sequence: int, at: float, kind: str, fact: dict[str, Any]) -> Event:
    return Event(*key, sequence, at, fact_of(kind, fact))


# ------------------------------------------------------------------ one table


def _write(table: Any, name: str, start: int) -> tuple[bytes, dict[str, str]]:
    """The table as Parquet, and by column how its values are packed."""
    columns: dict[str, Column] = table._asdict()
    if name == "contributions":
        columns["position"] = np.arange(len(columns["commit"]), dtype=np.int64)
        by = (columns["position"], columns["learner"])
    else:
        columns["position"] = columns["position"] - start
        by = (columns["position"], columns["source"])
    order = np.lexsort(by)
    packed = {each: _pack(each, column[order]) for each, column in columns.items()}
    stored = {each: array for each, (array, _) in packed.items()}
    dictionary = [each for each, array in stored.items() if _repeats(array)]
    encodings = {each: _encoding(array) for each, array in stored.items() if each not in dictionary}
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.table(stored),
        sink,
        compression="zstd",
        compression_level=9,
        use_dictionary=dictionary,
        column_encoding={each: encoding for each, encoding in encodings.items() if encoding},
        write_statistics=False,
        store_schema=False,
    )
    return sink.getvalue().to_pybytes(), {each: how for each, (_, how) in packed.items()}


def _repeats(array: pa.Array) -> bool:
    return not pa.types.is_integer(array.type) and len(array.unique()) * _REPEATED < len(array)


def _encoding(array: pa.Array) -> str:
    if pa.types.is_integer(array.type):
        return "DELTA_BINARY_PACKED"
    return "BYTE_STREAM_SPLIT" if pa.types.is_floating(array.type) else ""


def _pack(name: str, column: Column) -> tuple[pa.Array, str]:
    """The column as Arrow holds it, and the word for `_unpack`."""
    if name == "at":
        return pa.array(np.rint(column * MICRO).astype(np.int64)), "micro"
    if column.dtype == np.int64:
        return pa.array(column), ""
    if column.dtype == np.float64:
        return _pack_floats(column)
    if name == "aux":
        return pa.array([None if each is None else json.dumps(finite(each)) for each in column], pa.string()), "json"
    if name == "digest":
        return _pack_digests(column)
    return pa.array(column, pa.string()), ""


def _pack_floats(column: Column) -> tuple[pa.Array, str]:
    """Whole microseconds or single precision where that is exact to the bit."""
    with np.errstate(all="ignore"):
        whole, single = np.rint(column * MICRO), column.astype(np.float32)
        if np.all(np.abs(whole) < 2**53) and _same((micro := whole.astype(np.int64)) / MICRO, column):
            return pa.array(micro), "micro"
    return (pa.array(single), "single") if _same(single.astype(np.float64), column) else (pa.array(column), "")


def _same(one: Column, other: Column) -> bool:
    return bool(np.array_equal(one.view(np.int64), other.view(np.int64)))


def _pack_digests(column: Column) -> tuple[pa.Array, str]:
    """Hexadecimal digests of one length as bytes; anything else as text."""
    text, length = "".join(column), len(column[0]) if len(column) else 0
    if length == 0 or length % 2 or set(map(len, column)) != {length} or not _HEX.issuperset(text):
        return pa.array(column, pa.string()), ""
    raw = pa.py_buffer(bytes.fromhex(text))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(length // 2), len(column), [None, raw]), "hex"


def _read(content: Column, packing: dict[str, str], kind: Any, start: int) -> dict[str, Column]:
    """The columns of a table, in the log's order."""
    read = pq.read_table(pa.BufferReader(pa.py_buffer(content)), use_threads=False, pre_buffer=False)
    names = [*kind._fields, *([] if "position" in kind._fields else ["position"])]
    columns = {each: _unpack(read[each].combine_chunks(), packing[each]) for each in names}
    order = np.argsort(columns["position"], kind="stable")
    columns = {each: column[order] for each, column in columns.items()}
    if "position" in kind._fields:
        columns["position"] = columns["position"] + start
    else:
        del columns["position"]
    if kind is not _Others:
        for name, dtype in dtypes(kind).items():
            if columns[name].dtype != dtype:
                raise TypeError(f"column {name} holds {columns[name].dtype}")
    return columns


def _unpack(array: pa.Array, how: str) -> Column:
    match how:
        case "micro":
            return np.asarray(array.to_numpy(zero_copy_only=False) / MICRO)
        case "single":
            return np.asarray(array.to_numpy(zero_copy_only=False), np.float64)
        case "json":
            return _unpack_aux(array)
        case "hex":
            return _unpack_digests(array)
    return np.asarray(array.to_numpy(zero_copy_only=False))


def _unpack_aux(array: pa.Array) -> Column:
    if array.null_count == len(array):
        return np.full(len(array), None, np.object_)
    values = json.loads("[" + ",".join(array.fill_null("null").to_pylist()) + "]")
    for each in values:
        if each is not None and not all(type(value) is float and math.isfinite(value) for value in each.values()):
            each.update({name: float(value) for name, value in each.items()})
    return _array(values, np.object_)


def _unpack_digests(array: pa.Array) -> Column:
    if not len(array):
        return np.empty(0, np.object_)
    width = array.type.byte_width
    raw = array.buffers()[1][array.offset * width : (array.offset + len(array)) * width]
    text = np.frombuffer(raw.to_pybytes().hex().encode(), f"S{2 * width}")
    return text.astype(f"U{2 * width}").astype(np.object_)
