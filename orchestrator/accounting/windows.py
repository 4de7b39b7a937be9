"""The newest steps of every learner incarnation, in columns: those whose fate is open, and those still needed.

All incarnations' steps are in one flat table, sorted by incarnation and step, so that folds compute over all of them at
once. Older steps are trimmed; their tokens and seconds stay in the running totals. A slot is the number of an
incarnation among those with a window; it is given again once the incarnation is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.eventlog.block import NONE, Adoptions, Block, Floats, Ints, Key, Steps
from outer.protocol.facts import FactsLost, SyncerStarted

OVERWRITING = ("bootstrap", "overwrite")  # modes of adoption that reset a fragment's counters
PENDING = 0  # the fate of a step that has none yet
_BITS = 40  # a step number and a position have fewer
MOST = (1 << _BITS) - 1  # no step number is larger
_OTHER_WRITERS = ("syncer", "orchestrator", "chaos")  # they take no steps


@dataclass
class StepTable:
    """Steps, by slot and ascending step; arrays of [n]."""

    slot: Ints
    step: Ints
    at: Floats  # Unix seconds
    seconds: Floats
    waited_s: Floats
    waited_for: Ints  # indexes StepWindows.words
    tokens: Ints
    span: Ints
    sequence: Ints
    position: Ints  # in the whole log
    tokens_upto: Ints  # of the incarnation, this step included
    clock_upto: Floats  # the same of seconds + waited_s
    fate: NDArray[np.uint8]  # PENDING, or as orchestrator/accounting/ledger.py says

    def __len__(self) -> int:
        return len(self.step)

    def part(self, which: slice | NDArray[Any]) -> StepTable:
        """Some of the rows: as views for a slice."""
        return StepTable(*(column[which] for column in vars(self).values()))


class Window:
    """One incarnation's steps in the window, as views that hold until the windows take the next block."""

    def __init__(self, rows: StepTable, tokens_before: int, clock_before: float) -> None:
        self.rows = rows
        self.tokens_before = tokens_before  # of the steps that were trimmed
        self.clock_before = clock_before

    def inside(self, after: int, upto: int) -> slice:
        """The rows of the steps (after, upto]."""
        first, last = np.searchsorted(self.rows.step, (after, upto), "right").tolist()
        return slice(first, max(first, last))


@dataclass
class Grouped:
    """A block's steps and adoptions in the order of their slots, each slot's in the log's order."""

    steps: Steps
    step_slots: Ints
    adoptions: Adoptions
    adoption_slots: Ints
    overwrites: NDArray[np.bool_]  # whether the adoption's mode is one of OVERWRITING


@dataclass
class StepWindows:
    """A fold that keeps every incarnation's newest steps and what it adopted last.

    A step that does not ascend is not taken in. Books trim what is settled (`trim`) and drop incarnations (`drop`);
    both take effect with the next block, so that folds which come after the books still see the rows.
    """

    slots: dict[Key, int] = field(default_factory=dict)
    rows: StepTable = field(default_factory=lambda: _table(0))
    words: list[str] = field(default_factory=lambda: [""])  # of Table.waited_for
    fragments: int = 0  # the width of the tables by fragment
    # By slot:
    wiped: Ints = field(default_factory=lambda: np.zeros((0, 0), np.int64))  # [slots, fragments] after_step of the
    # newest adoption that overwrote the fragment; NONE: none did
    version: Ints = field(default_factory=lambda: np.zeros((0, 0), np.int64))  # [slots, fragments] adopted last, NONE
    newest: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # the last step, NONE
    count: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # steps, trimmed ones included
    tokens: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # of these
    clock: Floats = field(default_factory=lambda: np.zeros(0))  # of these, seconds + waited_s
    # Of the newest block:
    fresh: list[int] = field(default_factory=list)  # slots that were given in it
    of_source: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # by Block.sources, the slot; NONE
    grouped: Grouped | None = None
    _trim: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    _dropped: list[Key] = field(default_factory=list)
    _free: list[int] = field(default_factory=list)
    _place: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # slot and step of each row in one number
    _when: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # slot and position of each row

    def take(self, block: Block) -> None:
        self.forget()
        self._admit(block)
        self.grouped = self._group(block)
        self._adopt(self.grouped)
        self._append(block, self.grouped)
        self._index()

    # -------------------------------------------------------------- one incarnation

    def __contains__(self, key: Key) -> bool:
        return key in self.slots

    def __iter__(self) -> Iterator[Key]:
        return iter(self.slots)

    def __getitem__(self, key: Key) -> Window:
        """An incarnation's window. Raises KeyError."""
        slot = self.slots[key]
        first, last = np.searchsorted(self.rows.slot, (slot, slot + 1)).tolist()
        rows = self.rows.part(slice(first, last))
        if not len(rows):
            return Window(rows, int(self.tokens[slot]), float(self.clock[slot]))
        before = int(rows.tokens_upto[0] - rows.tokens[0])
        return Window(rows, before, float(rows.clock_upto[0] - rows.seconds[0] - rows.waited_s[0]))

    # -------------------------------------------------------------- many at once

    def upto(self, slots: Ints, steps: Ints) -> Ints:
        """By pair, the row after the incarnation's last step that is not beyond this one."""
        return np.searchsorted(self._place, (slots << _BITS) + np.clip(steps, -1, MOST), "right")

    def by(self, slots: Ints, positions: Ints) -> Ints:
        """By pair, the row after the incarnation's last step that the log has before this position."""
        return np.searchsorted(self._when, (slots << _BITS) + positions, "left")

    def tokens_in(self, first: Ints, last: Ints) -> Ints:
        """By pair, the tokens of rows first to last, of one incarnation."""
        totals = np.concatenate([[0], np.cumsum(self.rows.tokens)])
        return np.where(last > first, totals[np.maximum(first, last)] - totals[first], 0)

    def fit(self, table: NDArray[Any], fill: Any, width: int | None = None) -> NDArray[Any]:
        """Another fold's table by slot, [slots] or [slots, width]: grown to today's size, `fill` in fresh slots."""
        shape = (len(self.newest),) if width is None else (len(self.newest), width)
        if table.shape != shape:
            table = _grown(table, shape, fill)
        table[self.fresh] = fill
        return table

    def trim(self, slots: Ints, steps: Ints) -> None:
        """The incarnation's steps up to this one are settled and no longer needed."""
        self._trim[slots] = np.maximum(self._trim[slots], steps)

    def drop(self, key: Key) -> None:
        """The incarnation has ended, and all its steps are settled."""
        self._dropped.append(key)

    # -------------------------------------------------------------- a block

    def forget(self) -> None:
        """Trim and drop what was asked for. `take` begins with it."""
        for key in self._dropped:
            slot = self.slots.pop(key)
            self._trim[slot] = MOST
            self._free.append(slot)
        self._dropped = []
        keep = self.rows.step > self._trim[self.rows.slot]
        if not keep.all():
            self.rows = self.rows.part(keep)
            self._index()

    def _index(self) -> None:
        self._place = (self.rows.slot << _BITS) + self.rows.step
        self._when = (self.rows.slot << _BITS) + self.rows.position

    def _by_fragment(self, table: Ints) -> Ints:
        return self.fit(table, NONE, self.fragments)

    def _admit(self, block: Block) -> None:
        """Give slots to incarnations that stepped, adopted or lost facts for the first time."""
        self.fresh = []
        active = [block.sources[source] for source in np.union1d(block.steps.source, block.adoptions.source).tolist()]
        for _, event in block.others:
            if isinstance(event.fact, FactsLost):
                active.append((event.fact.writer, event.fact.incarnation))
            elif isinstance(event.fact, SyncerStarted):
                self.fragments = max(self.fragments, len(event.fact.sizes))
        for key in active:
            if key not in self.slots and key[0] not in _OTHER_WRITERS:
                slot = self._free.pop() if self._free else len(self.slots)
                self.slots[key] = slot
                self.fresh.append(slot)
        for column in (block.adoptions.fragment, block.commits.fragment):
            self.fragments = max(self.fragments, 1 + int(column.max(initial=NONE)))
        size = max(len(self.newest), 1 + max(self.fresh, default=-1))
        self.newest = _grown(self.newest, (size,), NONE)
        self.newest, self._trim = self.fit(self.newest, NONE), self.fit(self._trim, NONE)
        self.count, self.tokens, self.clock = self.fit(self.count, 0), self.fit(self.tokens, 0), self.fit(self.clock, 0)
        self.wiped, self.version = self._by_fragment(self.wiped), self._by_fragment(self.version)
        self.of_source = np.array([self.slots.get(key, NONE) for key in block.sources], np.int64)

    def _group(self, block: Block) -> Grouped:
        steps, adoptions = block.steps, block.adoptions
        slots, order = self._order(steps.source)
        adopting, adopted = self._order(adoptions.source)
        codes = [block.code(mode) for mode in OVERWRITING]
        return Grouped(
            Steps._make(column[order] for column in steps),
            slots,
            adoptions := Adoptions._make(column[adopted] for column in adoptions),
            adopting,
            np.isin(adoptions.mode, codes),
        )

    def _order(self, sources: Ints) -> tuple[Ints, Ints]:
        """The slots of these rows in ascending order, and the order."""
        slots = self.of_source[sources]
        order = np.argsort(slots.astype(np.int16) if len(self.newest) < 2**15 else slots, kind="stable")
        return slots[order], order

    def _adopt(self, grouped: Grouped) -> None:
        adopted, slots = grouped.adoptions, grouped.adoption_slots
        over = grouped.overwrites
        np.maximum.at(self.wiped, (slots[over], adopted.fragment[over]), adopted.after_step[over])
        self.version[slots, adopted.fragment] = adopted.version  # of several, NumPy keeps the last

    def _append(self, block: Block, grouped: Grouped) -> None:
        steps, slots = grouped.steps, grouped.step_slots
        if not len(slots):
            return
        words = {block.names[code] for code in np.unique(steps.waited_for).tolist()}
        self.words += sorted(words - {*self.words})
        codes = np.array([self.words.index(name) if name in words else 0 for name in block.names], np.int64)
        ascends = np.empty(len(slots), bool)
        tokens, clock = np.empty(len(slots), np.int64), np.empty(len(slots))
        for slot, first, last in _runs(slots):
            numbers = steps.step[first:last]
            before = np.maximum.accumulate(np.concatenate([self.newest[slot : slot + 1], numbers[:-1]]))
            here = ascends[first:last] = numbers > before
            said = np.where(here, steps.tokens[first:last], 0)
            spent = np.where(here, steps.seconds[first:last] + steps.waited_s[first:last], 0.0)
            tokens[first:last] = self.tokens[slot] + np.cumsum(said)
            clock[first:last] = np.cumsum(np.concatenate([self.clock[slot : slot + 1], spent]))[1:]
            self.newest[slot] = max(self.newest[slot], numbers.max())
            self.count[slot] += np.count_nonzero(here)
            self.tokens[slot], self.clock[slot] = tokens[last - 1], clock[last - 1]
        new = StepTable(
            slots,
            steps.step,
            steps.at,
            steps.seconds,
            steps.waited_s,
            codes[steps.waited_for],
            steps.tokens,
            steps.span,
            steps.sequence,
            steps.position,
            tokens,
            clock,
            np.zeros(len(slots), np.uint8),
        )
        new = new if ascends.all() else new.part(ascends)
        order = np.argsort(np.concatenate([self.rows.slot, new.slot]), kind="stable")
        columns: Any = (np.concatenate([column, getattr(new, name)])[order] for name, column in vars(self.rows).items())
        self.rows = StepTable(*columns)


def assign(at: Ints, first: Ints, last: Ints, values: Ints) -> None:
    """Write the value of each range [first, last) into it; of several, the first range's."""
    sizes = np.maximum(last - first, 0)
    ends = np.cumsum(sizes)
    rows = np.repeat(first - ends + sizes, sizes) + np.arange(int(ends[-1]) if len(ends) else 0)
    at[rows[::-1]] = np.repeat(values, sizes)[::-1]  # of several, NumPy keeps the last


def _table(size: int) -> StepTable:
    kinds: dict[str, Any] = {"Ints": np.int64, "Floats": np.float64}
    return StepTable(*(np.zeros(size, kinds.get(str(each.type), np.uint8)) for each in fields(StepTable)))


def _grown(table: NDArray[Any], shape: tuple[int, ...], fill: Any) -> NDArray[Any]:
    """A table with more rows or columns."""
    grown = np.full(shape, fill, table.dtype)
    grown[tuple(slice(0, size) for size in table.shape)] = table
    return grown


def _runs(slots: Ints) -> Iterator[tuple[int, int, int]]:
    """(slot, first row, row after the last) of each run of equal slots."""
    first = np.flatnonzero(np.diff(slots, prepend=-1)).tolist()
    return zip(slots[first].tolist(), first, [*first[1:], len(slots)], strict=True)
