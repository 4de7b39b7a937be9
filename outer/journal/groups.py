"""A group of the chain: facts in the log's order, with the journal's records inline at their place among them.

    items   [[writer, incarnation, first number, [[at, kind, values], ...]],        facts of one writer
             {epoch, sequence, number, at, kind, record: values, arrays: 2}, ...]   a record; how many arrays it has
    fields  {kind: [names]}   of the values of facts, and of dataclasses in them
    row     facts before this group in the whole log
    rows    facts in this group

Facts are written by the names of their types: a reader knows what they mean. A snapshot holds instead the state that
the records add up to, as `encode_replay` writes it: with it the journal can remove old groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from outer.journal.values import Stored
from outer.protocol.coverage import Coverage, Mark
from outer.protocol.facts import Committed, FactsLost, Finished, Record
from outer.protocol.fragments import Fragment
from outer.protocol.recorder import Numbered, Recorded, runs_of
from outer.protocol.recovery import Entry, JournalReplay, Recovered
from outer.protocol.sample_spans import Borrowed, SpanPool

FORMAT = 2
SYNCER = "syncer"  # writes the records
FACTS, OPENING, SNAPSHOT = "facts", "opening", "snapshot"

Arrays = Sequence[NDArray[Any]]  # a fragment's new value: parameters, then the outer optimizer's state
Named = dict[str, tuple[str, ...]]  # names of fields by kind
KINDS: dict[str, type[Record]] = {kind.__name__: kind for kind in get_args(Record)}
_ADAPTERS: dict[str, TypeAdapter[Any]] = {name: TypeAdapter(kind) for name, kind in KINDS.items()}


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
class JournalCut:
    """Everything that is durable at one point. A new journal could start from it."""

    state: dict[str, Any]  # of the records: encode_replay
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

    def runs(self) -> list[Recorded]:
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


def runs(item: Item) -> Sequence[Recorded]:
    """Up to which fact of whom this item brings the log."""
    if isinstance(item, Logged):
        return [Recorded(SYNCER, item.entry.epoch, item.number)]
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
    if isinstance(value, np.generic):
        return _plain(value.item(), named)
    return values(value, named) if is_dataclass(value) else value


@cache
def _fields(kind: type[Any]) -> tuple[tuple[str, ...], Callable[[Any], Iterable[Any]]]:
    names = tuple(each.name for each in fields(kind))
    return names, attrgetter(*names) if len(names) > 1 else lambda fact: [getattr(fact, name) for name in names]


# ------------------------------------------------------------------ reading


def decode_entry(plain: dict[str, Any]) -> Entry:
    """Decode an entry. Raises ValueError (pydantic's is one), KeyError or TypeError for anything else."""
    record = _ADAPTERS[plain["kind"]].validate_python(plain["record"])
    return Entry(int(plain["epoch"]), int(plain["sequence"]), record)


def _stored(named: Sequence[Any] | None) -> Stored | None:
    return None if named is None else Stored(*named)


def _entry(item: Mapping[str, Any], named: Mapping[str, Sequence[str]]) -> Entry:
    record = dict(zip(named[item["kind"]], item["record"], strict=True))
    if "participants" in record:
        record["participants"] = [dict(zip(named["Participant"], each, strict=True)) for each in record["participants"]]
    return decode_entry({**item, "record": record})


def _runs(item: Any, named: Mapping[str, Sequence[str]]) -> Iterable[Recorded]:
    if isinstance(item, dict):
        yield Recorded(SYNCER, item["epoch"], item["number"])
        return
    writer, incarnation, first, facts = item
    for _, kind, told in facts:
        if kind == FactsLost.__name__:
            lost = dict(zip(named[kind], told, strict=True))
            yield Recorded(lost["writer"], lost["incarnation"], lost["last"])
    yield Recorded(writer, incarnation, first + len(facts) - 1)


# ------------------------------------------------------------------ the records' state


@dataclass(frozen=True)
class _Incarnation:
    """The saved state of one incarnation."""

    learner: str
    number: int
    batch_size: int | None
    merged_step: dict[int, int]
    covered: list[tuple[int, int, int, int]]  # (from step, its tokens, to step, its tokens)


@dataclass(frozen=True)
class SavedState:
    """The state of a JournalReplay."""

    epoch: int
    due: int
    versions: list[int]
    digests: list[str]
    tokens_committed: int
    finished: dict[str, Any] | None
    newest: dict[str, int]
    incarnations: list[_Incarnation]
    next_sample: int
    next_span: int
    returned: list[tuple[int, int]]
    borrowed: list[Borrowed]
    set_aside: int
    suspects: list[tuple[int, int]]
    clock: int
    whole: bool


_STATE = TypeAdapter(SavedState)


def encode_replay(replay: JournalReplay) -> dict[str, Any]:
    """The state of a replay as JSON values."""
    found = replay.found
    keys = sorted(found.batch_sizes.keys() | found.merged_step.keys() | found.coverage.keys())
    each = [
        _Incarnation(
            *key,
            found.batch_sizes.get(key),
            found.merged_step.get(key, {}),
            [(*begin, *end) for begin, end in found.coverage[key].intervals] if key in found.coverage else [],
        )
        for key in keys
    ]
    state = SavedState(
        replay.epoch,
        replay.due,
        found.versions,
        found.digests,
        found.tokens_committed,
        None if found.finished is None else asdict(found.finished),
        found.incarnations,
        each,
        *found.spans.state(),
        found.set_aside,
        list(found.suspects),
        found.clock,
        found.whole,
    )
    return dict(_STATE.dump_python(state, mode="json"))


def decode_replay(values: dict[str, Any]) -> JournalReplay:
    """Decode a replay. Raises ValueError (pydantic's is one), KeyError or TypeError for anything else."""
    state = _STATE.validate_python(values)
    found = Recovered(
        list(state.versions),
        list(state.digests),
        state.tokens_committed,
        SpanPool.of(state.next_sample, state.next_span, state.returned, state.borrowed),
        incarnations=dict(state.newest),
        finished=None if state.finished is None else Finished(**state.finished),
        set_aside=state.set_aside,
        clock=state.clock,
        whole=state.whole,
    )
    found.suspects.extend(state.suspects)
    for each in state.incarnations:
        key = (each.learner, each.number)
        if each.batch_size is not None:
            found.batch_sizes[key] = each.batch_size
        if each.merged_step:
            found.merged_step[key] = dict(each.merged_step)
        if each.covered:
            coverage = found.coverage[key] = Coverage()
            for begin, begin_tokens, end, end_tokens in each.covered:
                coverage.add(Mark(begin, begin_tokens), Mark(end, end_tokens))
    return JournalReplay(found, state.epoch, state.due)
