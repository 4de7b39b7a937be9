"""books.* (I3, counted once): every token has one fate, the syncer counts as the log does, and a sample is lent to one
incarnation at a time. Whether a contribution should have merged is for merges.* to check.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from learners.protocol.facts import StepFinished
from orchestrator.accounting.books import Books, Ledger, settle
from orchestrator.accounting.history import History
from orchestrator.accounting.incarnations import Incarnation
from orchestrator.accounting.verdicts import Verdict, judge
from outer.protocol.facts import Finished, SpanGranted, SpanReturned


def check(history: History) -> list[Verdict]:
    books = settle(history)
    return [_balance(history, books), _committed(history, books), _loans(history), _positions(history)]


def _balance(history: History, books: Books) -> Verdict:
    tables: list[tuple[str, Ledger]] = [("the run", books), *sorted(books.by_learner.items())]
    tables += [(f"fragment {index}", share) for index, share in enumerate(books.token_fragments)]
    failures = [
        f"{name}: {table.processed} tokens processed, but {table.committed} committed, "
        f"{sum(table.discarded.values())} discarded and {table.in_flight} in flight"
        for name, table in tables
        if not table.balanced
    ]
    if history.ended and books.in_flight:
        failures.append(f"the run is over with {books.in_flight} tokens in flight")
    sums = [(name, count) for name, table in tables for count in _numbers(table)]
    failures += [f"{name}: {count!r} tokens is no count" for name, count in sums if type(count) is not int or count < 0]
    claim = "processed = committed + discarded + in flight, in whole tokens, for the run, learners and fragments"
    return judge("books.balance", claim, len(books.fates), "units", failures)


def _numbers(table: Ledger) -> list[int]:
    return [table.processed, table.committed, table.in_flight, *table.discarded.values()]


def _committed(history: History, books: Books) -> Verdict:
    """A second, simpler count: the first commit that covers a unit commits it."""
    counted = {key: bytearray(len(incarnation.steps)) for key, incarnation in history.incarnations.items()}
    total, failures = 0, []
    for said, contributions in groupby(history.contributions, itemgetter(0)):
        for _, _, incarnation, first, last in contributions:
            if incarnation.steps:
                total += _fresh(incarnation.tokens, counted[incarnation.key], first, last)
        if said.fact.tokens_committed != total:
            failures.append(
                f"at syncer step {said.fact.syncer_step} the syncer counts {said.fact.tokens_committed} "
                f"committed tokens, the steps in the log {total}"
            )
    committed = books.committed
    if committed != total:
        failures.append(f"the books hold {committed} committed tokens, counting commit by commit gives {total}")
    failures += [
        f"the syncer finished at {said.fact.tokens_committed} committed tokens, the books hold {committed}"
        for said in history.of(Finished)
        if said.fact.tokens_committed != committed
    ]
    claim = "the syncer's count of committed tokens is that of the books, at every commit and at the end"
    return judge("books.committed", claim, len(history.commits), "commits", failures)


def _fresh(tokens: Sequence[int], counted: bytearray, first: int, last: int) -> int:
    """Count the tokens of those of an incarnation's steps that were not counted before."""
    fresh, upto = 0, first
    while (start := counted.find(0, upto, last)) >= 0:
        upto = counted.find(1, start, last)
        upto = last if upto < 0 else upto
        fresh += tokens[upto] - tokens[start]
    counted[first:last] = bytes([1]) * (last - first)
    return fresh


class _Loan(NamedTuple):
    start: int
    stop: int
    learner: str
    incarnation: int
    span: int

    def __str__(self) -> str:
        return f"samples {self.start} to {self.stop} (span {self.span} of {self.learner} {self.incarnation})"


def _loans(history: History) -> Verdict:
    """Samples of committed steps are never returned, so they stay lent."""
    lent: list[_Loan] = []  # disjoint, by start
    failures: list[str] = []
    facts = history.by_syncer(SpanGranted, SpanReturned)
    for said in facts:
        fact = said.fact
        loan = _Loan(fact.start, fact.stop, fact.learner, fact.incarnation, fact.span)
        touching = _touching(lent, loan)
        if isinstance(fact, SpanGranted):
            if touching:
                failures.append(f"{loan} were granted while {touching[0]} were lent")
            else:
                insort(lent, loan)
            continue
        if len(touching) != 1 or touching[0][2:] != loan[2:] or not _holds(touching[0], loan):
            failures.append(f"{loan} were returned, but not lent")
            continue
        whole = touching[0]
        lent.remove(whole)
        for start, stop in ((whole.start, loan.start), (loan.stop, whole.stop)):
            if start < stop:
                insort(lent, whole._replace(start=start, stop=stop))
    claim = "a sample is lent to one incarnation at a time, and returned once, by the one that had it"
    return judge("books.loans", claim, len(facts), "grants and returns", failures)


def _touching(lent: list[_Loan], loan: _Loan) -> list[_Loan]:
    """Loans that overlap this one."""
    first = max(0, bisect_left(lent, (loan.start,)) - 1)  # tuples, compared as such
    last = bisect_left(lent, (loan.stop,))
    return [other for other in lent[first:last] if other.stop > loan.start]


def _holds(whole: _Loan, part: _Loan) -> bool:
    return whole.start <= part.start < part.stop <= whole.stop


def _positions(history: History) -> Verdict:
    granted: dict[tuple[str, int], dict[int, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    for said in history.of(SpanGranted):
        fact = said.fact
        granted[fact.learner, fact.incarnation][fact.span].append((fact.start, fact.stop))
    failures = [
        wrong
        for key, incarnation in history.incarnations.items()
        if incarnation.steps
        for wrong in _misread(incarnation, granted[key])
    ]
    claim = "a step reads samples of a span granted to its incarnation, each once"
    return judge("books.positions", claim, len(history.of(StepFinished)), "steps", failures)


def _misread(incarnation: Incarnation, granted: Mapping[int, list[tuple[int, int]]]) -> Iterator[str]:
    newest: dict[int, int] = {}  # by span
    span, begin, end = -1, 0, 0  # that the step before was of
    for said in incarnation.steps:
        step = said.fact
        position = step.position
        if step.span != span or not begin <= position < end:
            span = step.span
            begin, end = next(((a, b) for a, b in granted.get(span, ()) if a <= position < b), (0, 0))
        if begin == end:
            yield f"{_name(incarnation, step)} lies outside every span {span} granted to it"
        if position <= newest.get(span, -1):
            yield f"{_name(incarnation, step)} goes back to samples it has had"
        newest[span] = position


def _name(incarnation: Incarnation, step: StepFinished) -> str:
    return f"step {step.step} of {incarnation.learner} {incarnation.number} at sample {step.position}"
