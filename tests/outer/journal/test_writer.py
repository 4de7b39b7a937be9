"""The writer: nothing is told durable before it is, whatever the store does, and it never gives up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outer.journal import journal as journals
from outer.journal import journal_writer as journal_writers
from outer.journal.chain import Chain
from outer.journal.journal import inspect
from outer.journal.journal_writer import FOLDER, JournalWriter
from outer.journal.object_store import Folder
from outer.protocol.facts import Committed, SpanGranted, StepOpened
from outer.protocol.recorder import Recorded
from outer.protocol.recovery import Entry
from tests.outer.journal.records import committed
from tests.waiting import DEADLINE_S, in_a_loop, until_async


class Moody(Folder):
    """A folder that does as it is told."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.full = False  # takes nothing
        self.error: BaseException | None = None  # of another kind than a store has that is away
        self.forgets = False  # takes it, and says it has not
        self.lets = threading.Event()  # until this is set, a creation goes no further
        self.lets.set()
        self.attempts = 0

    def create(self, name: str, parts: Any) -> None:
        self.attempts += 1
        assert self.lets.wait(DEADLINE_S)
        if self.full:
            raise OSError(28, "No space left on device")
        if self.error is not None:
            raise self.error
        super().create(name, parts)
        if self.forgets:
            raise OSError("the answer was lost")


class World:
    """One writer, and what it has said."""

    def __init__(self, root: Path, epoch: int = 1) -> None:
        self.store = Moody(root)
        self.durable: list[int] = []
        self.deposed: list[str] = []
        self.reached: list[str] = []
        self.recorded: list[Recorded] = []
        self.failed: list[BaseException] = []
        callbacks = (self._durable, self.deposed.append, self.failed.append, self.reached.append)
        self.waits: list[tuple[float, str]] = []
        told = {"recorded": self.recorded.extend, "waited": lambda *wait: self.waits.append(wait)}
        self.writer = JournalWriter(self.store, epoch, 2, *callbacks, **told)
        self.epoch, self.sequence = epoch, 0

    async def opened(self) -> World:
        await self.writer.open()
        self.store.attempts = 0
        return self

    def _durable(self, sequence: int) -> None:
        """Said in the loop's thread, and true by then: another epoch would find it."""
        assert asyncio.get_running_loop()
        past = Chain(Folder(self.store.root), FOLDER, self.writer.run).back().chain
        kept = [entry for group in past for entry in group.entries()]
        snapshot = any(group.header["kind"] == "snapshot" for group in past)
        assert snapshot or sequence in [entry.sequence for entry in kept if entry.epoch == self.epoch]
        self.durable.append(sequence)

    def append(self, fragment: int | None = None) -> int:
        """A grant, or a commit of a fragment."""
        sequence, self.sequence = self.sequence, self.sequence + 1
        record: SpanGranted | Committed = SpanGranted("a", 1, sequence, 8 * sequence, 8 * sequence + 8, 2)
        arrays = []
        if fragment is not None:
            record = committed(sequence + 1, fragment, self.epoch)
            arrays = [np.full(3, sequence, np.float32)]
        self.writer.append(Entry(self.epoch, sequence, record), arrays, sequence, 1.0)
        return sequence

    @property
    def groups(self) -> int:
        return int(self.writer.view()["groups"])


async def until(holds: Callable[[], Any]) -> None:
    await until_async(holds, "the condition of this line")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_writers, "BACKOFF_S", 0.002)
    monkeypatch.setattr(journal_writers, "BACKOFF_S_MAX", 0.01)


@in_a_loop
async def test_what_is_kept_is_told_durable_in_order_and_the_next_epoch_has_it(tmp_path: Path) -> None:
    world = await World(tmp_path).opened()
    for fragment in (None, 0, 1, 0):
        world.append(fragment)
    await until(lambda: world.durable and world.durable[-1] == 3)
    assert world.durable == sorted(world.durable)
    second = (await World(tmp_path, 2).opened()).writer._journal.cut()
    assert {fragment: value.version for fragment, value in second.values.items()} == {0: 4, 1: 3}


@in_a_loop
async def test_what_waits_while_a_group_is_written_goes_in_one_group(tmp_path: Path) -> None:
    world = await World(tmp_path).opened()
    before = world.groups
    world.store.lets.clear()
    world.append()
    await until(lambda: world.store.attempts == 1)
    for _ in range(20):
        world.append()
    world.store.lets.set()
    await until(lambda: world.durable and world.durable[-1] == 20)
    assert world.durable == [0, 20]
    assert world.groups - before == 2


@in_a_loop
async def test_while_the_store_is_full_nothing_is_told_and_why_is_shown_then_all_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_writers, "WAITED_S", 0.0)
    world = await World(tmp_path).opened()
    assert world.writer.view()["waiting_s"] == 0.0 and not world.writer.view()["trouble"]
    world.store.full = True
    world.append(0)
    await until(lambda: world.store.attempts >= 5)
    waited = world.writer.view()["waiting_s"]
    world.append(1)
    view = world.writer.view()
    assert world.durable == [] and "No space left" in view["trouble"]
    assert view["waiting_s"] >= waited > 0.0, "the oldest that waits tells the wait"
    assert world.waits == []
    await until(lambda: world.writer.view()["waiting_s"] > view["waiting_s"])
    world.store.full = False
    await until(lambda: world.durable == [0, 1])
    assert world.writer.view()["trouble"] == "" and world.writer.view()["waiting_s"] == 0.0
    assert world.waits[0][0] >= waited and "No space left" in world.waits[0][1], "for the log"


@pytest.mark.parametrize("where", ["store", "record"])
@in_a_loop
async def test_after_an_error_that_is_not_the_stores_nothing_is_written_behind_the_gap(
    tmp_path: Path, where: str
) -> None:
    world = await World(tmp_path).opened()
    world.append(0)
    await until(lambda: world.durable == [0])
    if where == "store":
        world.store.error = MemoryError("a group of 4 GB")
    else:
        world.sequence += 1
    world.append(1)
    noted(world, 0)
    await until(lambda: world.failed)
    world.store.error, groups = None, world.groups
    world.append(0)
    noted(world, 1)
    with pytest.raises(RuntimeError, match="MemoryError: a group" if where == "store" else "entry 2 .* entry 1 .* due"):
        await world.writer.finish()
    assert world.durable == [0] and world.groups == groups and world.deposed == []
    assert inspect(world.store, FOLDER) == []
    successor = await World(tmp_path, 2).opened()
    assert successor.writer.view()["damage"] == []
    successor.append(1)
    await until(lambda: successor.durable == [0])


@in_a_loop
async def test_a_newer_epoch_deposes_and_nothing_more_is_told(tmp_path: Path) -> None:
    world = await World(tmp_path).opened()
    world.append(0)
    await until(lambda: world.durable == [0])
    assert world.reached == ["journaling", "journaled"]
    successor = await World(tmp_path, 2).opened()
    noted(world, 0)
    world.append(1)
    await until(lambda: world.deposed)
    assert world.recorded == [Recorded("syncer", 1, 0)]
    assert len(world.deposed) == 1 and "epoch 1" in world.deposed[0]
    assert world.durable == [0] and world.reached[-1] == "journaling"
    successor.append(1)
    await until(lambda: successor.durable == [0])


@in_a_loop
async def test_a_snapshot_is_tried_until_it_is_taken_and_what_came_meanwhile_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "SNAPSHOT_GROUPS", 3)

    world = await World(tmp_path).opened()
    for sequence in range(2):
        world.append(0)
        await until(lambda sequence=sequence: world.durable[-1:] == [sequence])

    def fill(point: str) -> None:
        if point == "journaled":
            world.store.full = True  # the group is there: what fails next is the snapshot

    monkeypatch.setattr(world.writer, "_reach", fill)
    attempts = world.store.attempts
    world.append(0)
    await until(lambda: world.store.attempts >= attempts + 3)
    world.append(1)
    assert world.durable == [0, 1, 2] and "No space left" in world.writer.view()["trouble"]
    monkeypatch.setattr(world.writer, "_reach", lambda _: None)
    world.store.full = False
    await until(lambda: world.durable == [0, 1, 2, 3])
    found = (await World(tmp_path, 2).opened()).writer._journal.cut()
    assert {fragment: value.version for fragment, value in found.values.items()} == {0: 3, 1: 4}


@in_a_loop
async def test_a_cut_has_what_was_told_durable_and_nothing_that_comes_after_it(tmp_path: Path) -> None:
    world = await World(tmp_path).opened()
    world.append(0)
    await until(lambda: world.durable == [0])
    future = world.writer.cut()
    world.append(1)
    cut = await future
    assert {fragment: value.version for fragment, value in cut.values.items()} == {0: 1}
    assert cut.state["versions"] == [1, 0]
    await until(lambda: world.durable == [0, 1])
    assert set(cut.values) == {0}, "what was cut stays as it is"


# ------------------------------------------------------------------ facts


def noted(world: World, first: int, count: int = 1, writer: str = "a") -> None:
    world.writer.note(writer, 1, [(number, 1.0, StepOpened(number, None)) for number in range(first, first + count)])


@in_a_loop
async def test_facts_are_told_durable_once_they_are_and_those_that_come_together_share_a_group(tmp_path: Path) -> None:
    world = await World(tmp_path).opened()
    before = world.groups
    for first in range(0, 10, 2):
        noted(world, first, 2)
    assert world.recorded == [] and world.writer.view()["facts_waiting"] == 10
    await until(lambda: world.recorded)
    assert world.recorded == [Recorded("a", 1, last) for last in (1, 3, 5, 7, 9)] and world.durable == []
    assert world.groups == before + 1 and world.writer.view()["facts_waiting"] == 0
    assert (await World(tmp_path, 2).opened()).writer._journal.writers == [["a", 1, 9]]


@in_a_loop
async def test_a_record_takes_the_waiting_facts_along_at_once_and_they_are_told_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_writers, "FLUSH_S", DEADLINE_S)

    world = await World(tmp_path).opened()
    before = world.groups
    noted(world, 0)
    world.append(0)
    noted(world, 1)
    await until(lambda: world.durable == [0])
    assert world.recorded[:2] == [Recorded("a", 1, 0), Recorded("syncer", 1, 0)] and world.groups == before + 1


@in_a_loop
async def test_while_the_store_refuses_facts_wait_within_a_bound_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_writers, "WAITING_FACTS_MAX", 100)

    world = await World(tmp_path).opened()
    world.store.full = True
    noted(world, 0, 99)
    assert not world.writer.full
    noted(world, 99)
    assert world.writer.full and world.writer.view()["full"]
    noted(world, 0, 100, "syncer")
    with pytest.raises(OverflowError, match="wait for the store"):
        noted(world, 100, 1, "syncer")
    world.store.full = False
    await until(lambda: not world.writer.full)


@in_a_loop
async def test_at_the_end_everything_is_written(tmp_path: Path) -> None:
    world = await World(tmp_path).opened()
    noted(world, 0)
    world.append(0)
    noted(world, 1, 3)
    await world.writer.finish()
    assert world.recorded[-1] == Recorded("a", 1, 3) and world.durable == [0]
    assert world.writer.view()["facts"] == 5
