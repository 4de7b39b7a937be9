"""A reader that begins where another stood gives what a reading from the beginning gives, and reads no older part."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from orchestrator.eventlog import chain_reader, compactor, log_writer, reader
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.log_writer import LogWriter
from orchestrator.eventlog.reader import LogReader, Place
from orchestrator.runtime.run_accounts import STATE_FILE  # noqa: F401  registers places
from outer.journal import journal as journals
from outer.journal.object_store import Folder
from outer.journal.saving import dump, load
from tests.orchestrator.eventlog.logs import GUESTS, chunks, journal, of_syncer, write, write_log
from tests.orchestrator.eventlog.test_reader import EVENTS, joined, joined_from


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of few rows."""
    monkeypatch.setattr(journals, "SNAPSHOT_GROUPS", 2)
    for module in (journals, compactor, chain_reader, reader, log_writer):
        monkeypatch.setattr(module, "SEGMENT_ROWS", 60)


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


def again(place: Place) -> Place:
    """Saved and loaded."""
    loaded = load(dump(place))
    assert isinstance(loaded, Place) and loaded == place
    return loaded


def test_every_place_of_a_log_with_guests_leads_to_the_rest_of_it(tmp_path: Path) -> None:
    write_log(tmp_path, EVENTS, 20, close=False)
    one, places = LogReader(tmp_path), []
    for block in one.rest():
        places.append((block.stop, again(one.place)))
    whole = EVENTS
    assert len(places) > 5 and places[-1][0] == len(whole)
    for cut, place in places:
        other = LogReader(tmp_path, place=place)
        assert joined_from(other.rest(), cut) == whole[cut:]
        assert not other.findings.unreadable and not other.findings.unlinked and other.rows == one.rows


@pytest.mark.parametrize("seed", range(3))
def test_a_log_that_grows_is_followed_by_one_reader_after_the_other(tmp_path: Path, seed: int) -> None:
    """With compaction in between: where groups were read there may be a segment."""
    chance, store = random.Random(seed), Folder(tmp_path)
    chain, found, place = journal(store), list[Event](), None
    for log in GUESTS:
        LogWriter(store, log, 1).write(event for event in EVENTS if event.writer == log)
    for some in chunks(of_syncer(EVENTS), 15):
        write(chain, some)
        if chance.random() < 0.3:
            follower = LogReader(tmp_path, hold_s=1.0, clock=lambda: float("inf"), place=place)
            found += joined_from(follower.poll(), len(found))
            place = again(follower.place)
    assert place is not None and 0 < len(found) < len(EVENTS)
    assert found + joined_from(LogReader(tmp_path, place=place).rest(), len(found)) == EVENTS


def test_a_store_that_fails_now_and_then_costs_no_row(tmp_path: Path) -> None:
    write_log(tmp_path, EVENTS, 20, close=False)
    store, found = Watched(tmp_path, fails=0.3), list[Event]()
    follower, failures = LogReader(tmp_path, store), 0
    while len(found) < len(EVENTS):
        try:
            for block in follower.rest():
                assert block.start == len(found)
                found += block.events()
        except OSError:
            failures += 1
    assert found == EVENTS and failures > 3


def test_only_what_is_behind_a_place_is_read(tmp_path: Path) -> None:
    write_log(tmp_path, EVENTS, 20, close=False)
    one = LogReader(tmp_path)
    joined(one.rest())
    for late in (one.place, middle(tmp_path)):
        store = Watched(tmp_path)
        joined_from(LogReader(tmp_path, store, place=late).rest(), len(EVENTS) if late == one.place else late_row(late))
        first = late.syncer.segments - 1  # which is verified
        read = {int(name.rpartition("/")[2]) for name in store.reads if name.startswith("log/syncer/segments")}
        assert first > 0 and min(read) == first


def middle(root: Path) -> Place:
    """A place behind some segments."""
    one = LogReader(root)
    for _ in one.rest():
        if one.place.syncer.segments == 3:
            return one.place
    raise AssertionError("the log is short")


def late_row(place: Place) -> int:
    return place.syncer.rows + place.shift


def test_a_place_of_another_log_is_refused(tmp_path: Path) -> None:
    write_log(tmp_path / "run", EVENTS, 20, close=False)
    write_log(tmp_path / "other", EVENTS, 20, close=False)
    place, name = middle(tmp_path / "run"), "log/syncer/segments/000000002"
    with pytest.raises(ValueError, match=r"syncer cannot be read on from row .*: segment 2 is not the one"):
        LogReader(tmp_path / "other", place=place)
    segment = tmp_path / "run" / name
    content = segment.read_bytes()
    segment.write_bytes(content[:50] + bytes([content[50] ^ 4]) + content[51:])
    with pytest.raises(ValueError, match=r"segment 2: .*checksum"):
        LogReader(tmp_path / "run", place=place)
    segment.unlink()
    with pytest.raises(ValueError, match="segment 2: it is missing"):
        LogReader(tmp_path / "run", place=place)


def test_a_place_behind_groups_that_are_others_now_is_refused(tmp_path: Path) -> None:
    for root in ("run", "other"):
        write(journal(Folder(tmp_path / root)), of_syncer(EVENTS)[:30])
    one = LogReader(tmp_path / "run")
    joined(one.rest())
    with pytest.raises(ValueError, match="syncer cannot be read on from row 30: group"):
        LogReader(tmp_path / "other", place=one.place)
    shutil.rmtree(tmp_path / "run" / "journal")
    with pytest.raises(ValueError, match="it is missing"):
        LogReader(tmp_path / "run", place=one.place)


@pytest.mark.parametrize("hold_s", [0.0, 5.0])
def test_a_follower_that_begins_late_reads_one_segment_after_the_other(tmp_path: Path, hold_s: float) -> None:
    write_log(tmp_path, EVENTS, 20, close=False)
    store = Watched(tmp_path)
    ahead = [
        sum(name.startswith("log/syncer/segments") for name in store.reads) - number
        for number, _ in enumerate(LogReader(tmp_path, store, hold_s).poll())
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
