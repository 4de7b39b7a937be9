"""How an epoch begins: only the one that starts the run makes the model from its task."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outer import epoch, first_values, ports
from outer.bulk import Bulk
from outer.epoch import Begun
from outer.first_values import FirstValues
from outer.journal.groups import Logged
from outer.journal.journal import StoredJournal, inspect
from outer.journal.journal_writer import JournalWriter
from outer.journal.object_store import Folder
from outer.journal.rebuild import Incomplete, RecoverySources
from outer.numeric import codec as codecs
from outer.ports import Unreachable
from outer.protocol.facts import SpanGranted
from outer.protocol.fragments import Fragment, Tensor
from outer.protocol.recovery import Entry
from outer.spec import SyncerSpec
from tests.learners.peers import FakePeer
from tests.outer.journal.records import committed
from tests.outer.serving import spec
from tests.waiting import in_a_loop

FRAGMENTS = tuple(Fragment(n, (Tensor(f"t{n}", (2, 2), "float32"), Tensor(f"u{n}", (), "float32"))) for n in range(3))
VALUES: FirstValues = (
    FRAGMENTS,
    [np.full(5, n + 0.5, np.float32) for n in range(3)],
    {"t*": "avg"},
    {"loss_unit": "nats"},
)


async def begin(
    spec: SyncerSpec, make: Any, sources: RecoverySources | None = None
) -> tuple[Begun, Bulk, JournalWriter]:
    journal, bulk = JournalWriter(spec.store, spec.epoch, 3, print, print, print, print), Bulk(spec, make)
    return await epoch.begin(spec, journal, bulk, sources), bulk, journal


def never(_: Any) -> FirstValues:
    raise AssertionError("the model is made anew")


async def first_epoch(store: Folder) -> SyncerSpec:
    """It has committed fragment 1 and nothing else."""
    first = spec(store, 3)
    begun, bulk, journal = await begin(first, lambda _: VALUES)
    await epoch.tidy(first, begun, bulk)
    value = np.full(5, 7.0, np.float32)
    state = (await bulk.kept([1]))[1].arrays[1:]
    granted = SpanGranted("a", 1, 0, 0, 8, 2)
    journal._journal.write(
        [
            Logged(Entry(1, 0, granted), 0, 1.0, []),
            Logged(Entry(1, 1, committed(1, 1, digest=codecs.digest(value))), 1, 1.0, [value, *state]),
        ]
    )
    return first


@in_a_loop
async def test_a_later_epoch_has_every_value_and_does_not_make_the_model(tmp_path: Path) -> None:
    first = await first_epoch(store := Folder(tmp_path))
    second, bulk, _ = await begin(replace(first, epoch=2, begun=1), never)
    assert second.layout == (FRAGMENTS, VALUES[2], VALUES[3])
    assert [theta.tolist() for theta in bulk.current()] == [[0.5] * 5, [7.0] * 5, [2.5] * 5]
    assert [value.version for value in (await bulk.kept(range(3))).values()] == [0, 1, 0]
    assert store.folders(first_values.FOLDER) == ["000001"]


@in_a_loop
async def test_what_cannot_be_read_is_made_anew(tmp_path: Path) -> None:
    first = await first_epoch(Folder(tmp_path))
    (tmp_path / "initial" / "000001" / "0002").write_bytes(b"damaged")
    _, bulk, _ = await begin(replace(first, epoch=2, begun=1), lambda _: VALUES)
    assert bulk.current()[2].tolist() == [2.5] * 5
    assert [value.version for value in (await bulk.kept(range(3))).values()] == [0, 1, 0]


@in_a_loop
async def test_a_resumed_run_makes_it_anew_and_saves_only_what_has_no_commit(tmp_path: Path) -> None:
    first = await first_epoch(store := Folder(tmp_path))
    made: list[FirstValues] = [VALUES]
    resumed = replace(first, epoch=2)
    begun, bulk, _ = await begin(resumed, lambda _: made.pop())
    assert not made
    await epoch.tidy(resumed, begun, bulk)
    assert store.folders("initial") == ["000002"], "what the earlier start saved is removed"
    assert store.names("initial/000002") == [f"initial/000002/{name}" for name in ("0000", "0002", "layout")]


@in_a_loop
async def test_a_record_behind_a_gap_is_not_written(tmp_path: Path) -> None:
    await first_epoch(store := Folder(tmp_path))
    journal, late = StoredJournal(store, "journal", 2, 3), 3
    replay, value = journal.open().found, np.full(5, 9.0, np.float32)
    entry = Entry(2, late, committed(2, 2, 2, digest=codecs.digest(value)))
    logged = Logged(entry, late, 2.0, [value, np.full(5, 1.0, np.float32)])
    with pytest.raises(ValueError, match="entry 3 of epoch 2 where entry 0 of epoch 2 is due"):
        journal.write([logged])
    assert inspect(store, "journal") == [] and replay.versions == [0, 1, 0]


@in_a_loop
async def test_a_journal_without_records_needs_other_sources(tmp_path: Path) -> None:
    with pytest.raises(Incomplete, match="the journal has no records"):
        await begin(spec(Folder(tmp_path), 3, epoch=2, begun=1), never)


@in_a_loop
async def test_a_lost_call_loses_no_value_that_a_learner_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "AGAIN_S", 0.001)
    theta, lost = np.full(5, 9.0, np.float32), Unreachable("lost")
    answers = {"held_versions": [lost, (0, 6)], "held": [lost, (6, theta)]}
    learner = FakePeer(**{method: lambda *_, method=method: answers[method].pop(0) for method in answers})
    found = await RecoverySources({}, 0, (learner,)).held_by_learners([0, 6], {}, theta.nbytes)
    assert [(fragment, [each.value.version for each in offered]) for fragment, offered in found.items()] == [(1, [6])]
