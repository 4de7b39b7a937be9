"""How an epoch begins: only the one that starts the run makes the model from its task."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outer import epoch, first_values
from outer.bulk import Bulk
from outer.epoch import Begun
from outer.first_values import FirstValues
from outer.journal.groups import Logged
from outer.journal.journal_writer import JournalWriter
from outer.journal.object_store import Folder
from outer.journal.rebuild import Incomplete
from outer.protocol.facts import SpanGranted
from outer.protocol.fragments import Fragment, Tensor
from outer.protocol.recovery import Entry
from outer.spec import SyncerSpec
from tests.outer.journal.records import committed
from tests.outer.serving import spec

FRAGMENTS = tuple(Fragment(n, (Tensor(f"t{n}", (2, 2), "float32"), Tensor(f"u{n}", (), "float32"))) for n in range(3))
VALUES: FirstValues = (
    FRAGMENTS,
    [np.full(5, n + 0.5, np.float32) for n in range(3)],
    {"t*": "avg"},
    {"loss_unit": "nats"},
)


def begin(spec: SyncerSpec, make: Any) -> tuple[Begun, Bulk, JournalWriter]:
    journal, bulk = JournalWriter(spec.store, spec.epoch, 3, print, print, print), Bulk(spec, make)
    return epoch.begin(spec, journal, bulk, None, lambda *_: None), bulk, journal


def save(spec: SyncerSpec, begun: Begun, bulk: Bulk) -> None:
    asyncio.run(bulk.save_first_values())
    first_values.finish(spec.store, spec.epoch, begun.layout)


def never(_: Any) -> FirstValues:
    raise AssertionError("the model is made anew")


def first_epoch(store: Folder) -> SyncerSpec:
    """It has committed fragment 1 and nothing else."""
    first = spec(store, 3)
    begun, bulk, journal = begin(first, lambda _: VALUES)
    save(first, begun, bulk)
    state = bulk.kept([1])[1].arrays[1:]
    granted = SpanGranted("a", 1, 0, 0, 8, 2)
    journal._journal.write(
        [
            Logged(Entry(1, 0, granted), 0, 1.0, []),
            Logged(Entry(1, 1, committed(1, 1)), 1, 1.0, [np.full(5, 7.0, np.float32), *state]),
        ]
    )
    return first


def test_a_later_epoch_has_every_value_and_does_not_make_the_model(tmp_path: Path) -> None:
    first = first_epoch(store := Folder(tmp_path))
    second, bulk, _ = begin(replace(first, epoch=2, begun=1), never)
    assert second.layout == (FRAGMENTS, VALUES[2], VALUES[3])
    assert [theta.tolist() for theta in bulk.current()] == [[0.5] * 5, [7.0] * 5, [2.5] * 5]
    assert [value.version for value in bulk.kept(range(3)).values()] == [0, 1, 0]
    assert store.folders(first_values.FOLDER) == ["000001"]


def test_what_cannot_be_read_is_made_anew(tmp_path: Path) -> None:
    first = first_epoch(Folder(tmp_path))
    (tmp_path / "initial" / "000001" / "0002").write_bytes(b"damaged")
    _, bulk, _ = begin(replace(first, epoch=2, begun=1), lambda _: VALUES)
    assert bulk.current()[2].tolist() == [2.5] * 5
    assert [value.version for value in bulk.kept(range(3)).values()] == [0, 1, 0]


def test_a_resumed_run_makes_it_anew_and_saves_only_what_has_no_commit(tmp_path: Path) -> None:
    first = first_epoch(store := Folder(tmp_path))
    made: list[FirstValues] = [VALUES]
    resumed = replace(first, epoch=2)
    begun, bulk, _ = begin(resumed, lambda _: made.pop())
    assert not made
    save(resumed, begun, bulk)
    assert store.folders("initial") == ["000002"], "what the earlier start saved is removed"
    assert store.names("initial/000002") == [f"initial/000002/{name}" for name in ("0000", "0002", "layout")]


def test_a_journal_without_records_needs_other_sources(tmp_path: Path) -> None:
    with pytest.raises(Incomplete, match="the journal has no records"):
        begin(spec(Folder(tmp_path), 3, epoch=2, begun=1), never)
