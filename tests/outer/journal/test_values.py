"""Values in objects of their own: the record is the commit point, and the value is found through it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from outer.journal import checkpoint_parts, values
from outer.journal.framing import Damaged
from outer.journal.groups import JournalCut, Logged
from outer.journal.journal import Opened, StoredJournal, inspect
from outer.journal.object_store import Folder
from outer.journal.values import Stored
from outer.protocol.facts import StateRebuilt
from outer.protocol.recovery import Entry
from tests.outer.journal.records import committed

VALUE = [np.full(3, 7.0, np.float32), np.arange(3, dtype=np.float32)]


def journal(store: Folder, epoch: int, apart: bool = False) -> tuple[StoredJournal, Opened]:
    made = StoredJournal(store, "journal", epoch, 2, apart=apart)
    return made, made.open()


def first_epoch(folder: Path) -> tuple[Folder, Stored]:
    """It has committed version 1 of fragment 1, whose value is an object of its own."""
    store = Folder(folder)
    stored = values.write(store, 1, 1, 1, VALUE)
    journal(store, 1, apart=True)[0].write([Logged(Entry(1, 0, committed(1, 1)), 0, 1.0, [], stored)])
    return store, stored


@pytest.mark.parametrize("apart", [True, False])
def test_a_record_names_its_value_which_others_or_the_journal_read(tmp_path: Path, apart: bool) -> None:
    store, stored = first_epoch(tmp_path)
    opened = journal(store, 2, apart)[1]
    value = opened.values[1]
    assert (value.version, opened.damage, opened.named) == (1, [], [stored.key])
    if apart:
        assert (value.arrays, value.stored) == ([], stored)
    else:
        assert value.stored is None
        assert [each.tolist() for each in value.arrays] == [each.tolist() for each in VALUE]
    assert [each.tolist() for each in values.read(store, stored)] == [each.tolist() for each in VALUE]


def test_a_snapshot_and_a_new_start_keep_the_name(tmp_path: Path) -> None:
    store, stored = first_epoch(tmp_path)
    second, opened = journal(store, 2, apart=True)
    second.remove(second.compact())
    third, opened = journal(store, 3, apart=True)
    assert opened.values[1].stored == stored
    third.seed(third._replay, opened.values, StateRebuilt("damaged", (), (), (), ()))
    assert journal(store, 4, apart=True)[1].values[1].stored == stored


def test_a_damaged_or_missing_value_is_told_and_not_used(tmp_path: Path) -> None:
    store, stored = first_epoch(tmp_path)
    path = tmp_path / stored.key
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    opened = journal(store, 2)[1]
    assert opened.values == {} and f"the newest value of fragment 1: {stored.key}" in opened.damage[0]
    assert stored.key in inspect(store, "journal")[0]
    path.unlink()
    with pytest.raises(Damaged, match="missing"):
        values.read(store, stored)
    store.create(stored.key, [b"of another"])
    with pytest.raises(Damaged):
        values.write(store, 1, 1, 1, VALUE)


def test_writing_the_same_value_again_is_writing_it_once(tmp_path: Path) -> None:
    store, stored = first_epoch(tmp_path)
    assert values.write(store, 1, 1, 1, VALUE) == stored


def test_what_no_record_names_is_swept_by_a_later_epoch_only(tmp_path: Path) -> None:
    store, stored = first_epoch(tmp_path)
    unrecorded = values.write(store, 1, 1, 2, VALUE)
    newer = values.write(store, 2, 0, 3, VALUE)
    values.sweep(store, 1, [])
    assert len(store.names("values/0001")) == 2
    values.sweep(store, 2, [stored.key])
    assert store.names("values/0001") == [stored.key] and store.names("values/0000") == [newer.key]
    values.remove(store, unrecorded)
    values.remove(store, stored)
    assert store.names("values/0001") == []


def test_a_checkpoint_is_read_with_the_parts_of_its_shards(tmp_path: Path) -> None:
    store, kept = first_epoch(tmp_path)[0], journal(Folder(tmp_path), 2, apart=True)[0].cut()
    assert isinstance(kept, JournalCut)
    described = {"epoch": 2, "values": [[1, 1, 2]], "initial": []}
    parts = [checkpoint_parts.write(store, 5, "shard-1", described, VALUE)]
    described = {"epoch": 2, "values": [], "initial": [0]}
    parts.append(checkpoint_parts.write(store, 5, "shard-0", described, [np.ones(2, np.float32)]))
    header, arrays = kept.part(2, 5, apart=parts)
    assert arrays == [], "control has no values"
    seal = checkpoint_parts.write(store, 5, checkpoint_parts.SYNCER, header, arrays)["seal"]
    header, found, initial = checkpoint_parts.read_values(store, 5, seal)
    assert found[1][0] == 1 and [each.tolist() for each in found[1][1]] == [each.tolist() for each in VALUE]
    assert {fragment: theta.tolist() for fragment, theta in initial.items()} == {0: [1.0, 1.0]}
    (tmp_path / checkpoint_parts.object_key(5, "shard-1")).unlink()
    with pytest.raises(Damaged):
        checkpoint_parts.read_values(store, 5)
