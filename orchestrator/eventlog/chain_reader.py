"""Reads one log's segments, then the groups behind them, and says what of them is damaged, missing or inserted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow.compute as pc

from orchestrator.eventlog.compactor import Segment, add_group, part_of, segment_in, segment_key, segments_folder
from orchestrator.eventlog.facts import REGISTRY
from orchestrator.eventlog.log_writer import groups_folder
from orchestrator.eventlog.tables import LogPart, Rows
from outer.journal.chain import SEGMENT_ROWS, Chain, ChainLink, identity
from outer.journal.framing import Damaged
from outer.journal.object_store import Objects

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
