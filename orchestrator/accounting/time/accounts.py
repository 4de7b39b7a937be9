"""Goodput: where the learners' time went, as a fold over the event log.

The window runs from the beginning of the first learner step to the last Committed or the first Finished, whichever is
later; configured time is, summed over the learners, the part of that window in which each was wanted: from the
start, or since its pool was scaled up, until its pool was scaled down. Every second of it falls into exactly one
category (orchestrator/accounting/time/explanations.py), so the shares sum to 1. Time between the run's suspension, or
the loss of all its processes, and its resumption counts for nobody.

Each learner's time is painted up to a watermark that nothing can change any more: the newest commit, the end of its
last step with a final fate, or the start of what is still going on. A fact that comes later and tells of earlier times
is too late. Sums are exact (orchestrator/accounting/time/explanations.py), whatever the blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np

from orchestrator.accounting.books import Bookkeeper
from orchestrator.accounting.ledger import Settled
from orchestrator.accounting.roster import Incarnation, Roster
from orchestrator.accounting.time.explanations import (
    RANKS,
    Interval,
    Spans,
    clip,
    length,
    minus,
    of_incarnation,
    of_steps,
    paint,
)
from orchestrator.eventlog.block import Block, Key
from orchestrator.eventlog.facts import LearnerRequested, PoolScaled, RunResumed
from outer.protocol.facts import SyncerStarted

PAUSES_KEPT = 64  # newest


@dataclass(frozen=True)
class Goodput:
    """Time accounts of a run, from `start` to `stop` in Unix seconds."""

    start: float
    stop: float
    seconds: dict[str, dict[str, float]]  # learner -> category -> seconds; every category is there


class Wanted:
    """A fold: when each learner was wanted, in Unix seconds; learners in order of their first appearance.

    The configured ones from the start, others since their pool was scaled up; or, where no pool is named, since they
    were first asked for.
    """

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._times: dict[str, list[Interval]] = {}  # those that are over, but not yet forgotten
        self._configured = False

    @property
    def learners(self) -> list[str]:
        return list(self._times)

    def take(self, block: Block) -> None:
        for _, event in block.others:
            fact = event.fact
            if isinstance(fact, SyncerStarted) and not self._configured:
                self._configured = True
                self._since |= dict.fromkeys(fact.learners, -math.inf)
                self._times = {name: [] for name in fact.learners} | self._times
            elif isinstance(fact, PoolScaled):
                self._begin(fact.added, event.at)
                for name in fact.removed:
                    if name in self._since:
                        self._times[name].append((self._since.pop(name), event.at))
            elif isinstance(fact, LearnerRequested) and fact.learner not in self._times:
                self._begin((fact.learner,), event.at)

    def _begin(self, names: Iterable[str], at: float) -> None:
        for name in names:
            self._since.setdefault(name, at)
            self._times.setdefault(name, [])

    def of(self, learner: str) -> list[Interval]:
        """The learner's times; the last may have no end, inf."""
        since = self._since.get(learner)
        return [*self._times[learner], *([] if since is None else [(since, math.inf)])]

    def forget(self, learner: str, before: float) -> None:
        """Nobody asks for times before this one any more."""
        self._times[learner] = [span for span in self._times[learner] if span[1] > before]


class TimeAccounts:
    """A fold. Needs its roster, bookkeeper and `wanted` to take each block first."""

    def __init__(self, roster: Roster, books: Bookkeeper, wanted: Wanted) -> None:
        self._roster, self._books, self.wanted = roster, books, wanted
        self.start: float | None = None  # when the first learner step began, waiting included
        self.stop: float | None = None  # the newest commit, or the first Finished
        self.pauses: list[Interval] = []  # the run had no process
        self.wanted_s: dict[str, float] = {}  # painted so far, by learner
        self._learners: dict[str, int] = {}  # numbers them
        self._low = np.zeros(0)  # by learner, the watermark
        self._seconds = np.zeros((0, len(RANKS)))  # [learners, categories]
        self._commit_at: float | None = None  # of the newest commit
        self._sign_at = -math.inf  # of the newest step or commit
        self._boundaries: dict[Key, float] = {}  # by incarnation, the end of its last step that is settled
        self._strict: set[str] = set()  # learners that ever waited for an adoption
        self._pending = Spans.of(())  # steps and waits that are not painted yet

    def take(self, block: Block) -> None:
        self._mark(block)
        self._settle(self._books.settled)
        if self.start is None or self.stop is None:
            return
        high = {name: self._hold(name, min(self.stop, self._commit_at or -math.inf)) for name in self._learners}
        self._advance(high)
        for name in self._learners:
            self._drop(name)

    def finish(self) -> Goodput | None:
        """The accounts up to the window's end; the books are finished. Call it once, with nothing after it.

        None where there is no window or the configured learners are not known.
        """
        self._settle(self._books.settled)
        if self.start is None or self.stop is None or self.stop <= self.start or self._roster.rules is None:
            return None
        self._advance(dict.fromkeys(self._learners, self.stop))
        if not math.fsum(self.wanted_s.values()):
            return None
        seconds = {
            name: dict(zip(RANKS, self._seconds[number].tolist(), strict=True))
            for name, number in self._learners.items()
        }
        return Goodput(self.start, self.stop, seconds)

    # -------------------------------------------------------------- the window

    def _mark(self, block: Block) -> None:
        steps, commits = block.steps, self._books.records.commits
        for name in self.wanted.learners if self._roster.rules is not None else ():
            self._number(name)
        for _, event in block.others:
            if isinstance(event.fact, RunResumed):
                signs = np.concatenate([[self._sign_at], steps.at, block.commits.at])
                before = float(signs[signs < event.at].max(initial=-math.inf))
                if before > -math.inf:
                    self._pause(before, event.at)
        if len(steps.at):
            begun = float((steps.at - steps.seconds - steps.waited_s).min())
            self.start = begun if self.start is None else min(self.start, begun)
        self._sign_at = max(self._sign_at, steps.at.max(initial=-math.inf), block.commits.at.max(initial=-math.inf))
        if len(commits.at):
            self._commit_at = float(commits.at[-1])
            newest = float(commits.at.max())
            self.stop = newest if self.stop is None else max(self.stop, newest)
        if self._roster.finished is not None:
            self.stop = max(self._roster.finished, -math.inf if self.stop is None else self.stop)

    def _pause(self, start: float, stop: float) -> None:
        if self.pauses and start <= self.pauses[-1][1]:
            start, _ = self.pauses.pop()
        self.pauses.append((start, stop))
        if len(self.pauses) > PAUSES_KEPT:
            del self.pauses[0]

    def _number(self, learner: str) -> int:
        if learner not in self._learners:
            self._learners[learner] = len(self._learners)
            self._low = np.append(self._low, -math.inf)
            self._seconds = np.concatenate([self._seconds, np.zeros((1, len(RANKS)))])
            self.wanted_s[learner] = 0.0
        return self._learners[learner]

    # -------------------------------------------------------------- steps

    def _settle(self, settled: Iterable[Settled]) -> None:
        """Turn steps whose fate is final into spans."""
        words, parts = self._books.windows.words, [self._pending]
        adoption = words.index("adoption") if "adoption" in words else -1
        for key, rows in settled:
            if key[0] not in self._learners:
                continue  # it was never wanted
            boundary = self._boundaries.get(key)
            if boundary is None:
                entered = self._incarnation(key).entered("stepping")
                boundary = -math.inf if entered is None else entered
            start, stop, rank, self._boundaries[key] = of_steps(rows, words, boundary)
            parts.append(Spans(np.full(len(start), self._learners[key[0]]), start, stop, rank))
            if adoption >= 0 and (rows.waited_for == adoption).any():
                self._strict.add(key[0])
        self._pending = Spans.together(parts)

    def _incarnation(self, key: Key) -> Incarnation:
        return self._roster.table.get(key) or Incarnation(*key)

    # -------------------------------------------------------------- the watermark

    def _hold(self, learner: str, newest: float) -> float:
        """Up to when nothing about this learner can change any more."""
        incarnations = self._roster.of(learner)
        windows, holds = self._books.windows, [newest]
        for place, incarnation in enumerate(incarnations):
            later = incarnations[place + 1 :]
            if not incarnation.over and any(other.begun is not None for other in later):
                continue  # nobody says that it is over
            settled = self._boundaries.get(incarnation.key)
            if incarnation.key in windows or not incarnation.over:
                since = [settled] if settled is not None else [incarnation.entered("stepping"), incarnation.begun]
                since += [] if settled is not None else [incarnation.requested, incarnation.started]
                since += [] if settled is not None else [at for at, _ in [*incarnation.phases][:1]]
                holds += [at for at in since if at is not None]
            elif incarnation.over != "stopped" and not any(
                other.requested is not None or other.begun is not None for other in later
            ):
                holds += [at for at in (incarnation.noticed, incarnation.fenced) if at is not None]
        return min(holds)

    def _drop(self, learner: str) -> None:
        """Drop its oldest incarnations that explain nothing beyond the watermarks."""
        low = float(self._low[self._learners[learner]])
        incarnations = self._roster.of(learner)
        for incarnation, successor in pairwise(incarnations):
            ends = [incarnation.lost, incarnation.fenced, successor.requested]
            known = successor.begun is not None or (incarnation.over and successor.requested is not None)
            if not known or incarnation.key in self._books.windows:
                return
            if any(at is not None and at > low for at in ends):
                return
            self._boundaries.pop(incarnation.key, None)
            self._roster.drop(incarnation)

    # -------------------------------------------------------------- painting

    def _advance(self, high: dict[str, float]) -> None:
        """Paint up to these times, by learner."""
        assert self.start is not None
        low = np.maximum(self._low, self.start)
        until = np.maximum(low, np.array([high[name] for name in self._learners]))
        extra: list[tuple[int, float, float, int]] = []
        for name, number in self._learners.items():
            begin, end = float(low[number]), float(until[number])
            if begin >= end:
                continue
            wanted = minus(clip(self.wanted.of(name), (begin, end)), self.pauses)
            self.wanted_s[name] += length(wanted)
            extra += [(number, *span, 0) for span in wanted]
            extra += [(number, start, stop, _rank(category)) for start, stop, category in self._explained(name, end)]
            self.wanted.forget(name, end)
        spans = Spans.together([self._pending, Spans.of(extra)]).within(low, until)
        self._seconds += paint(spans, len(self._learners), len(RANKS))
        self._low = np.where(until > low, until, self._low)
        self._pending = self._pending.beyond(until)

    def _explained(self, learner: str, end: float) -> Iterator[tuple[float, float, str]]:
        incarnations = self._roster.of(learner)
        for incarnation, successor in zip(incarnations, [*incarnations[1:], None], strict=False):
            yield from of_incarnation(incarnation, successor, self.pauses, learner in self._strict, end)


@cache
def _rank(category: str) -> int:
    return RANKS.index(category)
