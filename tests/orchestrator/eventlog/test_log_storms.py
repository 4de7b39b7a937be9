"""The log on a store that fails, answers late, or dies with its writer; several epochs at once, segments all the while.

Each seed is a random schedule. What was acknowledged is in the log once, under its number, and the reader finds nothing
wrong; a reader that follows reads the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from orchestrator.eventlog import compactor, reader
from orchestrator.eventlog.compactor import Compactor
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.reader import LogReader
from outer.journal import journal as journals
from outer.journal.groups import FactRun
from outer.journal.journal import StaleEpoch, StoredJournal
from outer.journal.object_store import Bytes
from outer.protocol.facts import StepOpened
from outer.protocol.recorder import Recorded, Recorder
from tests.orchestrator.eventlog.logs import Memory

MOVES, LEARNERS = 150, ("a", "b")


class Store(Memory):
    """A request may fail before or after it is done."""

    def __init__(self, chance: Random) -> None:
        super().__init__()
        self.chance, self.troubled = chance, False

    def _trouble(self) -> str:
        return self.chance.choice(["", "", "", "before", "after"]) if self.troubled else ""

    def create(self, name: str, parts: Sequence[Bytes]) -> None:
        if (what := self._trouble()) == "before":
            raise OSError("it did not answer")
        super().create(name, parts)
        if what == "after":
            raise OSError("its answer was lost")

    def remove(self, name: str) -> None:
        if self._trouble():
            raise OSError("it did not answer")
        super().remove(name)


@dataclass
class Epoch:
    """Takes learners' facts as LogFeed does, and does one thing at a time."""

    journal: StoredJournal
    recorder: Recorder
    number: int
    own: int = 0
    waiting: list[FactRun] = field(default_factory=list)
    group: list[FactRun] = field(default_factory=list)  # its outcome is unknown
    removable: list[int] = field(default_factory=list)
    alive: bool = True

    def take(self, writer: str, facts: Sequence[tuple[int, float, StepOpened]], newest: bool) -> None:
        fresh, lost = self.recorder.take(writer, 1, facts[0][0] if facts else 0, facts)
        assert lost is None or not newest, "only an epoch that was deposed can lack what was acknowledged"
        if fresh:
            self.waiting.append(FactRun(writer, 1, fresh))

    def work(self, chance: Random) -> list[Recorded]:
        """One request or a few; returns what is acknowledged. Raises StaleEpoch, OSError."""
        if not self.group and self.journal.needs_compaction:
            self.removable = self.journal.compact()
        elif self.removable and chance.random() < 0.5:
            self.journal.remove(self.removable)
            self.removable = []
        elif self.journal.needs_segment and chance.random() < 0.5:
            self.journal.segment()
        else:
            if not self.group:
                self.group, self.waiting = self.waiting, []
                self.group.append(FactRun("syncer", self.number, [(self.own, 1.0, StepOpened(self.own, None))]))
                self.own += 1
            self.journal.write(self.group)
            runs = [Recorded(run.writer, run.incarnation, run.facts[-1][0]) for run in self.group]
            self.group = []
            return runs
        return []


@pytest.mark.parametrize("block", range(5))
def test_what_is_acknowledged_is_in_the_log_once(block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "SNAPSHOT_GROUPS", 3)
    monkeypatch.setattr(journals, "prove", lambda store: None)  # tested by itself
    for module in (journals, compactor, reader):
        monkeypatch.setattr(module, "SEGMENT_ROWS", 12)
    for seed in range(5 * block, 5 * block + 5):
        storm(Random(seed), tmp_path)


def storm(chance: Random, nowhere: Path) -> None:
    store = Store(chance)
    epochs: list[Epoch] = []
    made = dict.fromkeys(LEARNERS, 0)  # facts of each learner
    acknowledged: dict[tuple[str, int], int] = {}
    followed: list[Event] = []
    follower = LogReader(nowhere, store)

    def succeed() -> None:
        store.troubled = False
        number = len(epochs) + 1
        journal = StoredJournal(store, "journal", number, 1, False, Compactor(store, "syncer"))
        opened = journal.open()
        assert not opened.damage
        epochs.append(Epoch(journal, Recorder(opened.writers), number))

    succeed()
    for _ in range(MOVES):
        if chance.random() < 0.05:
            succeed()
        if chance.random() < 0.1:
            store.troubled = False
            followed += [event for block in follower.poll() for event in block.events()]
        for name in LEARNERS:
            made[name] += chance.randrange(3)
        alive = [epoch for epoch in epochs if epoch.alive]
        epoch = chance.choice([*alive, alive[-1]])
        for name in LEARNERS:
            first = acknowledged.get((name, 1), -1) + 1
            epoch.take(name, [(n, 1.0, StepOpened(n, None)) for n in range(first, made[name])], epoch is epochs[-1])
        store.troubled = True
        try:
            runs = epoch.work(chance)
        except StaleEpoch:
            assert epoch is not epochs[-1]
            epoch.alive = False
            continue
        except OSError:
            continue
        assert not runs or epoch is epochs[-1], "a deposed epoch acknowledged something"
        acknowledged |= {(run.writer, run.incarnation): run.last for run in runs}
    store.troubled = False
    read = LogReader(nowhere, store)
    told = [event for block in read.rest() for event in block.events()]
    followed += [event for block in follower.rest() for event in block.events()]
    assert read.findings.damage == [] and follower.findings.damage == []
    assert told == followed
    assert len({event.key for event in told}) == len(told)
    for (writer, incarnation), last in acknowledged.items():
        numbers = [event.sequence for event in told if (event.writer, event.incarnation) == (writer, incarnation)]
        assert numbers == list(range(len(numbers))) and last < len(numbers)
        assert all(event.fact.syncer_step == event.sequence for event in told if event.writer == writer)
