"""Cuts that nobody writes do not keep the values of whole models alive."""

from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outer.journal.groups import JournalCut, Value
from outer.journal.object_store import Folder, StoreAway
from outer.protocol.fragments import Fragment, Tensor
from outer.snapshots import CUTS_MAX, Snapshots
from tests.waiting import in_a_loop, until_async

FRAGMENTS = (Fragment(0, (Tensor("t", (4,), "float32"),)),)


class Journal:
    """Commits a new value before every cut; remembers, without keeping them, which values are alive."""

    def __init__(self) -> None:
        self.values: list[weakref.ref[Any]] = []

    def cut(self) -> asyncio.Future[JournalCut]:
        value = np.full(4, len(self.values), np.float32)
        self.values.append(weakref.ref(value))
        state = {"versions": [len(self.values)], "tokens_committed": 0}
        done = asyncio.get_running_loop().create_future()
        done.set_result(JournalCut(state, {0: Value(len(self.values), [value])}))
        return done

    @property
    def alive(self) -> int:
        gc.collect()
        return sum(value() is not None for value in self.values)


class Initial:
    """What of the fragments' bytes a cut takes."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def mark(self, snapshot: int) -> dict[int, Any]:
        return dict(enumerate(self.values))

    async def save(self, snapshot: int, versions: list[int]) -> list[Any]:
        return []


def made(folder: Path) -> tuple[Snapshots, Journal, Any]:
    journal: Any = Journal()
    return Snapshots(1, FRAGMENTS, Folder(folder), journal), journal, Initial([])


@in_a_loop
async def test_of_cuts_that_are_never_written_the_newest_are_kept_and_the_others_are_refused(tmp_path: Path) -> None:
    snapshots, journal, bulk = made(tmp_path)
    for snapshot in range(1, 101):
        snapshots.cut(snapshot, bulk)
    assert journal.alive == CUTS_MAX
    with pytest.raises(OSError, match="dropped for newer ones: 100 is taken"):
        await snapshots.write(1, 60.0, bool)
    for snapshot in range(101 - CUTS_MAX, 101):
        assert (await snapshots.write(snapshot, 60.0, bool))["syncer_step"] == snapshot
    await until_async(lambda: journal.alive == 0, "the writing thread lets go of them")


@in_a_loop
@pytest.mark.parametrize(("snapshot", "over"), [(1, False), (2, True)])
async def test_a_cut_that_never_comes_is_not_waited_for(tmp_path: Path, snapshot: int, over: bool) -> None:
    snapshots, _, _ = made(tmp_path)
    snapshots.expected = 2
    with pytest.raises(OSError, match="asked of an earlier epoch, or the run was over before it"):
        await snapshots.write(snapshot, 60.0, lambda: over)


@in_a_loop
async def test_a_cut_that_does_not_come_in_time_is_not_kept(tmp_path: Path) -> None:
    """The journal's store is full or away."""
    snapshots, journal, bulk = made(tmp_path)
    value = np.zeros(4, np.float32)
    bulk.values = [value]
    journal.cut = lambda: asyncio.get_running_loop().create_future()  # type: ignore[method-assign]
    snapshots.cut(1, bulk)
    with pytest.raises(TimeoutError):
        await snapshots.write(1, 0.0, bool)
    kept = weakref.ref(value)
    bulk.values = []
    del value
    gc.collect()
    assert kept() is None


@in_a_loop
async def test_a_cut_that_the_store_does_not_take_can_be_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshots, journal, bulk = made(tmp_path)
    for snapshot in (1, 2):
        snapshots.cut(snapshot, bulk)
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "create", lambda *_: (_ for _ in ()).throw(OSError("no space left")))
        for snapshot in (1, 2, 2):
            with pytest.raises(StoreAway, match="no space left"):
                await snapshots.write(snapshot, 60.0, bool)
    assert (await snapshots.write(2, 60.0, bool))["syncer_step"] == 2
    for snapshot in (1, 2):
        with pytest.raises(OSError, match="is written, or was dropped"):
            await snapshots.write(snapshot, 60.0, bool)
    await until_async(lambda: journal.alive == 0, "nobody asks for an older one any more")
