"""What a group of the chain says: facts in the log's order, the journal's records inline at their place among them.

    items   [[writer, incarnation, first number, [[at, kind, values], ...]],        facts of one writer
             {epoch, sequence, number, at, kind, record: values, arrays: 2}, ...]   a record; how many arrays it has
    fields  {kind: [names]}   of the values of facts, and of dataclasses in them
    row     facts before this group in the whole log
    rows    facts in this group

Facts are written by the names of their types: a reader knows what they mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple

from numpy.typing import NDArray

from outer.journal import record_codec
from outer.journal.values import Stored
from outer.protocol.facts import Committed, FactsLost
from outer.protocol.fragments import Fragment
from outer.protocol.recorder import Numbered, Run, runs_of
from outer.protocol.recovery import Entry

FORMAT = 2
SYNCER = "syncer"  # writes the records
FACTS, OPENING, SNAPSHOT = "facts", "opening", "snapshot"

Arrays = Sequence[NDArray[Any]]  # a fragment's new value: parameters, then the outer optimizer's state
Named = dict[str, tuple[str, ...]]  # names of fields by kind


class FactRun(NamedTuple):
    """Facts of one writer, numbered without a gap."""

    writer: str
    incarnation: int
    facts: Sequence[Numbered]


class Logged(NamedTuple):
    """A record with its value, as the syncer's fact of this number."""

    entry: Entry
    number: int
    at: float  # Unix seconds
    arrays: Arrays
    stored: Stored | None = None  # its value, if that is an object of its own


Item = FactRun | Logged


class Value(NamedTuple):
    """A fragment's value as of a commit: parameters, then the leaves of the outer state."""

    version: int
    arrays: list[NDArray[Any]]
    stored: Stored | None = None  # where the arrays are, if not here

    def described(self, fragment: int) -> list[Any]:
        """For a snapshot's header."""
        return [fragment, self.version, len(self.arrays), *([] if self.stored is None else [list(self.stored)])]


@dataclass(frozen=True)
class Cut:
    """Everything that is durable at one point. A new journal could start from it."""

    state: dict[str, Any]  # of the records, see record_codec
    values: Mapping[int, Value]  # by fragment; a fragment without one never committed

    def part(
        self,
        epoch: int,
        snapshot: int,
        fragments: Sequence[Fragment] = (),
        initial: Mapping[int, NDArray[Any]] | None = None,
        left_out: Mapping[str, str] | None = None,
        apart: Sequence[Mapping[str, Any]] = (),
    ) -> tuple[dict[str, Any], list[NDArray[Any]]]:
        """(header, arrays) of the syncer's part of a checkpoint.

        `initial`: values of fragments without a commit. `left_out`: leaves that are in no fragment, by name.
        `apart`: the parts of shards, where these have all values.
        """
        values = {} if apart else self.values
        described = [[fragment, value.version, len(value.arrays)] for fragment, value in sorted(values.items())]
        arrays = [array for _, value in sorted(values.items()) for array in value.arrays]
        first = {fragment: theta for fragment, theta in (initial or {}).items() if fragment not in self.values}
        arrays += [theta for _, theta in sorted(first.items())]
        tensors = [
            [
                [
                    each.name,
                    list(each.shape),
                    each.dtype,
                    each.kind,
                    *((each.leaf, each.axis, each.start) if each.cut else ()),
                ]
                for each in fragment.tensors
            ]
            for fragment in fragments
        ]
        header = {"epoch": epoch, "snapshot": snapshot, "kept": self.state, "values": described}
        header |= {"tensors": tensors, "left_out": dict(left_out or {}), "initial": sorted(first)}
        return header | {"apart": [[each["part"], each["seal"]] for each in apart]}, arrays


@dataclass
class Group:
    """One object of the chain."""

    position: int
    header: dict[str, Any]
    arrays: list[NDArray[Any]]
    seal: str

    @property
    def row(self) -> int:
        return int(self.header.get("row", 0))

    @property
    def rows(self) -> int:
        return int(self.header.get("rows", 0))

    @property
    def next_row(self) -> int:
        return self.row + self.rows

    def entries(self) -> list[Entry]:
        """The records. Raises ValueError, KeyError or TypeError for anything else."""
        named = self.header.get("fields", {})
        return [_entry(item, named) for item in self.header.get("items", ()) if isinstance(item, dict)]

    def runs(self) -> list[Run]:
        """Up to which fact of whom this group brings the log."""
        return [run for item in self.header.get("items", ()) for run in _runs(item, self.header["fields"])]

    def values(self) -> list[tuple[int, Value]]:
        """(fragment, value) of the commits in the group, newest first; for a snapshot, of all its values."""
        arrays, values = iter(self.arrays), []
        written = [each for each in self.header.get("items", ()) if "arrays" in each]
        for entry, item in zip(self.entries(), written, strict=True):
            value, stored = [next(arrays) for _ in range(item["arrays"])], _stored(item.get("stored"))
            if (value or stored) and isinstance(entry.record, Committed):
                values.append((entry.record.fragment, Value(entry.record.syncer_step, value, stored)))
        for fragment, version, count, *stored in self.header.get("values", []):
            value = [next(arrays) for _ in range(count)]
            values.append((fragment, Value(version, value, _stored(stored[0] if stored else None))))
        return values[::-1]


# ------------------------------------------------------------------ writing


def encode(items: Iterable[Item], arrays: bool = True) -> dict[str, Any]:
    """The header's part for these items. `arrays`: whether the values of records are written beside it."""
    named: Named = {}
    written: list[Any] = []
    rows = 0
    for item in items:
        if isinstance(item, Logged):
            written.append(_record(item, named, arrays))
            rows += 1
        else:
            facts = [[round(at, 6), type(fact).__name__, values(fact, named)] for _, at, fact in item.facts]
            written.append([item.writer, item.incarnation, item.facts[0][0], facts])
            rows += len(facts)
    return {"items": written, "fields": named, "rows": rows}


def runs(item: Item) -> Sequence[Run]:
    """Up to which fact of whom this item brings the log."""
    if isinstance(item, Logged):
        return [Run(SYNCER, item.entry.epoch, item.number)]
    return runs_of(item.writer, item.incarnation, item.facts)


def _record(item: Logged, named: Named, arrays: bool) -> dict[str, Any]:
    entry = item.entry
    return {
        "epoch": entry.epoch,
        "sequence": entry.sequence,
        "number": item.number,
        "at": round(item.at, 6),
        "kind": type(entry.record).__name__,
        "record": values(entry.record, named),
        "arrays": len(item.arrays) if arrays else 0,
        **({} if item.stored is None else {"stored": list(item.stored)}),
    }


def values(fact: Any, named: Named) -> list[Any]:
    """The values of a dataclass's fields in order, as JSON has them; numbers that are not finite by their names."""
    kind: Any = type(fact)
    names, read = _fields(kind)
    named[kind.__name__] = names
    return [value if type(value) in _PLAIN else _plain(value, named) for value in read(fact)]


_PLAIN = frozenset({int, str, bool, type(None)})


def _plain(value: Any, named: Named) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(float(value))
    if isinstance(value, (list, tuple)):
        return [_plain(each, named) for each in value]
    if isinstance(value, dict):
        return {name: _plain(each, named) for name, each in value.items()}
    return values(value, named) if is_dataclass(value) else value


@cache
def _fields(kind: type[Any]) -> tuple[tuple[str, ...], Callable[[Any], Iterable[Any]]]:
    names = tuple(each.name for each in fields(kind))
    return names, attrgetter(*names) if len(names) > 1 else lambda fact: [getattr(fact, name) for name in names]


# ------------------------------------------------------------------ reading


def _stored(named: Sequence[Any] | None) -> Stored | None:
    return None if named is None else Stored(*named)


def _entry(item: Mapping[str, Any], named: Mapping[str, Sequence[str]]) -> Entry:
    record = dict(zip(named[item["kind"]], item["record"], strict=True))
    if "participants" in record:
        record["participants"] = [dict(zip(named["Participant"], each, strict=True)) for each in record["participants"]]
    return record_codec.decode_entry({**item, "record": record})


def _runs(item: Any, named: Mapping[str, Sequence[str]]) -> Iterable[Run]:
    if isinstance(item, dict):
        yield Run(SYNCER, item["epoch"], item["number"])
        return
    writer, incarnation, first, facts = item
    for _, kind, told in facts:
        if kind == FactsLost.__name__:
            lost = dict(zip(named[kind], told, strict=True))
            yield Run(lost["writer"], lost["incarnation"], lost["last"])
    yield Run(writer, incarnation, first + len(facts) - 1)
