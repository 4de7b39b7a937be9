"""The syncer's facts in its own order, for live.*: who was alive, and what went wrong between two commits."""

from __future__ import annotations

import math
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from orchestrator.accounting.roster import KILLING
from orchestrator.eventlog.block import Block, Commits, Key
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import FaultHealed, FaultInjected
from outer.protocol.facts import (
    Committed,
    DrainStarted,
    Finished,
    LearnerAttached,
    LearnerFenced,
    LeaseExpired,
    LeaseRenewed,
    Quarantined,
    ReadFailed,
    Refused,
    SpanGranted,
    SpanReturned,
    StepOpened,
    StepPassed,
    StepReopened,
    StoreWaited,
    SyncerFact,
    SyncerStarted,
)

KINDS = frozenset(typing.get_args(SyncerFact))
ROUTINE = frozenset({Committed, Finished, SpanGranted, SpanReturned, StepOpened, StepPassed})
RETRIED = (StepReopened, ReadFailed, Refused)  # of these, one for each kind and syncer step
LOSSES = (LeaseExpired, LearnerFenced, Quarantined, DrainStarted)
TOLD = KILLING | {"slow", "straggle"}  # faults that end the incarnation, and those under which it contributes
RETRIES_KEPT = 4096


@dataclass(frozen=True)
class TimelineMark:
    """A place in the log, and what had happened by then."""

    position: int
    at: float  # Unix seconds, on the syncer's clock
    epoch: int
    version: int  # of the commit at this place
    living: frozenset[Key]
    losses: int
    troubles: int  # retried ones left out
    faults: int  # injected or healed
    waited_s: float  # for a store that was away


class Gap(NamedTuple):
    """The gap between two commits of a fragment, or between a commit and the end."""

    fragment: int
    since: int | None  # the version before; None: since the start
    steps: int  # that each who could commit has finished in it, at least
    seconds: float  # that they took, at least, less those for which the store was away
    dated: float | None  # by the syncer's times, if one epoch gave both, less the same
    epoch: int
    troubles: int

    @property
    def calm(self) -> bool:
        """Whether it is judged as the rate."""
        return self.since is None or not self.troubles

    @property
    def least(self) -> float:
        return self.seconds if self.dated is None else min(self.seconds, self.dated)


class LogTimeline:
    def __init__(self) -> None:
        self.losses, self._troubles, self._faults, self._waited_s = 0, 0, 0, 0.0
        self.backwards: set[int] = set()  # epochs whose times run backwards
        self.finished = False
        self._living: dict[str, int] = {}  # attached to the epoch, with a lease, not let go
        self._alive: frozenset[Key] = frozenset()
        self._tried: dict[tuple[Any, ...], int] = {}  # what was retried, and where last
        self._faulty: dict[int, tuple[Key, int, float]] = {}  # target, position injected, position healed
        self._position, self._at, self._epoch = -1, -math.inf, 0
        self._end: TimelineMark | None = None  # the first Finished since the run was begun, or last resumed

    def follow(self, block: Block, commits: Commits) -> Iterator[tuple[int, TimelineMark]]:
        """Each of these commits, by its index, as a mark, once all that is before it in the block was taken."""
        others = iter(block.others)
        placed = next(others, None)
        rows = zip(
            *(c.tolist() for c in (commits.position, commits.at, commits.syncer_step, commits.source)), strict=True
        )
        for index, (position, at, version, source) in enumerate(rows):
            while placed is not None and placed.position < position:
                self._take(placed.position, placed.event)
                placed = next(others, None)
            self._date(at, block.sources[source][1])
            self._position, self._end = position, None
            yield index, self._mark(version)
        while placed is not None:
            self._take(placed.position, placed.event)
            placed = next(others, None)

    @property
    def end(self) -> TimelineMark:
        """The first Finished, for nothing commits after it; else the log's end so far."""
        return self._end or self._mark(0)

    def alive(self, before: TimelineMark | None, end: TimelineMark, quorum: int) -> int:
        """At least so many learners were healthy throughout. Before the first commit: the quorum that made it."""
        if before is None:
            return quorum
        faulty = {
            key
            for key, injected, healed in self._faulty.values()
            if injected <= end.position and before.position <= healed
        }
        return len(before.living - faulty) - (end.losses - before.losses)

    def gap(self, fragment: int, before: TimelineMark | None, end: TimelineMark, steps: int, seconds: float) -> Gap:
        begin = -1 if before is None else before.position
        troubles = end.troubles + end.faults - (0 if before is None else before.troubles + before.faults)
        troubles += sum(begin < position <= end.position for position in self._tried.values())
        waited_s = end.waited_s - (0.0 if before is None else before.waited_s)
        seconds = max(0.0, seconds - waited_s)
        dated = end.at - before.at - waited_s if before is not None and before.epoch == end.epoch else None
        version = None if before is None else before.version
        return Gap(fragment, version, steps, seconds, dated, end.epoch, troubles)

    def forget(self, marks: Iterable[TimelineMark]) -> None:
        """No gap will begin before all of these any more."""
        marks = [*marks]
        oldest = min((mark.position for mark in marks), default=-1)
        if marks and self._tried:
            self._tried = {key: position for key, position in self._tried.items() if position > oldest}
        for fault, ((learner, incarnation), _, healed) in [*self._faulty.items()]:
            if healed < oldest or incarnation < self._living.get(learner, 0) or len(self._faulty) > RETRIES_KEPT:
                del self._faulty[fault]

    def _mark(self, version: int) -> TimelineMark:
        place = (self._position, self._at, self._epoch, version)
        return TimelineMark(*place, self._alive, self.losses, self._troubles, self._faults, self._waited_s)

    def _date(self, at: float, epoch: int) -> None:
        if epoch == self._epoch and at < self._at:
            self.backwards.add(epoch)
        self._at, self._epoch = at, epoch

    def _take(self, position: int, event: Event) -> None:
        fact, kind = event.fact, type(event.fact)
        if isinstance(fact, StoreWaited):
            self._waited_s += fact.seconds
            self._position = position
            return
        if kind not in KINDS:
            if kind is FaultInjected or kind is FaultHealed:
                self._faults += 1
                self._position = position
                self._suffer(position, fact)
            return
        self._position = position
        self._date(event.at, event.incarnation)
        if kind is Finished:
            self.finished = True
            self._end = self._end or self._mark(0)
        if kind in ROUTINE:
            return
        if isinstance(fact, RETRIED):
            key = _tried(fact)
            self._tried.pop(key, None)
            self._tried[key] = position
            if len(self._tried) > RETRIES_KEPT:
                del self._tried[next(iter(self._tried))]
        else:
            self._troubles += 1
        self.losses += isinstance(fact, LOSSES)
        self._live(fact)

    def _live(self, fact: Any) -> None:
        match fact:
            case SyncerStarted():
                self._living = {}
            case LearnerAttached(learner, incarnation) | LeaseRenewed(learner, incarnation):
                self._living[learner] = incarnation
            case (
                LearnerFenced(learner, incarnation)
                | LeaseExpired(learner, incarnation)
                | Quarantined(learner, incarnation)
                | DrainStarted(learner, incarnation)
            ) if self._living.get(learner) == incarnation:
                del self._living[learner]
            case _:
                return
        self._alive = frozenset(self._living.items())

    def _suffer(self, position: int, fact: FaultInjected | FaultHealed) -> None:
        if isinstance(fact, FaultInjected):
            if fact.fault_kind not in TOLD:
                self._faulty[fact.fault] = ((fact.target, fact.incarnation), position, math.inf)
        elif fact.fault in self._faulty:
            key, injected, _ = self._faulty[fact.fault]
            self._faulty[fact.fault] = (key, injected, position)


def _tried(fact: StepReopened | ReadFailed | Refused) -> tuple[object, ...]:
    """The key by which repeated facts count once. A refusal may belong to no step."""
    kind = type(fact).__name__
    if fact.syncer_step is None:
        return (kind, fact.learner, fact.incarnation, fact.reason)
    return (kind, fact.syncer_step)
