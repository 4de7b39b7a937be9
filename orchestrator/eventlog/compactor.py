"""Turns groups of a chain into rows, and into the segments of its log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from learners.protocol.facts import Adopted, StepFinished
from orchestrator.eventlog.block import PARTICIPANTS, Key, Rows
from orchestrator.eventlog.events import Event, fact_of
from orchestrator.eventlog.segment_codec import Segment, covers, encode
from outer.journal.chain import SEGMENT_ROWS, Segmented
from outer.journal.framing import Damaged
from outer.journal.groups import SYNCER, Group
from outer.journal.object_store import Objects
from outer.protocol.facts import Committed, Participant
from outer.protocol.recorder import Recorder


def segments_folder(log: str) -> str:
    return f"log/{log}/segments"


def segment_key(log: str, number: int) -> str:
    return f"{segments_folder(log)}/{number:09d}"


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
                known = _segmented(covers(self.store.read(segment_key(self.log, number))))
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
        content, segment = encode(Segment(*place, writers, tuple(damage)), rows.block())
        try:
            self.store.create(segment_key(self.log, known.segments), content)
        except FileExistsError:
            segment = self._found(segment)
        return _segmented(segment)

    def _found(self, ours: Segment) -> Segment:
        """The segment that another process made of the same groups, or of fewer. Raises ValueError for any other."""
        theirs = covers(self.store.read(segment_key(self.log, ours.number)))
        if (theirs.run, theirs.before, theirs.row) != (ours.run, ours.before, ours.row) or theirs.last > ours.last:
            raise ValueError(f"segment {ours.number} of {self.log} is of another log")
        return theirs


def _segmented(segment: Segment) -> Segmented:
    place = (segment.run, segment.last, segment.group, segment.row + segment.rows)
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
                key: Key = (SYNCER, item["epoch"])
                _add(rows, key, item["number"], item["at"], item["kind"], item["record"], named)
            else:
                writer, incarnation, first, facts = item
                for number, (at, kind, values) in enumerate(facts, first):
                    _add(rows, (writer, incarnation), number, at, kind, values, named)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise Damaged(f"group {group.position}: its checksum is right, but it holds no facts: {error!r}") from error


def _add(rows: Rows, key: Key, number: int, at: float, kind: str, values: list[Any], named: Any) -> None:
    names = named[kind]
    match kind:
        case "StepFinished" if list(names) == _STEP:
            if values[-1] is not None:
                values = [*values[:-1], {name: float(value) for name, value in values[-1].items()}]
            rows.step(key, number, at, values)
        case "Adopted" if list(names) == _ADOPTED:
            rows.adoption(key, number, at, values)
        case "Committed" if list(names) == _COMMITTED and list(named.get("Participant", _PARTICIPANT)) == _PARTICIPANT:
            rows.commit(key, number, at, values, values[PARTICIPANTS])
        case _:
            record = dict(zip(names, values, strict=True))
            if kind == "Committed":
                parts = record["participants"]
                record["participants"] = [dict(zip(named["Participant"], each, strict=True)) for each in parts]
            rows.add(Event(*key, number, float(at), fact_of(kind, record)))
