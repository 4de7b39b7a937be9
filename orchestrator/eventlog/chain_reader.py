"""Reads one log's segments, then the groups behind them, and says what of them is damaged, missing or inserted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from orchestrator.eventlog.block import Block, Ints, Key, Rows
from orchestrator.eventlog.compactor import add_group, segment_key, segments_folder
from orchestrator.eventlog.events import Unknown
from orchestrator.eventlog.log_writer import groups_folder
from orchestrator.eventlog.segment_codec import Segment, decode
from outer.journal.chain import SEGMENT_ROWS, Chain, ChainLink, identity
from outer.journal.framing import Damaged
from outer.journal.object_store import Objects
from outer.protocol.facts import FactsLost
from outer.protocol.recorder import INCARNATIONS_KEPT

DAMAGE_MAX = 100  # messages kept
LISTED = 64  # polls: one of so many lists the store

T = TypeVar("T")


@dataclass
class Findings:
    """The damage of a log, in words; more than DAMAGE_MAX of a kind are left out."""

    unreadable: list[str] = field(default_factory=list)  # objects whose bytes are not as they were written
    unlinked: list[str] = field(default_factory=list)  # objects that are missing, inserted or swapped
    numbering: Numbering = field(default_factory=lambda: Numbering())
    unknown: int = 0  # facts of kinds that this version does not know

    def note(self, to: list[str], what: str) -> None:
        if what not in to and len(to) < DAMAGE_MAX:
            to.append(what)

    @property
    def damage(self) -> list[str]:
        return [*self.unreadable, *self.unlinked, *self.numbering.broken()]


Decoded = tuple[Segment, Block]


def decoded(store: Objects, log: str, number: int) -> Decoded | None:
    """A segment and its rows; None: there is no such object. Raises Damaged and OSError."""
    try:
        return decode(store.read(segment_key(log, number)))
    except FileNotFoundError:
        return None


class ChainReader:
    """`poll` gives what is new in one log, as blocks by its own rows. Survives a group that becomes part of a segment
    between two polls.
    """

    def __init__(self, store: Objects, log: str, findings: Findings) -> None:
        self._store, self.log, self.findings = store, log, findings
        self.segments = 0  # read so far
        self.seal = ""  # of the last
        self.rows = 0  # read so far
        self._run, self._link = "", ChainLink()  # of the last group that was read, itself or in a segment
        self._polls = 0
        self._overtaken = False  # whether groups have become a segment while they were read
        self.segment: Callable[[int], Decoded | None] = partial(decoded, store, log)

    def poll(self, quick: bool = False) -> Iterator[Block]:
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

    def _segments(self, all_of_them: bool = False) -> Iterator[Block]:
        there = (
            [int(name.rpartition("/")[2]) for name in self._store.names(segments_folder(self.log))]
            if all_of_them
            else []
        )
        while True:
            try:
                found = self.segment(self.segments)
            except Damaged as error:
                self.findings.note(self.findings.unreadable, f"segment {self.segments} of {self.log}: {error}")
                self.segments, self.seal = self.segments + 1, ""
                continue
            if found is None:
                later = [number for number in there if number > self.segments]
                if not later:
                    return
                self._note_missing(self.segments, later[0])
                continue
            segment, block = found
            name = f"segment {segment.number} of {self.log}"
            if (segment.log, segment.number) != (self.log, self.segments):
                self.findings.note(
                    self.findings.unlinked, f"{name} is at the place of segment {self.segments} of {self.log}"
                )
            if segment.before != self.seal and (self.seal or not self.segments):
                self.findings.note(self.findings.unlinked, f"{name} does not follow the segment before it")
            for each in segment.damage:
                self.findings.note(self.findings.unreadable, f"{self.log}: {each}")
            self.segments, self.seal = self.segments + 1, segment.seal
            if block.stop <= self.rows:
                continue  # its groups were read
            self._run, self._link = segment.run, ChainLink(segment.last, segment.group)
            yield self._checked(block)

    def _read(self, number: int) -> bytes | None:
        try:
            return self._store.read(segment_key(self.log, number))
        except FileNotFoundError:
            return None

    def _note_missing(self, first: int, later: int) -> None:
        for number in range(first, later):
            self.findings.note(self.findings.unlinked, f"segment {number} of {self.log} is missing")
        self.segments, self.seal = later, ""

    # -------------------------------------------------------------- groups

    def _groups(self, quick: bool) -> Iterator[Block]:
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
            if damage and self._read(self.segments) is not None:
                break  # what is missing has become a segment
            try:
                add_group(rows, group)
            except Damaged as error:
                damage.append(str(error))
            link = ChainLink(group.position, group.seal)
            if len(rows) >= SEGMENT_ROWS:
                yield self._taken(rows, link)
                rows = Rows(self.rows)
        self._overtaken = bool(damage) and self._read(self.segments) is not None
        if len(rows):
            yield self._taken(rows, link)
        self._link = link
        if not self._overtaken:
            for each in damage:
                of = (
                    self.findings.unlinked
                    if "it follows" in each or "it is missing" in each
                    else self.findings.unreadable
                )
                self.findings.note(of, f"{self.log}: {each}")

    def _taken(self, rows: Rows, link: ChainLink) -> Block:
        self._link = link
        return self._checked(rows.block())

    def _checked(self, block: Block) -> Block:
        """The rows that were not read before, their numbers checked."""
        if block.start < self.rows:
            block = rows_from(block, self.rows)
        self.rows = block.stop
        self.findings.unknown += sum(type(each.event.fact) is Unknown for each in block.others)
        self.findings.numbering.take(block)
        return block


def rows_from(block: Block, start: int) -> Block:
    """The rows from position `start` on."""
    commits, parts = block.commits, block.contributions
    dropped = int(np.count_nonzero(commits.position < start))
    first = int(commits.first[dropped])
    kept: Any = commits._replace(first=commits.first[:-1])
    return replace(
        block,
        start=start,
        rows=block.stop - start,
        steps=_masked(block.steps, block.steps.position >= start),
        adoptions=_masked(block.adoptions, block.adoptions.position >= start),
        commits=_masked(kept, commits.position >= start)._replace(first=commits.first[dropped:] - first),
        contributions=_masked(parts, slice(first, None))._replace(commit=parts.commit[first:] - dropped),
        others=tuple(each for each in block.others if each.position >= start),
    )


def _masked(table: T, rows: Any) -> T:
    columns: Any = table
    made: T = type(columns)(*(column[rows] for column in columns))
    return made


class Numbering:
    """Whether each writer's facts are numbered from 0 without a gap that no FactsLost names."""

    def __init__(self) -> None:
        self._last: dict[str, dict[int, int]] = defaultdict(dict)  # by writer and incarnation, the newest of each
        self._lost: dict[Key, list[tuple[int, int]]] = defaultdict(list)  # by writer and incarnation, as for `_last`
        self._gaps: dict[tuple[str, int, int, int], None] = {}  # (writer, incarnation, first, last)
        self._doubled: list[str] = []

    def broken(self) -> list[str]:
        """Return the damage in words."""
        gaps = [
            f"{who} {which} goes from fact {first - 1} to fact {last + 1}" for who, which, first, last in self._gaps
        ]
        return self._doubled + gaps

    def take(self, block: Block) -> None:
        for _, event in block.others:
            if isinstance(lost := event.fact, FactsLost):
                self._lost[lost.writer, lost.incarnation].append((lost.first, lost.last))
                self._gaps = {
                    gap: None for gap in self._gaps if not self._excused(*gap)
                }  # told before, by another clock
        codes: dict[Key, int] = {key: code for code, key in enumerate(block.sources)}
        others = [
            (codes.setdefault((event.writer, event.incarnation), len(codes)), event.sequence, position)
            for position, event in block.others
        ]
        rare = np.array(others, np.int64).reshape(-1, 3).T
        tables = (block.steps, block.adoptions, block.commits)
        source, number, position = (
            np.concatenate([*columns, rare[place]])
            for place, columns in enumerate(zip(*((t.source, t.sequence, t.position) for t in tables), strict=True))
        )
        order = np.lexsort((position, source))
        source, number = source[order], number[order]
        bounds = np.flatnonzero(np.diff(source)) + 1
        keys = list(codes)
        for begin, numbers in zip([0, *bounds.tolist()], np.split(number, bounds), strict=True):
            if len(numbers):
                self._follow(keys[int(source[begin])], numbers)
        self._forget()

    def _follow(self, key: Key, numbers: Ints) -> None:
        writer, incarnation = key
        known = self._last[writer]
        last = known.get(incarnation, -1)
        whole = np.concatenate([[last], numbers])
        for place in np.flatnonzero(np.diff(whole) != 1).tolist():
            before, after = int(whole[place]), int(whole[place + 1])
            gap = (writer, incarnation, before + 1, after - 1)
            if after <= before and len(self._doubled) < DAMAGE_MAX:
                self._doubled.append(f"{writer} {incarnation} tells fact {after} after fact {before}")
            elif after > before and not self._excused(*gap) and len(self._gaps) < DAMAGE_MAX:
                self._gaps[gap] = None
        known[incarnation] = max(last, int(numbers.max()))

    def _forget(self) -> None:
        for writer, known in self._last.items():
            while len(known) > INCARNATIONS_KEPT:
                del known[(oldest := min(known))]
                self._lost.pop((writer, oldest), None)

    def _excused(self, writer: str, incarnation: int, first: int, last: int) -> bool:
        """Whether the log says of each of these facts that it is lost."""
        for begin, end in sorted(self._lost.get((writer, incarnation), ())):
            if begin <= first <= end:
                first = end + 1
        return first > last
