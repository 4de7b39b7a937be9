"""What checks, accounts and report keep does not grow with a run; and a long log that is read ahead is the same log."""

from __future__ import annotations

from pathlib import Path
from pickle import dumps

import pytest

from chaos.simulation.cluster import Cluster
from chaos.simulation.profile import draw
from orchestrator.accounting import records
from orchestrator.accounting.accounts import Accounts
from orchestrator.checkers import log
from orchestrator.checkers.suite import Suite, check_run
from orchestrator.eventlog import log_writer
from orchestrator.eventlog.block import block_of
from orchestrator.eventlog.compactor import segment_key
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.log_writer import write_log
from orchestrator.eventlog.reader import Ahead, LogReader
from outer.journal.object_store import Folder
from tests.orchestrator.histories import history


def simulated(syncer_steps: int) -> list[Event]:
    cluster = Cluster(draw(6, "mixed", syncer_steps=syncer_steps))
    cluster.run()
    return list(cluster.context.events())


def most_kept(events: list[Event], rows: int = 250) -> int:
    """Bytes of accounts and checks between two blocks, at most; every check passes."""
    accounts = Accounts()
    checks = Suite(accounts)
    most = 0
    for first in range(0, len(events), rows):
        block = block_of(events[first : first + rows], first)
        accounts.take(block)
        checks.take(block)
        most = max(most, len(dumps((accounts, checks))))
    assert {verdict.name: verdict.reason for verdict in checks.verdicts() if not verdict.stands} == {}
    return most


def test_the_state_of_accounts_and_checks_does_not_grow_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five times as long, with as many faults a step: at most twice as much."""
    monkeypatch.setattr(records, "KEPT", 64)
    short, long = most_kept(simulated(300)), most_kept(simulated(1_500))
    assert long < 2.0 * short


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
    monkeypatch.setattr(log, "LONG", 3)
    assert check_run(run, 2, told.append) == alone
    assert told == sorted(told) and told[-1] == len(history())
