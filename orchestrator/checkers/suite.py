"""Runs all checks over one log, in one pass: given as blocks or events, or as a run's folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from orchestrator.accounting.accounts import Accounts
from orchestrator.accounting.fold import Fold, as_blocks, drive
from orchestrator.accounting.verdicts import Verdict
from orchestrator.checkers import (
    log,
)
from orchestrator.checkers.books import BooksCheck
from orchestrator.checkers.bounded import Bounded
from orchestrator.checkers.claims import CLAIMS, judge
from orchestrator.checkers.closed import Closed
from orchestrator.checkers.durable import DurableCheck
from orchestrator.checkers.fencing import Fencing
from orchestrator.checkers.isolation import Isolation
from orchestrator.checkers.links import LinksCheck
from orchestrator.checkers.liveness import Liveness
from orchestrator.checkers.log import LogCheck
from orchestrator.checkers.merges import Merges
from orchestrator.checkers.replayable import Replayable
from orchestrator.checkers.spans import SpansCheck
from orchestrator.checkers.state import Checker, CheckState
from orchestrator.checkers.time_accounted import TimeAccounted
from orchestrator.checkers.versions import Versions
from orchestrator.eventlog.block import Block
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.reader import Ahead

FOLDS: tuple[Callable[[CheckState], Checker], ...] = (
    DurableCheck,
    Versions,
    BooksCheck,
    SpansCheck,
    Merges,
    Fencing,
    Replayable,
    Bounded,
    Closed,
    LinksCheck,
)
ORDER = {name: place for place, name in enumerate(CLAIMS)}


class Suite:
    """All checks that are folds, as one. Shares the accounts, which take each block first."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._state = CheckState(accounts.windows, accounts.records, accounts.books)
        self.log = LogCheck()
        self._checkers = [make(self._state) for make in FOLDS]
        parts = accounts.roster, accounts.windows, accounts.records
        self._liveness, self._isolation, self._timed = Liveness(*parts), Isolation(*parts), TimeAccounted(*parts)

    def take(self, block: Block) -> None:
        self._state.take(block)
        for fold in self.folds:
            fold.take(block)

    @property
    def folds(self) -> list[Fold]:
        return [self.log, *self._checkers, self._liveness, self._isolation, self._timed]

    def verdicts(self) -> list[Verdict]:
        found = [verdict for checker in (self.log, *self._checkers) for verdict in checker.verdicts()]
        found += [*self._liveness.verdicts(), *self._isolation.verdicts()]
        found += self._timed.verdicts(*self._accounts.goodput())
        return sorted(found, key=lambda verdict: ORDER[verdict.name])


def check(said: Iterable[Event] | Iterable[Block]) -> list[Verdict]:
    """All verdicts on a log in its canonical order, in a fixed order. Of an empty log every verdict is `unknown`."""
    return _checked(as_blocks(said)).verdicts()


def _checked(blocks: Iterable[Block]) -> Suite:
    accounts = Accounts()
    suite = Suite(accounts)
    drive((accounts, suite), blocks)
    return suite


def check_run(run_dir: Path, jobs: int = 1, progress: Callable[[int], None] = lambda facts: None) -> list[Verdict]:
    """All verdicts on a run's folder; first, whether its log can be read and is unaltered.

    Of `jobs` processes this one makes the checks, and the others read ahead if the log is long. `progress` is called
    with the number of facts so far.
    A damaged log is `violated`, a missing one `unknown`; all other verdicts are then `unknown`.
    """
    folder = log.LogFolder(run_dir)
    try:
        with Ahead(folder.reader, run_dir, jobs - 1 if folder.long else 0):
            suite = _checked(_counted(folder.blocks(), progress))
    except OSError as error:
        return [judge("log.readable", 0, "", [str(error)]), *log.UNKNOWN, *check([])]
    return [*folder.verdicts(suite.log.config_hash), *(suite.verdicts() if folder.readable else check([]))]


def _counted(blocks: Iterable[Block], progress: Callable[[int], None]) -> Iterator[Block]:
    for block in blocks:
        yield block
        progress(block.stop)
