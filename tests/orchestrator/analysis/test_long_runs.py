"""A long log that is read ahead is the same log."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.analysis import folder
from orchestrator.analysis.folder import check_run
from orchestrator.eventlog import log_writer
from orchestrator.eventlog.compactor import segment_key
from orchestrator.eventlog.log_writer import write_log
from orchestrator.eventlog.reader import Ahead, LogReader
from outer.journal.object_store import Folder
from tests.orchestrator.histories import history


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of a few segments."""
    monkeypatch.setattr(log_writer, "SEGMENT_ROWS", 40)
    write_log(Folder(tmp_path), history())
    return tmp_path


def test_a_log_that_is_read_ahead_is_the_same_and_so_is_its_damage(run: Path) -> None:
    (run / segment_key("syncer", 2)).write_bytes(b"something else")
    (run / segment_key("syncer", 5)).unlink()
    alone, ahead = LogReader(run), LogReader(run)
    with Ahead(ahead, run, 2):
        events = [event for block in ahead.rest() for event in block.events()]
    assert events == [event for block in alone.rest() for event in block.events()]
    assert len(alone.findings.unreadable) == 1 and alone.findings.unlinked
    assert ahead.findings.unreadable == alone.findings.unreadable
    assert ahead.findings.unlinked == alone.findings.unlinked


def test_a_long_run_is_checked_with_help_and_tells_how_far_it_is(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told, alone = list[int](), check_run(run)
    monkeypatch.setattr(folder, "LONG", 3)
    assert check_run(run, 2, told.append) == alone
    assert told == sorted(told) and told[-1] == len(history())
