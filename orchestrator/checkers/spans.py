"""Samples: books.loans and books.positions (I3, counted once), and bounded.spans (I11)."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from orchestrator.accounting.ledger import COMMITTED, FATE
from orchestrator.accounting.verdicts import Verdict
from orchestrator.checkers.claims import Failures, judge
from orchestrator.checkers.state import INCARNATIONS_KEPT, SYNCER, CheckState
from orchestrator.eventlog.block import NONE, Block, Floats, Key
from orchestrator.eventlog.facts import LearnerLost
from outer.protocol.facts import LearnerFenced, SetAside, SpanGranted, SpanReturned

UNHEARD_S = 5.0  # of steps, at most, whose facts never came from an incarnation that ended, or have yet to come
TIMED_BY = frozenset({SYNCER, "orchestrator"})  # whose facts say when the log ends
IN_ORDER = frozenset({"drained", "stopped"})  # reasons for fencing a learner that has said its last words
SPANS_HELD_MAX = 1.5  # a learner asks for one when it holds half of one or less
LENT_KEPT = 1024  # newest spans of one incarnation that may still return: the syncer keeps fewer
BEGUN_KEPT = 8  # newest spans that an incarnation has begun, which it may still go on with


class Loan(NamedTuple):
    start: int
    stop: int
    learner: str
    incarnation: int
    span: int

    def __str__(self) -> str:
        return f"samples {self.start} to {self.stop} (span {self.span} of {self.learner} {self.incarnation})"


@dataclass
class _Granted:
    """A span lent to one incarnation, and how far it has read it."""

    ranges: list[tuple[int, int]]
    newest: int = NONE  # the last sample read
    begun: bool = False


@dataclass
class _Borrower:
    spans: dict[int, _Granted] = field(default_factory=dict)
    batch_size: int = 0  # the largest
    fastest_s: float = math.inf  # step
    heard: float = -math.inf  # the time of its newest known step, or of its first span
    died: bool = False
    left: float = math.inf  # when it ended in order


@dataclass
class SpansCheck:
    state: CheckState
    loans: Failures = field(default_factory=Failures)
    positions: Failures = field(default_factory=Failures)
    held: Failures = field(default_factory=Failures)
    facts: int = 0  # grants and returns
    borrowers: int = 0
    _lent: list[Loan] = field(default_factory=list)  # disjoint, by start; those that may still return
    _used: list[tuple[int, int]] = field(default_factory=list)  # samples that never return, disjoint, ascending
    _of: dict[str, dict[int, _Borrower]] = field(default_factory=dict)  # learner -> incarnation
    _largest: int = 0  # samples of a span
    _ahead_s: float = 0.0
    _fastest_s: Floats = field(default_factory=lambda: np.zeros(0))  # by slot
    _usual_s: float = math.inf  # the fastest step of all
    _newest: Floats = field(default_factory=lambda: np.zeros(0))  # by slot: the time of its newest step
    _end: float = -math.inf  # the time of the newest fact of the syncer or the orchestrator

    def take(self, block: Block) -> None:
        self._ahead_s = max((self._ahead_s, *(rules.ahead_s for rules in self.state.rules.values())))
        granted_at: dict[int, float] = {}
        for position, event in block.others:
            if event.writer in TIMED_BY:
                self._end = max(self._end, event.at)
            if isinstance(event.fact, SpanGranted):
                granted_at[position] = event.at
        self._end = max(self._end, float(self.state.records.commits.at.max(initial=-math.inf)))
        for said in self.state.story:
            if isinstance(said.fact, SpanGranted | SpanReturned | SetAside) and not self.state.records.is_repeated(
                said.position
            ):
                self.facts += 1
                self._lend(said.fact, granted_at.get(said.position, -math.inf))
        self._read()
        for _, event in block.others:
            if isinstance(event.fact, LearnerFenced | LearnerLost):
                self._end_of(event.fact, event.at)
        for learner, known in self._of.items():
            for old in sorted(known)[:-INCARNATIONS_KEPT]:
                self._judge((learner, old), known.pop(old))
        self._use()

    # -------------------------------------------------------------- loans

    def _lend(self, fact: SpanGranted | SpanReturned | SetAside, at: float) -> None:
        """Samples of committed steps are never returned, so they stay lent. What is set aside is never lent again."""
        loan = Loan(fact.start, fact.stop, fact.learner, fact.incarnation, fact.span)
        touching = _touching(self._lent, loan)
        if isinstance(fact, SpanGranted):
            self._grant(fact, at)
            first = max(0, bisect_left(self._used, (loan.start, 0)) - 1)
            used = [each for each in self._used[first : first + 2] if each[0] < loan.stop and loan.start < each[1]]
            if touching or used:
                other = touching[0] if touching else f"samples {used[0][0]} to {used[0][1]}, which were used,"
                self.loans.add(f"{loan} were granted while {other} were lent")
            else:
                insort(self._lent, loan)
            return
        if len(touching) != 1 or touching[0][2:] != loan[2:] or not _holds(touching[0], loan):
            self.loans.add(f"{loan} were returned, but not lent")
            return
        whole = touching[0]
        self._lent.remove(whole)
        for start, stop in ((whole.start, loan.start), (loan.stop, whole.stop)):
            if start < stop:
                insort(self._lent, whole._replace(start=start, stop=stop))
        if isinstance(fact, SetAside):
            self._used = _joined(self._used, [(loan.start, loan.stop)])

    def _use(self) -> None:
        """Forget who had samples that never return: those in spans before the one of the newest committed step, in the
        oldest of very many spans, and all of incarnations long gone.
        """
        windows = self.state.windows
        rows = windows.rows
        newest: dict[Key, int] = {}
        done = np.flatnonzero(rows.fate == FATE[COMMITTED])
        last = done[np.flatnonzero(np.diff(rows.slot[done], append=-1))]
        keys = {slot: key for key, slot in windows.slots.items()}
        for slot, span in zip(rows.slot[last].tolist(), rows.span[last].tolist(), strict=True):
            newest[keys[slot]] = span
        for key in [key for key, count in Counter(loan[2:4] for loan in self._lent).items() if count > LENT_KEPT]:
            spans = sorted(loan.span for loan in self._lent if loan[2:4] == key)
            newest[key] = max(spans[-LENT_KEPT], newest.get(key, 0))
        kept: list[Loan] = []
        used: list[tuple[int, int]] = []
        for loan in self._lent:
            known = self._of.get(loan.learner, {})
            over = len(known) == INCARNATIONS_KEPT and loan.incarnation < min(known)
            if over or loan.span < newest.get((loan.learner, loan.incarnation), 0):
                used.append((loan.start, loan.stop))
            else:
                kept.append(loan)
        if used:
            self._lent, self._used = kept, _joined(self._used, used)

    # -------------------------------------------------------------- who reads what

    def _grant(self, fact: SpanGranted, at: float) -> None:
        known = self._of.setdefault(fact.learner, {})
        if fact.incarnation not in known:
            self.borrowers += 1
            known[fact.incarnation] = _Borrower(heard=at)
        borrower = known.get(fact.incarnation, _Borrower())
        borrower.spans.setdefault(fact.span, _Granted([])).ranges.append((fact.start, fact.stop))
        borrower.batch_size = max(borrower.batch_size, fact.batch_size)
        self._largest = max(self._largest, fact.stop - fact.start)

    def _read(self) -> None:
        windows = self.state.windows
        assert windows.grouped is not None
        steps, slots = windows.grouped.steps, windows.grouped.step_slots
        if not len(slots):
            return
        self._fastest_s = windows.fit(self._fastest_s, math.inf)
        np.minimum.at(self._fastest_s, slots, np.where(steps.seconds > 0.0, steps.seconds, math.inf))
        self._usual_s = min(self._usual_s, float(self._fastest_s.min()))
        self._newest = windows.fit(self._newest, -math.inf)
        np.maximum.at(self._newest, slots, steps.at)
        keys = {slot: key for key, slot in windows.slots.items()}
        first = np.flatnonzero((np.diff(slots, prepend=-1) != 0) | (np.diff(steps.span, prepend=-1) != 0))
        last = np.append(first[1:], len(slots))
        ascends = np.ones(len(slots), bool)
        ascends[1:] = np.diff(steps.sample) > 0
        ascends[first] = True
        tidy = np.logical_and.reduceat(ascends, first)
        columns = (slots[first], steps.span[first], steps.sample[first], steps.sample[last - 1], first, last, tidy)
        for slot, span, begin, end, start, stop, ordered in zip(*(each.tolist() for each in columns), strict=True):
            key = keys[slot]
            borrower = self._of.get(key[0], {}).get(key[1])
            granted = borrower.spans.get(span) if borrower is not None else None
            if borrower is None or granted is None:
                self.positions.add(_outside(key, span, int(steps.step[start]), begin))
                continue
            whole = any(a <= begin and end < b for a, b in granted.ranges)
            if not ordered or begin <= granted.newest or not whole:
                self._slowly(key, granted, span, steps.step[start:stop].tolist(), steps.sample[start:stop].tolist())
            granted.newest, granted.begun = end, True
            if key in self.state.keeper.lost:  # what it read of earlier spans may be lost
                for number, earlier in borrower.spans.items():
                    earlier.begun |= number < span
            begun = [number for number, each in borrower.spans.items() if each.begun]
            for number in begun[:-BEGUN_KEPT]:
                del borrower.spans[number]
        for key, slot in windows.slots.items():
            if (borrower := self._of.get(key[0], {}).get(key[1])) is not None:
                borrower.fastest_s = float(self._fastest_s[slot])
                borrower.heard = max(borrower.heard, float(self._newest[slot]))

    def _slowly(self, key: Key, granted: _Granted, span: int, steps: list[int], samples: list[int]) -> None:
        newest = granted.newest
        for step, sample in zip(steps, samples, strict=True):
            name = f"step {step} of {key[0]} {key[1]} at sample {sample}"
            if not any(a <= sample < b for a, b in granted.ranges):
                self.positions.add(f"{name} lies outside every span {span} granted to it")
            if sample <= newest:
                self.positions.add(f"{name} goes back to samples it has had")
            newest = sample

    def _end_of(self, fact: LearnerFenced | LearnerLost, at: float) -> None:
        borrower = self._of.get(fact.learner, {}).get(fact.incarnation)
        if borrower is None:
            return
        if isinstance(fact, LearnerFenced) and fact.reason in IN_ORDER:
            borrower.left = min(borrower.left, at)
        else:
            borrower.died = True

    def _judge(self, key: Key, borrower: _Borrower) -> None:
        """A learner asks for more when it holds at most half a span, or too little for `ahead_s`.

        It may have begun spans in steps that the log does not tell of: the last before it died, or those between the
        newest that the log tells of and the end of the log or of the incarnation.
        """
        silent_s = min(self._end, borrower.left) - borrower.heard  # negative: its clock is ahead
        unheard_s = UNHEARD_S if borrower.died or silent_s < 0.0 else min(silent_s, UNHEARD_S)
        ahead = sum(b - a for each in borrower.spans.values() if not each.begun for a, b in each.ranges)
        fastest_s = borrower.fastest_s if math.isfinite(borrower.fastest_s) else self._usual_s
        most = SPANS_HELD_MAX * self._largest + (self._ahead_s + unheard_s) / fastest_s * borrower.batch_size
        if ahead > most:
            self.held.add(f"{key[0]} {key[1]} was lent {ahead} samples in spans that it never began")

    def verdicts(self) -> list[Verdict]:
        so_far, self.held = self.held, Failures(self.held.count, self.held.first)
        for learner, known in self._of.items():
            for incarnation, borrower in known.items():
                self._judge((learner, incarnation), borrower)
        held, self.held = self.held, so_far
        return [
            judge("books.loans", self.facts, "grants and returns", self.loans),
            judge("books.positions", self.state.steps, "steps", self.positions),
            judge("bounded.spans", self.borrowers, "borrowers", held),
        ]


def _outside(key: Key, span: int, step: int, sample: int) -> str:
    where = f"step {step} of {key[0]} {key[1]} at sample {sample}"
    return f"{where} lies outside every span {span} granted to it"


def _touching(lent: list[Loan], loan: Loan) -> list[Loan]:
    """Loans that overlap this one."""
    first = max(0, bisect_left(lent, (loan.start,)) - 1)  # tuples, compared as such
    last = bisect_left(lent, (loan.stop,))
    return [other for other in lent[first:last] if other.stop > loan.start]


def _holds(whole: Loan, part: Loan) -> bool:
    return whole.start <= part.start < part.stop <= whole.stop


def _joined(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Two sets of disjoint ranges as one, with neighbours joined."""
    return [*_join(sorted([*one, *other]))]


def _join(ranges: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    begin, end = ranges[0]
    for start, stop in ranges[1:]:
        if start > end:
            yield begin, end
            begin = start
        end = max(end, stop)
    yield begin, end
