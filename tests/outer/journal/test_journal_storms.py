"""The journal on a store that fails, answers late, or dies with its writer in the midst; several epochs at once.

Each seed is a random schedule. What was acknowledged is in every later epoch; an old epoch acknowledges nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from outer.journal import journal as journals
from outer.journal.groups import Logged
from outer.journal.journal import StaleEpoch, StoredJournal
from outer.journal.object_store import Bytes
from outer.protocol.facts import Committed, StateRebuilt
from outer.protocol.recovery import Entry
from tests.orchestrator.eventlog.logs import Memory
from tests.outer.journal.records import committed

FRAGMENTS, SEEDS, MOVES = 3, 60, 120


class Store(Memory):
    """`trouble` may raise before or after something is created, or leave half of it."""

    trouble: Callable[[str], str] = staticmethod(lambda name: "")

    def create(self, name: str, parts: Sequence[Bytes]) -> None:
        what = self.trouble(name)
        if what == "before":
            raise OSError("it did not answer")
        super().create(name, parts)
        if what == "after":
            raise OSError("its answer was lost")
        if what == "torn":
            self.objects[name] = self.objects[name][:-7]
            raise Crash


class Crash(Exception):
    """The writer died while it wrote."""


@dataclass
class Epoch:
    journal: StoredJournal
    number: int
    step: int
    entries: list[Entry] = field(default_factory=list)
    alive: bool = True


def commit(epoch: Epoch, fragment: int) -> Entry:
    epoch.step += 1
    return Entry(epoch.number, len(epoch.entries), committed(epoch.step, fragment, epoch.number))


@pytest.mark.parametrize("tears", [False, True])
@pytest.mark.parametrize("block", range(6))
def test_nothing_acknowledged_is_lost_and_no_old_epoch_is_acknowledged(
    block: int, tears: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "SNAPSHOT_GROUPS", 4)
    monkeypatch.setattr(journals, "prove", lambda store: None)  # tested by itself
    for seed in range(SEEDS // 6 * block, SEEDS // 6 * (block + 1)):
        storm(random.Random(f"{seed} {tears}"), tears)


def storm(chance: random.Random, tears: bool) -> None:
    store, epochs = Store(), list[Epoch]()
    acknowledged: dict[int, tuple[int, int]] = {}  # by fragment: (epoch, version) of the newest
    waiting: dict[int, list[Logged]] = {}  # by epoch, what is to be written again
    troubles = ["", "", "", "", "before", "after", *(["torn"] if tears else [])]

    def succeed() -> None:
        store.trouble = lambda name: ""
        number = len(epochs) + 1
        journal = StoredJournal(store, "journal", number, FRAGMENTS)
        opened = journal.open()
        versions = opened.found.versions
        for fragment, (epoch, version) in acknowledged.items():
            assert versions[fragment] >= version, f"epoch {number} lost version {version} of epoch {epoch}"
            assert opened.values[fragment].version == versions[fragment]
            assert opened.values[fragment].arrays[0][0] == versions[fragment]
        assert not opened.damage or tears
        if opened.damage:  # half of what nobody was told of
            journal.seed(journal._replay, opened.values, StateRebuilt("damaged", (), (), (), ()))
        epochs.append(Epoch(journal, number, max(versions)))

    succeed()
    for _ in range(MOVES):
        if chance.random() < 0.06:
            succeed()
        alive = [epoch for epoch in epochs if epoch.alive]
        if not alive:
            succeed()
            continue
        epoch = chance.choice([*alive, alive[-1]])
        store.trouble = lambda name: chance.choice(troubles)
        group = waiting.get(epoch.number)
        if group is None:
            entry = commit(epoch, chance.randrange(FRAGMENTS))
            group = [Logged(entry, entry.sequence, 1.0, [np.full(2, entry.record.syncer_step, np.float32)])]
        try:
            epoch.journal.write(group)
            while epoch.journal.needs_compaction:
                compact(epoch)
        except StaleEpoch:
            assert epoch is not epochs[-1], "the newest epoch was refused"
            epoch.alive = False
            continue
        except Crash:
            epoch.alive = False
            continue
        except OSError:
            waiting[epoch.number] = group
            continue
        waiting.pop(epoch.number, None)
        assert epoch is epochs[-1], f"epoch {epoch.number} was acknowledged while {epochs[-1].number} is there"
        epoch.entries += [item.entry for item in group]
        record = group[0].entry.record
        assert isinstance(record, Committed)
        acknowledged[record.fragment] = (epoch.number, record.syncer_step)
    succeed()


def compact(epoch: Epoch) -> None:
    for _ in range(100):
        try:
            return epoch.journal.remove(epoch.journal.compact())
        except OSError:
            continue
    raise AssertionError("a hundred errors in a row")
