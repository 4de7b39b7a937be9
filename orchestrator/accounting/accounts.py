"""The accounts that checks share, as one fold: incarnations, tokens and time."""

from __future__ import annotations

import copy
from collections.abc import Iterable

from orchestrator.accounting.books import Bookkeeper
from orchestrator.accounting.fold import as_blocks, drive
from orchestrator.accounting.records import Records
from orchestrator.accounting.roster import Roster
from orchestrator.accounting.time.accounts import Goodput, TimeAccounts, Wanted
from orchestrator.accounting.windows import StepWindows
from orchestrator.eventlog.block import Block
from orchestrator.eventlog.events import Event


class Accounts:
    """A fold. Other folds that share its parts take each block after it."""

    def __init__(self) -> None:
        self.records, self.windows = Records(), StepWindows()
        self.roster, self.wanted = Roster(), Wanted()
        self.books = Bookkeeper(self.windows, self.records)
        self.times = TimeAccounts(self.roster, self.books, self.wanted)

    @staticmethod
    def of(log: Iterable[Event] | Iterable[Block]) -> Accounts:
        """The accounts of a whole log, given as blocks or as events, in its canonical order."""
        accounts = Accounts()
        drive((accounts,), as_blocks(log))
        return accounts

    def take(self, block: Block) -> None:
        for fold in (self.records, self.windows, self.roster, self.wanted, self.books):
            fold.take(block)
        self.times.take(block)  # last: it drops incarnations

    def goodput(self) -> tuple[Goodput | None, dict[str, float]]:
        """The time accounts as if the log ended here, and for how many seconds of the window each learner was wanted.

        Computed on a copy: the accounts can take more blocks.
        """
        ended = copy.deepcopy(self)
        ended.books.finish()
        return ended.times.finish(), ended.times.wanted_s
