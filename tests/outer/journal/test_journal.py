"""The journal: what is acknowledged is there for the next epoch, and nobody writes behind its back."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from outer.journal import journal as journals
from outer.journal.chain import IDENTITY, identity, positions
from outer.journal.groups import Logged
from outer.journal.journal import Opened, StaleEpoch, StoredJournal, inspect
from outer.journal.object_store import Folder, Objects, objects
from outer.protocol.facts import Committed, SpanGranted, SpanReturned, StateRebuilt
from outer.protocol.fragments import Fragment, Tensor
from outer.protocol.recovery import Entry, recover
from tests.outer.journal.records import committed

FRAGMENTS = 3


REBUILT = StateRebuilt("group 3: it is missing", ("journal",), (), (0,), (2,))


class Writer:
    """One epoch, and what it has been told is durable."""

    def __init__(self, store: Objects | Path, epoch: int) -> None:
        store = Folder(store) if isinstance(store, Path) else store
        self.journal = StoredJournal(store, "journal", epoch, FRAGMENTS)
        self.opened: Opened = self.journal.open()
        self.entries: list[Entry] = []
        self.values: dict[int, float] = {}
        self.epoch = epoch
        self._step = max(self.opened.found.versions, default=0)

    def commit(self, *fragments: int) -> None:
        """One group, of so many commits."""
        group = []
        for fragment in fragments:
            self._step += 1
            group.append(self._entry(committed(self._step, fragment, self.epoch), len(group)))
            self.values[fragment] = float(self.epoch * 1000 + self._step)
        self._write(group, [[np.full(5, self.values[f], np.float32), np.arange(3)] for f in fragments])

    def grant(self, span: int) -> None:
        granted = SpanGranted("a", 1, span, 8 * span, 8 * span + 8, 2)
        self._write([self._entry(granted, 0)], [[]])

    def _entry(self, record: Committed | SpanGranted | SpanReturned, behind: int) -> Entry:
        sequence = len(self.entries) + behind
        return Entry(self.epoch, sequence, record)

    def _write(self, entries: list[Entry], arrays: list[list[np.ndarray]]) -> None:
        self.journal.write([Logged(e, e.sequence, 1.0, a) for e, a in zip(entries, arrays, strict=True)])
        self.entries += entries
        while self.journal.needs_compaction:
            self.journal.remove(self.journal.compact())


@pytest.fixture(params=["folder", "door", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Objects:
    """On object storage with fewer groups: each is a request."""
    if request.param == "folder":
        return Folder(tmp_path)
    monkeypatch.setattr(journals, "SNAPSHOT_GROUPS", 8)
    return objects(request.getfixturevalue(request.param)())


def held(opened: Opened) -> dict[int, float]:
    return {fragment: float(value.arrays[0][0]) for fragment, value in opened.values.items()}


def files(root: Path) -> list[Path]:
    return sorted(path for path in (root / "journal").iterdir() if path.name.isdecimal())


def _alike(opened: Opened, entries: list[Entry]) -> bool:
    """Spans and coverage have no equality of their own."""
    ours, theirs = opened.found, recover(entries, FRAGMENTS)
    spans = ours.spans.state() == theirs.spans.state()
    covered = {k: v.intervals for k, v in ours.coverage.items()} == {k: v.intervals for k, v in theirs.coverage.items()}
    ours.spans, ours.coverage = theirs.spans, theirs.coverage
    return spans and covered and ours == theirs


@pytest.mark.parametrize("seed", range(3))
def test_over_many_epochs_and_snapshots_nothing_is_lost_and_the_files_stay_few(store: Objects, seed: int) -> None:
    chance = random.Random(seed)
    entries: list[Entry] = []
    values: dict[int, float] = {}
    for epoch in range(1, 5):
        writer = Writer(store, epoch)
        assert _alike(writer.opened, entries)
        assert held(writer.opened) == values
        for _ in range(chance.randrange(2 * journals.SNAPSHOT_GROUPS)):
            writer.commit(*chance.sample(range(FRAGMENTS), chance.randint(1, FRAGMENTS)))
        entries += writer.entries
        values |= writer.values
    assert len(positions(store, "journal")) <= journals.SNAPSHOT_GROUPS + FRAGMENTS + 4 + 1
    assert inspect(store, "journal") == []


def test_a_zombie_writes_nothing_however_much_of_the_journal_is_gone(store: Objects) -> None:
    zombie = Writer(store, 1)
    zombie.commit(0)
    successor = Writer(store, 2)
    for _ in range(3 * journals.SNAPSHOT_GROUPS):
        successor.commit(1)
    assert 1 in positions(store, "journal"), "it has the newest value of fragment 0"
    assert 0 not in positions(store, "journal"), "the zombie's opening: it went before what was behind it"
    assert 2 in positions(store, "journal"), "the successor's opening"
    assert 3 not in positions(store, "journal")
    for _ in range(2):
        with pytest.raises(StaleEpoch):
            zombie.commit(0)
    assert held(Writer(store, 3).opened) == {0: 1001.0, 1: successor.values[1]}


def test_an_epoch_that_is_not_newer_does_not_open(store: Objects) -> None:
    Writer(store, 3)
    for epoch in (1, 3):
        with pytest.raises(StaleEpoch, match="epoch 3 has opened"):
            Writer(store, epoch)


# ------------------------------------------------------------------ damage


def flipped(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8 % len(data)] ^= 1 << bit % 8
    path.write_bytes(data)


def truncated(path: Path, length: int) -> None:
    path.write_bytes(path.read_bytes()[: length % path.stat().st_size])


def missing(path: Path, _: int) -> None:
    path.unlink()


@pytest.mark.parametrize("damage", [flipped, truncated, missing])
def test_whatever_group_is_damaged_it_is_said_and_only_what_is_before_it_is_used(
    tmp_path: Path, damage: Callable[[Path, int], None]
) -> None:
    chance = random.Random(7)
    for victim in range(1, 9):
        root = tmp_path / f"{damage.__name__}-{victim}"
        writer = Writer(root, 1)
        states = [{}]
        for fragment in (0, 1, 2, 0, 1, 2, 0, 1):
            writer.commit(fragment)
            states.append(dict(writer.values))
        damage(files(root)[victim], chance.randrange(10**6))
        opened = Writer(root, 2).opened
        last = victim == 8 and damage is missing  # the newest is gone without a trace: nothing is behind it
        assert bool(opened.damage) is not last
        assert held(opened) == states[victim - 1]
        assert sum(version > 0 for version in opened.found.versions) == len(states[victim - 1])
        again = Writer(root, 3)
        assert held(again.opened) == states[victim - 1], "what the epoch before cut off stays cut off"
        assert again.opened.damage == opened.damage, "and is lacking still"
        again.journal.seed(again.journal._replay, again.opened.values, REBUILT)
        once_more = Writer(root, 4)
        assert (held(once_more.opened), once_more.opened.damage) == (states[victim - 1], []), "until one begins anew"
        assert once_more.opened.rebuilt == REBUILT, "which told nobody"
        once_more.commit(0)
        assert Writer(root, 5).opened.rebuilt is None


def test_a_group_of_another_run_or_of_another_place_is_not_taken(tmp_path: Path) -> None:
    for name in ("one", "other"):
        writer = Writer(tmp_path / name, 1)
        for fragment in (0, 1, 2, 0):
            writer.commit(fragment)
    ours, theirs = files(tmp_path / "one"), files(tmp_path / "other")
    ours[3].write_bytes(theirs[3].read_bytes())
    opened = Writer(tmp_path / "one", 2).opened
    assert "another run" in opened.damage[0] and held(opened) == {0: 1001.0, 1: 1002.0}
    theirs[4].write_bytes(theirs[2].read_bytes())
    opened = Writer(tmp_path / "other", 2).opened
    assert "another position" in opened.damage[0] and held(opened) == {0: 1001.0, 1: 1002.0, 2: 1003.0}


def states_of(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("damage", [flipped, truncated, missing])
def test_a_survey_finds_damage_wherever_it_is_and_changes_nothing(
    tmp_path: Path, damage: Callable[[Path, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a snapshot, with values from before it, and the opening of the newest epoch."""
    monkeypatch.setattr(journals, "SNAPSHOT_GROUPS", 4)
    for epoch, fragments in ((1, (0, 1)), (2, (1,)), (3, (1, 2))):
        writer = Writer(tmp_path, epoch)
        for fragment in fragments:
            writer.commit(fragment)
    whole, there = states_of(tmp_path), [tmp_path / "journal" / IDENTITY, *files(tmp_path)]
    assert inspect(Folder(tmp_path), "journal") == [] and len(there) > 5
    for victim in there:
        damage(victim, 12345)
        hurt = states_of(tmp_path)
        newest = victim == there[-1] and damage is missing  # gone without a trace: nothing is behind it
        found = inspect(Folder(tmp_path), "journal")
        assert newest or any(victim.name.lstrip("0") in said for said in found), (victim, found)
        assert states_of(tmp_path) == hurt
        victim.write_bytes(whole[victim])


def test_a_survey_of_no_journal_finds_and_makes_nothing(tmp_path: Path) -> None:
    assert inspect(Folder(tmp_path / "run"), "journal") == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", [flipped, truncated, missing])
def test_a_journal_whose_identity_is_damaged_is_known_by_its_groups(
    tmp_path: Path, damage: Callable[[Path, int], None]
) -> None:
    writer = Writer(tmp_path, 1)
    writer.commit(0)
    run, victim = identity(Folder(tmp_path), "journal"), tmp_path / "journal" / IDENTITY
    damage(victim, 99)
    assert identity(Folder(tmp_path), "journal") == run == writer.journal.run
    assert held(Writer(tmp_path, 2).opened) == writer.values


def test_a_journal_of_which_nothing_is_left_is_said_to_be_damaged_and_goes_on(tmp_path: Path) -> None:
    """What was in it is somebody else's to find; it is not taken for one that never was."""
    Writer(tmp_path, 1).commit(0)
    for path in (*files(tmp_path), tmp_path / "journal" / IDENTITY):
        flipped(path, 1000)
    assert identity(Folder(tmp_path), "journal") is None
    second = Writer(tmp_path, 2)
    assert second.opened.values == {} and len(second.opened.damage) == 2
    second.commit(1)
    third = Writer(tmp_path, 3)
    assert held(third.opened) == second.values and third.opened.damage == second.opened.damage
    assert third.journal.run == second.journal.run


# ------------------------------------------------------------------ cuts


def test_a_cuts_part_has_every_fragment_those_that_never_committed_as_they_began(tmp_path: Path) -> None:
    writer = Writer(tmp_path, 1)
    writer.commit(2)
    fragments = [Fragment(index, (Tensor(f"t{index}", (5,), "float32"),)) for index in range(FRAGMENTS)]
    fragments[1] = Fragment(1, (Tensor("w[4:9]", (5,), "float32", leaf="w", start=4),))
    begun = {index: np.full(5, float(index), np.float32) for index in range(FRAGMENTS)}
    header, arrays = writer.journal.cut().part(1, 7, fragments, begun)
    assert (header["values"], header["initial"]) == ([[2, 1, 2]], [0, 1])
    assert [float(array[0]) for array in arrays] == [1001.0, 0.0, 0.0, 1.0]
    assert header["tensors"][::2] == [[[f"t{index}", [5], "float32", "merged"]] for index in (0, 2)]
    name, shape, *more = header["tensors"][1][0]
    assert Tensor(name, tuple(shape), *more) == fragments[1].tensors[0]
