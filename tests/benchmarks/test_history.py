"""The history that benchmarks make passes every check, whatever its length, and what checks keep does not grow."""

from __future__ import annotations

from pathlib import Path
from pickle import dumps

import pytest

from benchmarks.history import History, write
from orchestrator.accounting import records
from orchestrator.accounting.accounts import Accounts
from orchestrator.checkers.suite import Suite
from orchestrator.eventlog.reader import LogReader, differs, sealed


def folded(root: Path, history: History) -> tuple[Accounts, Suite]:
    facts = write(root, history)
    reader, accounts = LogReader(root), Accounts()
    suite = Suite(accounts)
    for block in reader.rest():
        accounts.take(block)
        suite.take(block)
    assert reader.rows == facts and not reader.findings.damage
    ends = sealed(root)
    assert ends is not None and differs(reader, ends) == ""
    return accounts, suite


@pytest.mark.parametrize(
    ("learners", "fragments", "kill_every", "rows"), [(4, 4, 50, 700), (7, 3, 60, 10_000), (16, 24, 90, 4_000)]
)
def test_every_check_passes(tmp_path: Path, learners: int, fragments: int, kill_every: int, rows: int) -> None:
    accounts, suite = folded(tmp_path / "run", History(learners, 400, fragments, kill_every, rows))
    assert {verdict.name: verdict.reason for verdict in suite.verdicts() if not verdict.stands} == {}
    books = accounts.results().books
    assert books.discarded["killed"] > 0 and books.in_flight == 0


def test_the_state_of_accounts_and_checks_does_not_grow_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five times as long with as many incarnations of each learner: bytes within a quarter."""
    monkeypatch.setattr(records, "KEPT", 64)
    short, long = (
        len(dumps(folded(tmp_path / str(steps), History(8, steps, 6, steps // 16, 4_000)))) for steps in (2_400, 12_000)
    )
    assert long < 1.25 * short
