"""All accounting of a run as one fold: incarnations, tokens, time, faults, and what else the summary counts."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestrator.accounting.books import Bookkeeper
from orchestrator.accounting.fold import as_blocks, drive
from orchestrator.accounting.ledger import Books
from orchestrator.accounting.records import Records
from orchestrator.accounting.roster import Roster
from orchestrator.accounting.time.accounts import Goodput, TimeAccounts, Wanted
from orchestrator.accounting.time.fault_table import FaultTable, Row
from orchestrator.accounting.windows import StepWindows
from orchestrator.eventlog.block import Block
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import Evaluated, EvaluationFailed, RunFinished, RunStarted
from outer.numeric.formats import known
from outer.protocol.facts import Finished, Refused, SetAside, StepPassed

NEWEST = (RunStarted, RunFinished, Evaluated, EvaluationFailed)  # of these kinds the newest fact is kept


@dataclass(frozen=True)
class Participation:
    """Merged contributions as shares of the possible ones."""

    mean: float  # of commits x learners wanted at each
    alive_mean: float | None  # of the live learners, summed over commits; None: there never were any
    by_learner: dict[str, float]  # share of the commits that each took part in


class Tallies:
    """A fold: what is counted besides tokens, time and faults. Roster, records and `wanted` take each block first."""

    def __init__(self, roster: Roster, records: Records, wanted: Wanted) -> None:
        self._roster, self._records, self._wanted = roster, records, wanted
        self.newest: dict[str, Any] = {}  # by kind, the newest fact
        self.evaluated: Evaluated | None = None  # the first
        self.syncer_step: int | None = None  # the newest that was committed or passed
        self.commits: Counter[int] = Counter()  # by fragment
        self.contributions: Counter[int] = Counter()  # the same, in the run's number format
        self.sent_otherwise = 0  # bytes of those in a format of their own
        self.adoptions: Counter[int] = Counter()  # the same, of versions whose bytes nobody measured
        self.downloaded = 0  # bytes of the others
        self.refusals: Counter[str] = Counter()  # by reason
        self.set_aside: list[list[int]] = []  # samples [start, stop), as many as data.set_aside at most
        self._took_part: Counter[str] = Counter()  # by learner, in commits
        self._could: Counter[str] = Counter()  # the same: while it was wanted, and those it did while leaving
        self._live = 0  # summed over commits

    def take(self, block: Block) -> None:
        steps = self._records.commits.syncer_step.tolist()
        for position, event in block.others:
            fact = event.fact
            if self._records.is_repeated(position):
                continue
            if isinstance(fact, NEWEST):
                self.newest[type(fact).__name__] = fact
                if isinstance(fact, Evaluated):
                    self.newest.pop(EvaluationFailed.__name__, None)
                self.evaluated = self.evaluated or (fact if isinstance(fact, Evaluated) else None)
            elif isinstance(fact, Refused):
                self.refusals[fact.reason] += 1
            elif isinstance(fact, SetAside):
                self.set_aside.append([fact.start, fact.stop])
            elif isinstance(fact, (StepPassed, Finished)):
                steps.append(fact.syncer_step)
        if steps:
            self.syncer_step = max(steps) if self.syncer_step is None else max(self.syncer_step, *steps)
        self.adoptions.update(_counted(block.adoptions.fragment[block.adoptions.bytes == 0]))
        self.downloaded += int(block.adoptions.bytes.sum())
        self._participate(block)

    def newest_of(self, kind: type[Any]) -> Any:
        return self.newest.get(kind.__name__)

    @property
    def participation(self) -> Participation | None:
        """None without a commit, or when the configured learners are not known."""
        if not self.commits or self._roster.rules is None:
            return None
        names = self._wanted.learners
        return Participation(
            self._took_part.total() / sum(self._could[name] for name in names),
            self._took_part.total() / self._live if self._live else None,
            {name: self._took_part[name] / self._could[name] if self._could[name] else 0.0 for name in names},
        )

    def _bytes(self, fragments: Any, codecs: Any) -> list[int]:
        """Return the bytes of contributions in formats of their own; 0 where the log does not tell."""
        sizes = self._roster.rules.sizes if self._roster.rules else ()
        told = zip(fragments.tolist(), map(known, codecs.tolist()), strict=True)
        return [form.bytes(sizes[index]) for index, form in told if form is not None and 0 <= index < len(sizes)]

    def _participate(self, block: Block) -> None:
        commits, parts = self._records.commits, self._records.contributions
        if not len(commits.at):
            return
        self.commits.update(_counted(commits.fragment))
        own = parts.codec != ""
        self.contributions.update(_counted(commits.fragment[parts.commit][~own]))
        if own.any():
            self.sent_otherwise += sum(self._bytes(commits.fragment[parts.commit][own], parts.codec[own]))
        self._live += int(commits.live.sum())
        names = {name: number for number, name in enumerate(dict.fromkeys(name for name, _ in block.sources))}
        learners = np.array([names[name] for name, _ in block.sources], np.int64)[parts.learner]
        merged = np.bincount(learners[parts.weight > 0], minlength=len(names))
        together = np.zeros((len(names), len(commits.at)), bool)
        together[learners, parts.commit] = True
        for name, number in names.items():
            self._took_part[name] += int(merged[number])
        for name in self._wanted.learners:
            could = together[names[name]].copy() if name in names else np.zeros(len(commits.at), bool)
            for start, stop in self._wanted.of(name):
                could |= (commits.at >= start) & (commits.at < stop)
            self._could[name] += int(could.sum())


def _counted(numbers: Any) -> dict[int, int]:
    return dict(zip(*(part.tolist() for part in np.unique(numbers, return_counts=True)), strict=True))


@dataclass(frozen=True)
class Results:
    """The accounts of a log as far as it was read, as if it ended there."""

    books: Books
    goodput: Goodput | None
    wanted_s: dict[str, float]  # for how many seconds of the window each learner was wanted
    faults: list[Row]  # the newest rows of the table
    faults_left_out: dict[str, dict[str, int]]  # older ones: by kind, rows and tokens_lost


class Accounts:
    """A fold. Other folds that share its parts take each block after it."""

    def __init__(self) -> None:
        self.records, self.windows = Records(), StepWindows()
        self.roster, self.wanted = Roster(), Wanted()
        self.books = Bookkeeper(self.windows, self.records)
        self.faults = FaultTable(self.roster, self.books)
        self.times = TimeAccounts(self.roster, self.books, self.wanted)
        self.tallies = Tallies(self.roster, self.records, self.wanted)

    @staticmethod
    def of(log: Iterable[Event] | Iterable[Block]) -> Accounts:
        """The accounts of a whole log, given as blocks or as events, in its canonical order."""
        accounts = Accounts()
        drive((accounts,), as_blocks(log))
        return accounts

    def take(self, block: Block) -> None:
        self.records.take(block)
        self.windows.take(block)
        self.roster.take(block)
        self.wanted.take(block)
        self.books.take(block)
        self.tallies.take(block)
        self.faults.take(block)
        self.times.take(block)  # last: it drops incarnations

    def results(self) -> Results:
        """Computed on a copy: the accounts can take more blocks."""
        return copy.deepcopy(self).finish()

    def finish(self) -> Results:
        """The log has been read to its end. Call it once, with nothing after it."""
        self.books.finish()
        self.faults.finish()
        goodput = self.times.finish()
        rows = self.faults.rows(self.times.start)
        return Results(self.books.books(), goodput, self.times.wanted_s, rows, self.faults.left_out)
