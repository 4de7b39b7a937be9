"""Files of the log's format 1: each process appended lines to a segment of its own; `events.jsonl` was their merge."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import itemgetter
from pathlib import Path
from typing import Any

from orchestrator.eventlog.events import Event
from orchestrator.eventlog.seal import chained, link


class SegmentWriter:
    """Appends events to one file: one line per event, one write per call, so a killed process loses nothing written.

    Each writer's events are chained (orchestrator/eventlog/seal.py). An existing file is continued: a truncated last
    line is dropped, and the chains continue from the file.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.last: dict[tuple[str, int], tuple[int, str]] = {}  # (sequence, chain) by writer and incarnation
        if path.exists():
            self._resume(path)
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 (closed by close)
        self._damage = ""  # why nothing more can be written

    def _resume(self, path: Path) -> None:
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(path, whole)
        for event in read_segment(path):
            key = (event.writer, event.incarnation)
            if event.sequence > self.last.get(key, (-1, ""))[0]:
                self.last[key] = (event.sequence, event.chain)

    def write(self, events: Iterable[Event]) -> None:
        lines: list[str] = []
        last = dict[tuple[str, int], tuple[int, str]]()
        for event in events:
            key, content = (event.writer, event.incarnation), event.content
            before = last.get(key) or self.last.get(key, (-1, ""))
            chain = link(before[1], content)
            last[key] = (event.sequence, chain)
            lines.append(chained(content, chain) + "\n")
        self._append("".join(lines).encode())
        self.last.update(last)

    def _append(self, data: bytes) -> None:
        """Write all or nothing: everything behind a partial line would be unreadable."""
        if self._damage:
            raise OSError(f"nothing more is written to {self._file.name}: {self._damage}")
        begin, done, rest = os.fstat(self._file.fileno()).st_size, 0, memoryview(data)
        try:
            while rest:
                done += (count := self._file.write(rest))  # a disk that fills up takes a part, then raises
                rest = rest[count:]
        except BaseException as error:
            self._take_back(begin, done, error)
            raise

    def _take_back(self, begin: int, done: int, error: BaseException) -> None:
        file = self._file.fileno()
        try:
            # Another epoch's recorder may have appended since: do not cut that off.
            if done and os.fstat(file).st_size == begin + done:
                os.ftruncate(file, begin)
                done = 0
        except OSError as refused:
            error.add_note(f"and what was written of it cannot be taken back: {refused}")
        if done:
            self._damage = f"a line of it was cut short ({error})"

    def close(self) -> None:
        self._file.close()


class EventEmitter:
    """Numbers and timestamps one writer's facts."""

    def __init__(self, writer: str, incarnation: int, clock: Callable[[], float]) -> None:
        self.writer, self.incarnation, self._clock = writer, incarnation, clock
        self._sequence = 0

    def emit(self, fact: Any) -> Event:
        event = Event(self.writer, self.incarnation, self._sequence, self._clock(), fact)
        self._sequence += 1
        return event


def read_segment(path: Path) -> Iterator[Event]:
    """The events of one file. A last line cut short by a crash is left out; any other damage raises ValueError."""
    data = path.read_bytes()
    lines = data.split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):
        try:
            yield Event.from_json(line.decode())
        except ValueError as error:
            raise ValueError(f"{path.name}, line {number}: {error}") from error


def merge(segments: Iterable[Iterable[Event]]) -> list[Event]:
    """All events once, by time; each writer's events keep their own order."""
    return woven(by_writer(event for segment in segments for event in segment))


def by_writer(events: Iterable[Event]) -> dict[tuple[str, int], list[Event]]:
    """Events by (writer, incarnation), duplicates included, in input order."""
    apart: dict[tuple[str, int], list[Event]] = {}
    for event in events:
        key = (event.writer, event.incarnation)
        if key in apart:
            apart[key].append(event)
        else:
            apart[key] = [event]
    return apart


def woven(apart: Mapping[tuple[str, int], Sequence[Event]]) -> list[Event]:
    """Merge the events of each writer, as from `by_writer`."""
    events: list[Event] = []
    dates: list[float] = []
    for _, said in sorted(apart.items(), key=itemgetter(0)):
        kept = once(said)
        events += kept
        dates += accumulate([event.at for event in kept], max)  # a clock set back does not reorder its own writer
    return [events[i] for i in sorted(range(len(events)), key=dates.__getitem__)]


def once(said: Sequence[Event]) -> Sequence[Event]:
    """The first event of each sequence number, in order."""
    if [event.sequence for event in said] == list(range(len(said))):
        return said
    first: dict[int, Event] = {}
    for event in said:
        first.setdefault(event.sequence, event)
    return [first[sequence] for sequence in sorted(first)]


def read_lines(run_dir: Path) -> Iterator[Event]:
    """The same unmerged, duplicates included, for checks that two events share no number."""
    for path in files(run_dir):
        yield from read_segment(path)


def files(run_dir: Path) -> list[Path]:
    """Where its log is: in one file once the run is over."""
    whole = run_dir / "events.jsonl"
    return [whole] if whole.exists() else sorted((run_dir / "events").glob("*.jsonl"))


def ends(events: Iterable[Event]) -> list[tuple[str, int, int, str]]:
    """For each writer of a merged log: (name, incarnation, events, last chain)."""
    return [(*key, len(said), said[-1].chain) for key, said in sorted(by_writer(events).items())]
