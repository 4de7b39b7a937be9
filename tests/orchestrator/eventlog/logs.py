"""Logs of format 2 in a folder, made of given events; and a store of objects in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from orchestrator.eventlog.compactor import Compactor
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.log_writer import LogWriter
from outer.journal.chain import Segmented
from outer.journal.groups import FactRun
from outer.journal.journal import StoredJournal
from outer.journal.object_store import Bytes, Folder, Objects

GUESTS = ("orchestrator", "chaos")


class Memory:
    """A store of objects in a dict."""

    retries = False

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def create(self, name: str, parts: Sequence[Bytes]) -> None:
        if name in self.objects:
            raise FileExistsError(name)
        self.objects[name] = b"".join(parts)

    def read(self, name: str) -> bytes:
        if name not in self.objects:
            raise FileNotFoundError(name)
        return self.objects[name]

    def names(self, prefix: str) -> list[str]:
        return sorted(name for name in self.objects if name.rpartition("/")[0] == prefix)

    def folders(self, prefix: str) -> list[str]:
        return []

    def remove(self, name: str) -> None:
        self.objects.pop(name, None)


def runs(events: Iterable[Event]) -> list[FactRun]:
    """Runs of one writer's facts, numbered without a gap, in the events' order."""
    found: list[FactRun] = []
    for (writer, incarnation), told in groupby(events, attrgetter("writer", "incarnation")):
        for event in told:
            fact = (event.sequence, event.at, event.fact)
            last = found[-1] if found else None
            if last and last[:2] == (writer, incarnation) and last.facts[-1][0] + 1 == event.sequence:
                found[-1] = FactRun(writer, incarnation, [*last.facts, fact])
            else:
                found.append(FactRun(writer, incarnation, [fact]))
    return found


def journal(store: Objects, epoch: int = 1, fragments: int = 1) -> StoredJournal:
    made = StoredJournal(store, "journal", epoch, fragments, False, Compactor(store, "syncer"))
    made.open()
    return made


def write(chain: StoredJournal, events: Sequence[Event]) -> None:
    """One group."""
    chain.write(runs(events))
    if chain.needs_compaction:
        chain.remove(chain.compact())
        if chain.needs_segment:
            chain.segment()


def of_syncer(events: Iterable[Event]) -> list[Event]:
    return [event for event in events if event.writer not in GUESTS]


def write_log(root: Path, events: Sequence[Event], group: int = 50, close: bool = True) -> dict[str, Segmented]:
    """The logs of these events: the syncer's chain in their order, groups of so many; where each ended if closed."""
    store = Folder(root)
    chain = journal(store)
    for some in chunks(of_syncer(events), group):
        write(chain, some)
    writers = {log: LogWriter(store, log, 1) for log in GUESTS}
    for log, writer in writers.items():
        for some in chunks([event for event in events if event.writer == log], group):
            writer.write(some)
    if not close:
        return {}
    chain.finish()
    return {"syncer": chain.segmented} | {log: writer.close() for log, writer in writers.items()}


def chunks(events: Sequence[Event], size: int) -> Iterator[list[Event]]:
    for first in range(0, len(events), size):
        yield list(events[first : first + size])
