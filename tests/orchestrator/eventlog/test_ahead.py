"""A log that other processes read ahead is the same log, and its damage is named all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.history import History, write
from orchestrator.checkers import log, suite
from orchestrator.checkers.suite import check_run
from orchestrator.eventlog.compactor import segment_key
from orchestrator.eventlog.reader import Ahead, LogReader


def test_a_log_that_is_read_ahead_is_the_same_and_so_is_its_damage(tmp_path: Path) -> None:
    write(tmp_path / "run", History(4, 300, 4, 50, 400))
    (tmp_path / "run" / segment_key("syncer", 2)).write_bytes(b"something else")
    (tmp_path / "run" / segment_key("syncer", 5)).unlink()
    alone, ahead = LogReader(tmp_path / "run"), LogReader(tmp_path / "run")
    with Ahead(ahead, tmp_path / "run", 2):
        events = [event for block in ahead.rest() for event in block.events()]
    assert events == [event for block in alone.rest() for event in block.events()]
    assert len(alone.findings.unreadable) == 1 and alone.findings.unlinked
    assert ahead.findings.unreadable == alone.findings.unreadable
    assert ahead.findings.unlinked == alone.findings.unlinked


def test_a_long_run_is_checked_with_help_and_tells_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = write(tmp_path / "run", History(4, 300, 4, 50, 400))
    told: list[int] = []
    helped = []

    class Helped(Ahead):
        def __init__(self, reader: LogReader, run_dir: Path, jobs: int) -> None:
            helped.append(jobs)
            super().__init__(reader, run_dir, 0)

    monkeypatch.setattr(suite, "Ahead", Helped)
    monkeypatch.setattr(log, "LONG", 3)
    assert {v.name: v.reason for v in check_run(tmp_path / "run", 2, told.append) if not v.stands} == {}
    monkeypatch.setattr(log, "LONG", 10_000)
    check_run(tmp_path / "run", 2)
    assert helped == [1, 0]
    assert told == sorted(told) and told[-1] == facts
