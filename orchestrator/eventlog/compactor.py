"""Turns groups of a chain into the segments of its log: files of tables, then the manifest that names them.

    log/LOG/TABLE/NUMBER-DIGEST.parquet    the rows of one of the tables (tables.py)
    log/LOG/segments/NUMBER                the manifest; with it the segment is there

A manifest names each file with its SHA-256, and the seal of the manifest before. Its seal is the SHA-256 of what it
says. Files that no manifest names are those of a compaction that did not end.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import pyarrow as pa

from learners.protocol.facts import Adopted, StepFinished
from orchestrator.eventlog import tables
from orchestrator.eventlog.events import Event, fact_of
from orchestrator.eventlog.tables import LogPart, Place, Rows
from outer.journal.chain import SEGMENT_ROWS, Segmented
from outer.journal.framing import Damaged
from outer.journal.groups import SYNCER, Group
from outer.journal.journal import StaleEpoch
from outer.journal.object_store import Objects
from outer.protocol.facts import Committed, Participant
from outer.protocol.recorder import Recorder

FORMAT = 3
_MANIFEST = re.compile(rb'\{"sha256": "([0-9a-f]{64})", "segment": (.*)\}\n', re.DOTALL)


@dataclass(frozen=True)
class File:
    """A table of a segment."""

    table: str
    name: str  # of the object
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Segment:
    """What a manifest says: the groups of one chain that the segment covers, and rows of its log."""

    log: str  # syncer | orchestrator | chaos
    run: str  # the chain's identity
    number: int  # from 0
    before: str  # seal of segment number - 1
    first: int  # positions in the chain, both included
    last: int
    group: str  # seal of the group at `last`
    row: int  # of the log, the first
    rows: int  # places of facts; fewer facts if some are lost
    writers: tuple[tuple[str, int, int], ...] = ()  # up to which fact of whom the log goes: (writer, incarnation, last)
    damage: tuple[str, ...] = ()  # groups that could not be read when the segment was made, in words
    files: tuple[File, ...] = ()
    seal: str = ""  # its own

    @property
    def stop(self) -> int:
        return self.row + self.rows


def segments_folder(log: str) -> str:
    return f"log/{log}/segments"


def segment_key(log: str, number: int) -> str:
    return f"{segments_folder(log)}/{number:09d}"


# ------------------------------------------------------------------ one segment


def manifest(segment: Segment) -> tuple[bytes, str]:
    """The content of a segment's manifest, and its seal."""
    told = {"format": FORMAT} | asdict(segment)
    del told["seal"]
    text = json.dumps(told)
    seal = hashlib.sha256(text.encode()).hexdigest()
    return f'{{"sha256": "{seal}", "segment": {text}}}\n'.encode(), seal


def segment_in(content: bytes) -> Segment:
    """The segment that a manifest describes; it names no objects but its own. Raises Damaged."""
    found = _MANIFEST.fullmatch(content)
    if found is None or hashlib.sha256(found[2]).hexdigest() != found[1].decode():
        raise Damaged("its checksum does not match its content")
    try:
        told = json.loads(found[2])
        if (version := told.pop("format")) != FORMAT:
            raise TypeError(f"it has format {version!r}, not {FORMAT}")
        lists = {
            "writers": tuple((str(who), int(which), int(last)) for who, which, last in told["writers"]),
            "damage": tuple(told["damage"]),
            "files": tuple(File(**file) for file in told["files"]),
        }
        segment = Segment(**told | lists, seal=found[1].decode())
        for file in segment.files:
            if file.table not in tables.SCHEMAS or file.name != _name(segment, file.table, file.sha256):
                raise ValueError(f"it has no file {file.name}")
        if not all(type(each) is int for each in (segment.number, segment.last, segment.row, segment.rows)):
            raise TypeError("a place is no number")
        return segment
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise Damaged(f"its checksum is right, but it is no manifest: {error}") from error


def part_of(store: Objects, segment: Segment) -> LogPart:
    """The rows of a segment. Raises Damaged, OSError."""
    return LogPart(segment.row, segment.rows, {file.table: _read(store, file) for file in segment.files})


def _read(store: Objects, file: File) -> pa.Table:
    try:
        content = store.read(file.name)
    except FileNotFoundError:
        raise Damaged(f"{file.name} is missing") from None
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise Damaged(f"the checksum of {file.name} does not match its content")
    try:
        return tables.read(file.table, content)
    except (LookupError, ValueError, OSError, pa.ArrowException) as error:
        raise Damaged(f"the checksum of {file.name} is right, but it holds no {file.table}: {error}") from error


def create(store: Objects, segment: Segment, part: LogPart) -> Segment:
    """Write a segment's files and manifest. Returns the segment that is then there, which another process may have made
    of the same rows, or of fewer. Raises StaleEpoch for more, ValueError for any other; OSError: call it again.
    """
    files = []
    for table, rows in part.tables.items():
        content = tables.write(table, rows)
        digest = hashlib.sha256(content).hexdigest()
        name = _name(segment, table, digest)
        try:
            store.create(name, [content])
        except FileExistsError:  # of a compaction that did not end
            if hashlib.sha256(store.read(name)).hexdigest() != digest:  # and damaged since
                store.remove(name)
                store.create(name, [content])
        files.append(File(table, name, rows.num_rows, len(content), digest))
    segment = replace(segment, files=tuple(files))
    content, seal = manifest(segment)
    try:
        store.create(segment_key(segment.log, segment.number), [content])
        made = replace(segment, seal=seal)
    except FileExistsError:
        made = segment_in(store.read(segment_key(segment.log, segment.number)))
    if (made.run, made.before, made.row) != (segment.run, segment.before, segment.row):
        raise ValueError(f"segment {segment.number} of {segment.log} is of another log")
    _sweep(store, made)
    if made.last > segment.last:
        raise StaleEpoch(f"segment {segment.number} of {segment.log} has groups of a later epoch")
    return made


def _sweep(store: Objects, segment: Segment) -> None:
    """Remove files of this number that its manifest does not name: of a process that died, or came second."""
    named = {file.name for file in segment.files}
    for table in tables.SCHEMAS:
        for name in store.names(f"log/{segment.log}/{table}"):
            if name.startswith(_prefix(segment, table)) and name not in named:
                store.remove(name)


def _prefix(segment: Segment, table: str) -> str:
    """Of the names of a segment's files."""
    return f"log/{segment.log}/{table}/{segment.number:09d}-"


def _name(segment: Segment, table: str, digest: str) -> str:
    return f"{_prefix(segment, table)}{digest[:16]}.parquet"


@dataclass(frozen=True)
class Compactor:
    """Makes the segments of one log in a store (outer/journal/chain.py). Two of them make the same, or find it."""

    store: Objects
    log: str  # syncer | orchestrator | chaos

    def newest(self, known: Segmented) -> Segmented:
        number = known.segments
        if not number and (names := self.store.names(segments_folder(self.log))):
            number = int(names[-1].rpartition("/")[2])
        while True:
            try:
                segment = segment_in(self.store.read(segment_key(self.log, number)))
                if segment.log != self.log:
                    raise Damaged(f"it is of {segment.log}")
                _sweep(self.store, segment)
                known = segmented(segment)
            except FileNotFoundError:
                return known
            except Damaged:  # its groups may be there still; the reader names it
                known = Segmented(number + 1, "", known.run, known.last, known.group, known.rows, known.writers)
            number += 1

    def write(self, run: str, groups: Iterable[Group], known: Segmented, damage: Sequence[str]) -> Segmented:
        rows, recorder = Rows(known.rows), Recorder(known.writers)
        first, last, group_seal = -1, known.last, known.group
        for group in groups:
            add_group(rows, group)
            recorder.mark_durable(group.runs())
            first, last, group_seal = group.position if first < 0 else first, group.position, group.seal
            if len(rows) >= SEGMENT_ROWS:
                break
        if first < 0:
            return known
        writers = tuple((str(who), int(which), int(last)) for who, which, last in recorder.state())
        place = (self.log, run, known.segments, known.seal, first, last, group_seal, known.rows, len(rows))
        return segmented(create(self.store, Segment(*place, writers, tuple(damage)), rows.part()))


def segmented(segment: Segment) -> Segmented:
    place = (segment.run, segment.last, segment.group, segment.stop)
    return Segmented(segment.number + 1, segment.seal, *place, segment.writers)


# ------------------------------------------------------------------ groups as rows


def _names(kind: type[Any]) -> list[str]:
    return [each.name for each in fields(kind)]


_STEP, _ADOPTED, _COMMITTED, _PARTICIPANT = map(_names, (StepFinished, Adopted, Committed, Participant))


def add_group(rows: Rows, group: Group) -> None:
    """Add the facts of a group, in order. Raises Damaged where a value has another type than its field."""
    named = group.header.get("fields", {})
    rows.skip_to(group.row)
    try:
        for item in group.header.get("items", ()):
            if isinstance(item, dict):
                _add(rows, (SYNCER, item["epoch"], item["number"], item["at"]), item["kind"], item["record"], named)
            else:
                writer, incarnation, first, facts = item
                for number, (at, kind, values) in enumerate(facts, first):
                    _add(rows, (writer, incarnation, number, at), kind, values, named)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise Damaged(f"group {group.position}: its checksum is right, but it holds no facts: {error!r}") from error


def _add(rows: Rows, place: Place, kind: str, values: list[Any], named: Any) -> None:
    names = list(named[kind])
    if kind == "StepFinished" and names == _STEP:
        rows.step(place, values)
    elif kind == "Adopted" and names == _ADOPTED:
        rows.adoption(place, values)
    elif kind == "Committed" and place[0] == SYNCER and names == _COMMITTED and _as_here(named):
        rows.commit(place, values)
    else:
        record = dict(zip(names, values, strict=True))
        if kind == "Committed":
            parts = record["participants"]
            record["participants"] = [dict(zip(named["Participant"], each, strict=True)) for each in parts]
        rows.add(Event(*place, fact_of(kind, record)))


def _as_here(named: Any) -> bool:
    return list(named.get("Participant", _PARTICIPANT)) == _PARTICIPANT
