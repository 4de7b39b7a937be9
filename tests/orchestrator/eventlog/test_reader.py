"""The reader: the whole log once, in one order, however it was cut into groups and segments; damage is named."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.harness import whole_log
from orchestrator.eventlog import compactor, reader
from orchestrator.eventlog.compactor import Compactor
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import FaultHealed
from orchestrator.eventlog.log_writer import LogWriter
from orchestrator.eventlog.reader import LogReader, differs, events
from orchestrator.eventlog.tables import LogPart
from orchestrator.recipe.toml_text import dump, load, template
from outer.journal import journal as journals
from outer.journal.chain import Chain, Segmented, group_key
from outer.journal.journal import StoredJournal
from outer.journal.object_store import Folder
from tests.orchestrator.eventlog.logs import chunks, journal, of_syncer, write, write_log
from tests.orchestrator.histories import history


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of few rows."""
    monkeypatch.setattr(journals, "SNAPSHOT_GROUPS", 2)
    for module in (journals, compactor, reader, whole_log):
        monkeypatch.setattr(module, "SEGMENT_ROWS", 60)


def told() -> list[Event]:
    """A history in the order of the log."""
    return [replace(event, at=round(event.at, 6)) for event in order(history())]


def order(said: list[Event]) -> list[Event]:
    """Each guest before the first later fact of the syncer's own."""
    chain, placed, latest = of_syncer(said), list[Event](), float("-inf")
    guests = sorted((event for event in said if event not in chain), key=lambda event: event.at)
    for event in chain:
        latest = max(latest, event.at) if event.writer == "syncer" else latest
        while guests and event.writer == "syncer" and guests[0].at < latest:
            placed.append(guests.pop(0))
        placed.append(event)
    return placed + guests


EVENTS = told()


def joined(read: Iterator[LogPart]) -> list[Event]:
    """The events of parts that follow each other; each has its own position."""
    found: list[Event] = []
    last = -1
    for part in read:
        names = [name for name in part.tables if name != "contributions"]
        positions = np.sort(np.concatenate([part.tables[name]["position"].to_numpy() for name in names]))
        assert positions[0] > last and np.all(np.diff(positions) > 0)
        last = int(positions[-1])
        found += part.events()
    return found


@pytest.mark.parametrize("group", [7, 60, 1000])
@pytest.mark.parametrize("close", [False, True])
def test_the_log_is_read_in_its_order_from_segments_and_groups(tmp_path: Path, group: int, close: bool) -> None:
    write_log(tmp_path, EVENTS, group, close)
    read = LogReader(tmp_path)
    assert joined(read.rest()) == EVENTS
    assert read.findings.damage == []
    assert [*events(tmp_path)] == EVENTS


def test_blocks_are_bounded_and_segments_are_made_while_the_run_goes(tmp_path: Path) -> None:
    write_log(tmp_path, EVENTS, 20, close=False)
    assert len([*(tmp_path / "log/syncer/segments").iterdir()]) >= 2
    assert max(part.rows for part in LogReader(tmp_path).rest()) <= 60 + 20
    assert len([*(tmp_path / "journal").iterdir()]) < 30


@pytest.mark.parametrize("seed", range(5))
def test_a_log_that_is_followed_is_read_once_and_whole(tmp_path: Path, seed: int) -> None:
    """Polls between groups, with compaction in between; then the rest."""
    chance, store = random.Random(seed), Folder(tmp_path)
    chain = journal(store)
    follower = LogReader(tmp_path)
    found: list[Event] = []
    orchestrator = LogWriter(store, "orchestrator", 1)
    orchestrator.write(event for event in EVENTS if event.writer == "orchestrator")
    chaos = LogWriter(store, "chaos", 1)
    chaos.write(event for event in EVENTS if event.writer == "chaos")
    for some in chunks(of_syncer(EVENTS), 15):
        write(chain, some)
        if chance.random() < 0.3:
            found += joined(follower.poll())
    found += joined(follower.rest())
    assert sorted(found, key=repr) == sorted(EVENTS, key=repr) and follower.findings.damage == []
    assert of_syncer(found) == of_syncer(EVENTS)


def test_following_where_listings_are_dear_lists_little_and_reads_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, listed = Folder(tmp_path), list[str]()
    follower_store = Folder(tmp_path)
    monkeypatch.setattr(follower_store, "retries", True, raising=False)
    names = follower_store.names
    monkeypatch.setattr(follower_store, "names", lambda prefix: listed.append(prefix) or names(prefix))
    chain, found = journal(store), list[Event]()
    follower = LogReader(tmp_path, follower_store)
    for some in chunks(of_syncer(EVENTS), 5):
        write(chain, some)
        found += joined(follower.poll())
    assert len([prefix for prefix in listed if prefix == "journal"]) <= 4
    found += joined(follower.rest())
    assert found == of_syncer(EVENTS) and follower.findings.damage == []


def test_a_group_that_becomes_a_segment_while_it_is_read_is_read_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(tmp_path, EVENTS, 20, close=False)
    chain, reads, read = journal(Folder(tmp_path), 2), list[int](), Chain.group

    def group(self: Chain, position: int, seal: str = "") -> object:
        reads.append(position)
        if len(reads) == 3:
            monkeypatch.setattr(Chain, "group", read)
            chain.finish()
            chain.remove(chain.compact())
            monkeypatch.setattr(Chain, "group", group)
        return read(self, position, seal)

    monkeypatch.setattr(Chain, "group", group)
    follower = LogReader(tmp_path)
    assert joined(follower.rest()) == EVENTS and follower.findings.damage == []


class Watched(Folder):
    """A folder that knows what was read of it, and fails now and then if it is told how often."""

    def __init__(self, root: Path, fails: float = 0.0) -> None:
        super().__init__(root)
        self.reads: list[str] = []
        self._fails, self._chance = fails, random.Random(1)

    def read(self, name: str) -> bytes:
        self.reads.append(name)
        if self._chance.random() < self._fails:
            raise OSError("out of reach")
        return super().read(name)


def test_a_store_that_fails_now_and_then_costs_no_row(tmp_path: Path) -> None:
    write_log(tmp_path, EVENTS, 20, close=False)
    store, found = Watched(tmp_path, fails=0.3), list[Event]()
    follower, failures = LogReader(tmp_path, store), 0
    while len(found) < len(EVENTS):
        try:
            for block in follower.rest():
                found += block.events()
        except OSError:
            failures += 1
    assert found == EVENTS and failures > 3


def test_a_follower_that_begins_late_reads_one_segment_after_the_other(tmp_path: Path) -> None:
    write_log(tmp_path, EVENTS, 20, close=False)
    store = Watched(tmp_path)
    ahead = [
        sum(name.startswith("log/syncer/segments") for name in store.reads) - number
        for number, _ in enumerate(LogReader(tmp_path, store).poll())
    ]
    assert len(ahead) > 4 and max(ahead) <= 2


def test_a_follower_that_stops_at_a_block_loses_none(tmp_path: Path) -> None:
    write_log(tmp_path, EVENTS, 20, close=False)
    one, found = LogReader(tmp_path), list[Event]()
    for _ in range(len(EVENTS)):
        for block in one.poll():
            found += block.events()
            break
    assert found == EVENTS


# ------------------------------------------------------------------ damage


def findings(root: Path) -> reader.Findings:
    read = LogReader(root)
    for _ in read.rest():
        pass
    return read.findings


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(journals, "SNAPSHOT_GROUPS", 2)
        for module in (journals, compactor):
            patched.setattr(module, "SEGMENT_ROWS", 60)
        write_log(root, EVENTS, 20, close=False)
    return root


def objects_of(root: Path) -> list[Path]:
    """Segments, and the groups behind them."""
    read = LogReader(root)
    [*read.rest()]
    segments = sorted((root / "log/syncer/segments").iterdir())
    behind = Compactor(Folder(root), "syncer").newest(Segmented()).last
    groups = sorted(path for path in (root / "journal").iterdir() if path.name.isdecimal() and int(path.name) > behind)
    return segments + groups


@pytest.fixture
def run_dir(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


def test_a_changed_object_is_named(run_dir: Path) -> None:
    for victim in objects_of(run_dir):
        kept = victim.read_bytes()
        victim.write_bytes(kept[:50] + bytes([kept[50] ^ 4]) + kept[51:])
        named = int(victim.name)
        assert any(f" {named}" in each and "checksum" in each for each in findings(run_dir).unreadable), victim
        victim.write_bytes(kept)
    assert findings(run_dir).damage == []


def test_a_dropped_object_is_named_unless_it_is_the_last_or_its_facts_are_elsewhere(run_dir: Path) -> None:
    *victims, _ = objects_of(run_dir)
    needless = 0
    for victim in victims:
        kept = victim.read_bytes()
        victim.unlink()
        read = LogReader(run_dir)
        whole = [event for block in read.rest() for event in block.events()] == EVENTS
        if not any("missing" in each for each in read.findings.unlinked):
            assert whole and victim.parent.name == "segments", victim
            needless += 1  # the newest segment, whose groups are still there
        victim.write_bytes(kept)
    assert needless <= 1


def test_an_object_of_another_run_is_named(run_dir: Path, tmp_path: Path) -> None:
    write_log(tmp_path / "other", EVENTS, 20, close=False)
    for target in (sorted((run_dir / "log/syncer/segments").iterdir())[1], objects_of(run_dir)[-2]):
        shutil.copy(tmp_path / "other" / target.relative_to(run_dir), target)
    found = findings(run_dir)
    assert any("does not follow the segment before it" in each for each in found.unlinked)
    assert any("another run" in each for each in found.unreadable)


@pytest.mark.parametrize("lost", [1, 1000])
def test_a_group_that_is_lost_behind_its_segment_is_told_to_the_next_epoch_and_costs_the_log_nothing(
    tmp_path: Path, lost: int
) -> None:
    store, syncers = Folder(tmp_path), of_syncer(EVENTS)
    first = journal(store)
    for some in chunks(syncers[:100], 10):
        write(first, some)
    first.finish()
    for position in first._chain.positions()[-lost:]:
        store.remove(group_key("journal", position))
    second = StoredJournal(store, "journal", 2, 1, False, Compactor(store, "syncer"))
    assert second.open().damage == [
        f"group {first.segmented.last}: it is missing; a segment of the log has what it held"
    ]
    write(second, syncers[100:])
    read = LogReader(tmp_path)
    assert joined(read.rest()) == syncers and read.findings.damage == []


def test_an_epoch_that_gets_an_old_listing_takes_no_group_for_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Folder(tmp_path)
    first = journal(store)
    for some in chunks(of_syncer(EVENTS)[:100], 10):
        write(first, some)
    first.finish()
    lists, old = Folder.names, [3, 1]
    monkeypatch.setattr(
        Folder, "names", lambda self, of: lists(self, of)[: old.pop() if of == "journal" and old else None]
    )
    second = StoredJournal(store, "journal", 2, 1, False, Compactor(store, "syncer"))
    opened = second.open()
    assert not old and opened.damage == [] and opened.writers == first.writers


def test_a_log_is_read_to_its_end_where_the_listing_is_an_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An epoch whose journal is damaged starts from what is read."""
    write_log(tmp_path, EVENTS, 20, close=False)
    lists = Folder.names
    monkeypatch.setattr(Folder, "names", lambda self, of: lists(self, of)[: 3 if of == "journal" else None])
    assert joined(LogReader(tmp_path).rest()) == EVENTS


def test_an_old_listing_hides_nothing_behind_a_damaged_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 13000031 of mixed: an epoch was rebuilt without a commit that was in the log."""
    monkeypatch.setattr(journals, "SNAPSHOT_GROUPS", 100)  # all stays in groups
    store, syncers = Folder(tmp_path), of_syncer(EVENTS)
    first = journal(store)
    for some in chunks(syncers[:60], 20):
        write(first, some)
    torn = tmp_path / group_key("journal", first._chain.positions()[-1])
    torn.write_bytes(torn.read_bytes()[:-9])
    write(journal(store, 2), syncers[40:])
    lists = Folder.names
    monkeypatch.setattr(Folder, "names", lambda self, of: lists(self, of)[: 2 if of == "journal" else None])
    assert joined(LogReader(tmp_path).rest()) == syncers


# ------------------------------------------------------------------ logs of one writer


def test_a_log_writer_whose_store_failed_writes_all_of_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = LogWriter(Folder(tmp_path), "chaos", 1)
    create = Folder.create

    def forgets(self: Folder, name: str, parts: list[bytes]) -> None:
        create(self, name, parts)
        raise OSError("the answer was lost")

    for number in range(12):
        monkeypatch.setattr(Folder, "create", forgets if number % 3 else create)
        try:
            writer.write([Event("chaos", 1, number, 1.0, FaultHealed(number, "a"))])
        except OSError:
            continue
    monkeypatch.setattr(Folder, "create", create)
    writer.close()
    assert [event.fact.fault for event in events(tmp_path)] == list(range(12))


def test_a_log_writers_groups_stay_few(tmp_path: Path) -> None:
    writer = LogWriter(Folder(tmp_path), "orchestrator", 1)
    for number in range(1000):
        writer.write([Event("orchestrator", 1, number, 1.0, FaultHealed(number, "a"))])
    assert len([*(tmp_path / "log/orchestrator/groups").iterdir()]) < 150
    assert [event.fact.fault for event in events(tmp_path)] == list(range(1000))


def test_a_whole_log_is_written_at_once(tmp_path: Path) -> None:
    ends = reader.seal(whole_log.write_log(Folder(tmp_path), EVENTS))["logs"]
    read = LogReader(tmp_path)
    assert joined(read.rest()) == EVENTS
    assert read.findings.damage == [] and differs(read, ends) == ""
    assert ends["syncer"]["segments"] > 1 and not (tmp_path / "journal").exists()


def test_a_log_is_in_its_folder_or_where_the_recipe_says(tmp_path: Path) -> None:
    """A tape has its log in its folder, though its recipe may name a store."""
    here, there = tmp_path / "run", tmp_path / "elsewhere"
    (here / "log").mkdir(parents=True)
    text = template("demo") + f'\n[durability]\nstore = "{there}"\n'
    (here / "config.toml").write_text(dump(load(_file(tmp_path / "recipe.toml", text))))
    assert str(reader.store_of(here)) == str(Folder(here))
    (here / "log").rmdir()
    assert str(reader.store_of(here)) == str(Folder(there))


def _file(path: Path, text: str) -> Path:
    path.write_text(text)
    return path
