"""books.balance, books.committed (I3, counted once): every token has one fate, and the syncer counts as the log does.

Whether a contribution should have merged is for merges.* to check; samples are in orchestrator/checkers/spans.py.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from orchestrator.accounting.ledger import Ledger
from orchestrator.accounting.verdicts import Verdict
from orchestrator.checkers.claims import Failures, judge
from orchestrator.checkers.state import EPOCHS_KEPT, CheckState
from orchestrator.eventlog.block import Block
from outer.protocol.facts import Finished


@dataclass
class BooksCheck:
    state: CheckState
    committed: Failures = field(default_factory=Failures)
    _ends: deque[int] = field(default_factory=lambda: deque(maxlen=EPOCHS_KEPT))  # tokens committed, as epochs end

    def take(self, block: Block) -> None:
        for commit, total in zip(self.state.commits, self.state.keeper.committed_at, strict=True):
            if commit.tokens_committed != total:
                self.committed.add(
                    f"at syncer step {commit.syncer_step} the syncer counts {commit.tokens_committed} "
                    f"committed tokens, the steps in the log {total}"
                )
        self._ends += [said.fact.tokens_committed for said in self.state.story if isinstance(said.fact, Finished)]

    def verdicts(self) -> list[Verdict]:
        keeper = self.state.keeper
        books = keeper.books()
        tables: list[tuple[str, Ledger]] = [("the run", books), *sorted(books.by_learner.items())]
        tables += [(f"fragment {index}", share) for index, share in enumerate(books.token_fragments)]
        failures = [
            f"{name}: {table.processed} tokens processed, but {table.committed} committed, "
            f"{sum(table.discarded.values())} discarded, {table.in_flight} in flight and {table.unknown} unknown"
            for name, table in tables
            if not table.balanced
        ]
        if keeper.ended and books.in_flight:
            failures.append(f"the run is over with {books.in_flight} tokens in flight")
        failures += [
            f"{name}: {count} tokens is no count" for name, table in tables for count in _numbers(table) if count < 0
        ]
        committed = Failures(self.committed.count, self.committed.first)
        if books.committed != keeper.committed:
            told = f"the books hold {books.committed} committed tokens"
            committed.add(f"{told}, counting commit by commit gives {keeper.committed}")
        for tokens in self._ends:
            if tokens != books.committed:
                told = f"the syncer finished at {tokens} committed tokens"
                committed.add(f"{told}, the books hold {books.committed}")
        return [
            judge("books.balance", self.state.steps, "units", failures),
            judge("books.committed", self.state.committed, "commits", committed),
        ]


def _numbers(table: Ledger) -> list[int]:
    return [table.processed, table.committed, table.in_flight, table.unknown, *table.discarded.values()]
