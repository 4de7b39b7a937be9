"""Groups carry the log: facts and records in one order, durable together, and kept until they are in a segment."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outer.journal import journal as journals
from outer.journal.chain import Chain, ChainLink, Segmented, positions
from outer.journal.groups import FactRun, Group, Item, Logged, encode
from outer.journal.journal import StoredJournal
from outer.journal.object_store import Folder
from outer.protocol.facts import FactsLost, StepOpened, SyncerStarted
from outer.protocol.recorder import Recorded
from outer.protocol.recovery import Entry
from tests.outer.journal.records import committed


def commit(sequence: int, number: int) -> Logged:
    return Logged(Entry(1, sequence, committed(sequence + 1, 0)), number, 5.25, [np.full(3, sequence, np.float32)])


def run(writer: str, incarnation: int, first: int, *facts: Any) -> FactRun:
    return FactRun(writer, incarnation, [(first + n, 1.0 + n, fact) for n, fact in enumerate(facts)])


def opened(step: int) -> StepOpened:
    return StepOpened(step, None)


def group(items: list[Item]) -> Group:
    return Group(1, encode(items), [array for item in items if isinstance(item, Logged) for array in item.arrays], "")


def test_a_group_holds_facts_and_records_in_their_order_and_gives_the_records_back() -> None:
    items = [run("a", 2, 7, opened(1), opened(2)), commit(0, 3), run("syncer", 1, 4, opened(3))]
    written = group(items)
    kinds = [
        item["kind"] if isinstance(item, dict) else [fact[1] for fact in item[3]] for item in written.header["items"]
    ]
    assert kinds == [["StepOpened", "StepOpened"], "Committed", ["StepOpened"]]
    assert written.rows == 4 and written.entries() == [items[1].entry]
    assert written.runs() == [Recorded("a", 2, 8), Recorded("syncer", 1, 3), Recorded("syncer", 1, 4)]
    [(fragment, value)] = written.values()
    assert (fragment, value.version, value.arrays[0].tolist()) == (0, 1, [0.0, 0.0, 0.0])


RULES = (0,), 0, 2.0, 3.0, 0.0, "journal", 0, "paper", "fp32"  # of a syncer, from `versions` on


@given(st.lists(st.sampled_from([math.nan, -math.inf, 0.1, 3, True, None, 'a"b\n']), max_size=4))
def test_any_value_is_strict_json(values: list[Any]) -> None:
    import json

    header = encode([run("a", 1, 0, SyncerStarted(values, tuple(values), (), (), 1, 1, 1, *RULES))])  # type: ignore[arg-type]
    assert json.loads(json.dumps(header, allow_nan=False))["rows"] == 1


# ------------------------------------------------------------------ in the journal


class Segments:
    """Remembers what becomes segments, instead of writing it."""

    def __init__(self) -> None:
        self.made: list[Segmented] = []
        self.rows: list[Any] = []

    def newest(self, known: Segmented) -> Segmented:
        return self.made[-1] if len(self.made) > known.segments else known

    def write(self, run: str, groups: Iterable[Group], known: Segmented, damage: Sequence[str]) -> Segmented:
        rows, last = known.rows, known.link(run)
        for each in groups:
            assert each.row == rows
            rows, last = each.next_row, ChainLink(each.position, each.seal)
            self.rows += each.header.get("items", [])
        self.made.append(Segmented(known.segments + 1, "seal", run, *last, rows))
        return self.made[-1]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "SNAPSHOT_GROUPS", 4)
    monkeypatch.setattr(journals, "SEGMENT_GROUPS", 20)


def journal(root: Path, epoch: int, segments: Segments | None = None, **options: Any) -> StoredJournal:
    return StoredJournal(Folder(root), "journal", epoch, 2, segmenter=segments, **options)


def keep_up(made: StoredJournal) -> None:
    if made.needs_compaction:
        made.remove(made.compact())
        if made.needs_segment:
            made.segment()


def test_the_next_epoch_knows_up_to_which_fact_of_whom_the_log_goes_and_how_long_it_is(tmp_path: Path) -> None:
    first = journal(tmp_path, 1)
    assert first.open().writers == []
    for number in range(11):
        first.write([run("a", 1, 2 * number, opened(1), opened(2)), commit(number, number)])
        keep_up(first)
    lost = FactsLost("b", 1, 0, 4, "gone")
    first.write([run("syncer", 1, 11, lost)])
    second = journal(tmp_path, 2)
    assert second.open().writers == [["a", 1, 21], ["b", 1, 4], ["syncer", 1, 11]]
    assert second.rows == 34


def test_no_group_goes_before_its_facts_are_in_a_segment_and_then_few_are_left(tmp_path: Path) -> None:
    segments = Segments()
    made = journal(tmp_path, 1, segments)
    made.open()
    for number in range(100):
        made.write([run("a", 1, number, opened(number))])
        keep_up(made)
        covered = made.segmented.last
        there = positions(Folder(tmp_path), "journal")
        assert set(range(covered + 1, made._next)) <= set(there)
        assert len(there) <= 2 * journals.SEGMENT_GROUPS + 2 * journals.SNAPSHOT_GROUPS
    made.finish()
    assert [item[2] for item in segments.rows] == list(range(100)), "every fact once, in order"
    assert made.segmented.rows == made.rows == 100


def test_groups_with_large_values_become_segments_sooner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "SEGMENT_GROUPS", 10**6)
    monkeypatch.setattr(journals, "SEGMENT_BYTES", 50_000)
    made = journal(tmp_path, 1, Segments())
    made.open()
    most = 0
    for number in range(60):
        entry = commit(number, number).entry
        made.write([Logged(entry, number, 1.0, [np.zeros(2500, np.float32)])])
        keep_up(made)
        most = max(most, sum(path.stat().st_size for path in (tmp_path / "journal").iterdir()))
    assert 50_000 < most < 3 * 50_000


def test_a_successor_reads_the_newest_snapshot_and_the_groups_behind_it_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    for length in (50, 500):
        made = journal(tmp_path / str(length), 1, Segments())
        made.open()
        for number in range(length):
            made.write([run("a", 1, number, opened(number))])
            keep_up(made)
        count: list[int] = []
        read = Chain.group
        monkeypatch.setattr(Chain, "group", lambda *given, count=count, read=read: count.append(1) or read(*given))
        journal(tmp_path / str(length), 2, made._segmenter).open()
        monkeypatch.setattr(Chain, "group", read)
        reads.append(len(count))
    assert max(reads) <= journals.SNAPSHOT_GROUPS + 2


def test_a_segment_that_a_dead_epoch_made_but_did_not_note_counts_for_the_next(tmp_path: Path) -> None:
    segments = Segments()
    first = journal(tmp_path, 1, segments)
    first.open()
    for number in range(9):
        first.write([run("a", 1, number, opened(number))])
        keep_up(first)
    first.segment()
    second = journal(tmp_path, 2, segments)
    second.open()
    assert second.segmented == segments.made[-1] and second.rows == 9
    second.write([run("a", 1, 9, opened(9))])
    second.finish()
    assert [item[2] for item in segments.rows] == list(range(10))


def test_a_journal_without_values_keeps_records_and_facts(tmp_path: Path) -> None:
    first = journal(tmp_path, 1, persistent=False)
    first.open()
    first.write([run("a", 1, 0, opened(1)), commit(0, 0)])
    second = journal(tmp_path, 2, persistent=False)
    found = second.open()
    assert found.values == {} and found.found.versions == [1, 0]
    assert found.writers == [["a", 1, 0], ["syncer", 1, 0]]
    assert all(path.stat().st_size < 4096 for path in (tmp_path / "journal").glob("0*"))


# ------------------------------------------------------------------ reading forward


def forward(root: Path, made: StoredJournal) -> tuple[list[int], list[str]]:
    damage: list[str] = []
    chain = Chain(Folder(root), "journal", made.run)
    read = chain.forward(ChainLink(), 0, damage)
    return [item[2] for each in read for item in each.header.get("items", [])], damage


@pytest.mark.parametrize("victim", range(1, 6))
@pytest.mark.parametrize("missing", [False, True])
def test_damage_in_the_middle_is_named_and_what_is_behind_it_is_read(
    tmp_path: Path, victim: int, missing: bool
) -> None:
    made = journal(tmp_path, 1, Segments())
    made.open()
    for number in range(7):
        made.write([run("a", 1, number, opened(number))])
    path = tmp_path / "journal" / f"{victim:012d}"
    path.unlink() if missing else path.write_bytes(path.read_bytes()[:-1])
    read, damage = forward(tmp_path, made)
    assert read == [number for number in range(7) if number != victim - 1]
    assert damage[0].startswith(f"group {victim}: ")


def test_what_a_later_epoch_cut_off_is_no_part_of_the_log(tmp_path: Path) -> None:
    made = journal(tmp_path, 1, Segments())
    made.open()
    for number in range(4):
        made.write([run("a", 1, number, opened(number))])
    path = tmp_path / "journal" / f"{3:012d}"
    path.write_bytes(path.read_bytes()[:-1])
    second = journal(tmp_path, 2, Segments())
    assert second.open().writers == [["a", 1, 1]]
    second.write([run("a", 1, 2, opened(9))])
    assert forward(tmp_path, second) == ([0, 1, 2], [])
