"""An indexed log: each event once, by kind, and the learners' incarnations.

The checkers, the books and the time accounts start from it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

from learners.protocol.facts import Adopted, PhaseEntered, Resumed, StepFinished
from orchestrator.accounting.incarnations import Freeze, Incarnation, Key, Said
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import (
    FaultHealed,
    FaultInjected,
    LearnerLost,
    LearnerRequested,
    LearnerStarted,
    PoolScaled,
    RunFinished,
    RunResumed,
)
from orchestrator.eventlog.segments import by_writer, woven
from outer.protocol.facts import (
    Committed,
    Finished,
    LearnerAttached,
    LearnerFenced,
    LeaseExpired,
    LeaseRenewed,
    Participant,
    SpanGranted,
    SpanReturned,
    SyncerStarted,
)

F = TypeVar("F")
KILLING = frozenset({"kill", "wrong_config"})  # injected faults that end the process at once
SYNCER = "syncer"
OVERWRITING = frozenset({"bootstrap", "overwrite", "mix"})  # adoptions that reset a fragment's counters


# Records that a new epoch may repeat, and what identifies each.
_RECORDS: dict[type[Any], Callable[[Any], Any]] = {
    Committed: lambda fact: fact.syncer_step,
    SpanGranted: lambda fact: (fact.learner, fact.incarnation, fact.span),
    SpanReturned: lambda fact: (fact.learner, fact.incarnation, fact.span, fact.start),
}


class _Incarnations(dict[Key, Incarnation]):
    """One for every learner incarnation that the log names."""

    def __missing__(self, key: Key) -> Incarnation:
        incarnation = self[key] = Incarnation(*key)
        return incarnation


class Contribution(NamedTuple):
    """One learner's part of a commit."""

    said: Said[Committed]
    one: Participant
    incarnation: Incarnation  # of nobody, where the log knows none
    first: int  # its steps, as a slice of `incarnation.step_numbers`;
    last: int  # the same pair marks them in `incarnation.tokens` and `incarnation.clock`


class History:
    """A log with its indexes. `said`: as read, duplicates included, by writer; `events`: each once, merged.

    Records of an earlier syncer epoch that a later one repeats (`repeats`) are among `events`; everywhere else they
    count once, as the earliest epoch recorded them.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        self.said = by_writer(events)
        self.events = woven(self.said)
        self._incarnations, self._over = _Incarnations(), False
        self.finished: Said[Finished] | None = None
        self.healed: dict[int, float] = {}  # by fault, in Unix seconds
        self.repeats: list[tuple[Said[Any], Said[Any]]] = []  # (as first said, as said again)
        self._kinds: defaultdict[type[Any], list[Said[Any]]] = defaultdict(list)
        for said in self._placed():
            self._kinds[type(said[4])].append(said)
        self._follow()
        self.incarnations: dict[Key, Incarnation] = dict(self._incarnations)
        if len(self.epochs) > 1:
            self._set_repeats_aside()
        for incarnation in self.incarnations.values():
            for freeze in incarnation.freezes:  # a dead process is no longer suspended
                if incarnation.noticed is not None and incarnation.noticed > freeze.start:
                    freeze.stop = incarnation.noticed if freeze.stop is None else min(freeze.stop, incarnation.noticed)

    def _placed(self) -> Iterator[Said[Any]]:
        events = self.events
        apart = ([e.at for e in events], [e.writer for e in events], [e.incarnation for e in events])
        return map(_SAID, zip(range(len(events)), *apart, [e.fact for e in events], strict=True))

    def _follow(self) -> None:
        """Fill the incarnations: first the most frequent facts, then the rest in order."""
        incarnations = self._incarnations
        for said in self.of(StepFinished):
            incarnations[said[2:4]].steps.append(said)
        for adopted in self.of(Adopted):
            incarnations[adopted[2:4]].adoptions.append(adopted)
        follow = self._followers
        for said in sorted(said for kind in follow for said in self.of(kind)):
            follow[type(said.fact)](said)

    def of(self, kind: type[F]) -> list[Said[F]]:
        """Every fact of one kind, in the order of the merged log."""
        return self._kinds.get(kind, [])

    def by_syncer(self, *kinds: type[Any]) -> list[Said[Any]]:
        """The syncer's facts of these kinds in its own order, epoch by epoch, whatever the clocks say."""
        facts = [said for kind in kinds for said in self.of(kind)]
        facts.sort()  # by position: no two are at the same
        if len(self.epochs) > 1:
            facts.sort(key=_incarnation)
        return facts

    @cached_property
    def epochs(self) -> list[int]:
        """The syncer's epochs, in order."""
        return sorted(number for writer, number in self.said if writer == SYNCER)

    @cached_property
    def commits(self) -> list[Said[Committed]]:
        """All commits in the syncer's own order."""
        return self.by_syncer(Committed)

    @cached_property
    def contributions(self) -> list[Contribution]:
        """Every contribution that merged, in the order of commits."""
        nobody = Incarnation("", 0)
        found = []
        for said in self.commits:
            for one in said.fact.participants:
                incarnation = self.incarnations.get((one.learner, one.incarnation), nobody)
                numbers = incarnation.step_numbers
                span = bisect_right(numbers, one.base_step), bisect_right(numbers, one.step)
                found.append(Contribution(said, one, incarnation, *span))
        return found

    @cached_property
    def rules(self) -> SyncerStarted | None:
        """The SyncerStarted of the newest epoch."""
        started = self.by_syncer(SyncerStarted)
        return started[-1].fact if started else None

    @cached_property
    def pauses(self) -> list[tuple[float, float]]:
        """[from, to) in Unix seconds, during which the run had no process, until it was resumed."""
        signs = sorted(said.at for kind in (StepFinished, Committed) for said in self.of(kind))
        found = []
        for resumed in self.of(RunResumed):
            if before := signs[: bisect_left(signs, resumed.at)]:
                found.append((before[-1], resumed.at))
        return found

    @property
    def configured(self) -> tuple[str, ...]:
        """The learners that the run began with, by its first epoch."""
        started = self.by_syncer(SyncerStarted)
        return started[0].fact.learners if started else ()

    @property
    def learners(self) -> tuple[str, ...]:
        """Every learner that was ever wanted, in order of appearance."""
        return tuple(dict.fromkeys([*self.configured, *(name for s in self.of(PoolScaled) for name in s.fact.added)]))

    @property
    def ended(self) -> bool:
        """Whether the syncer or the run has finished: nothing merges any more."""
        return self.finished is not None or self._over

    def incarnations_of(self, learner: str) -> list[Incarnation]:
        """A learner's incarnations, oldest first."""
        return sorted((x for x in self.incarnations.values() if x.learner == learner), key=lambda x: x.number)

    def _set_repeats_aside(self) -> None:
        """Keep records as the first epoch wrote them. Two by one epoch both stay: the checkers judge that."""
        for kind, identity in _RECORDS.items():
            first: dict[Any, Said[Any]] = {}
            kept: list[Said[Any]] = []
            for said in self.by_syncer(kind):
                before = first.setdefault(identity(said.fact), said)
                if before.incarnation == said.incarnation:
                    kept.append(said)
                else:
                    self.repeats.append((before, said))
            self._kinds[kind] = sorted(kept)

    @property
    def _followers(self) -> dict[type[Any], Callable[[Said[Any]], None]]:
        return {
            PhaseEntered: self._enter,
            LearnerRequested: self._request,
            LearnerStarted: self._start,
            LearnerAttached: self._attach,
            LeaseExpired: lambda said: self._of(said).expired.append((said.at, None)),
            LeaseRenewed: self._renew,
            LearnerFenced: self._end,
            LearnerLost: self._end,
            FaultInjected: self._suffer,
            FaultHealed: self._suffer,
            Finished: self._finish,
            RunFinished: self._finish,
            RunResumed: self._go_on,
            Resumed: lambda said: self._incarnations[said.writer, said.incarnation].resumed.append(said.at),
        }

    def _of(self, said: Said[Any]) -> Incarnation:
        """The incarnation that a fact of the syncer or the orchestrator is about."""
        return self._incarnations[said.fact.learner, said.fact.incarnation]

    def _enter(self, said: Said[PhaseEntered]) -> None:
        self._incarnations[said.writer, said.incarnation].phases.append((said.at, said.fact.phase))

    def _request(self, said: Said[LearnerRequested]) -> None:
        self._of(said).requested = said.at

    def _start(self, said: Said[LearnerStarted]) -> None:
        self._of(said).started = said.at

    def _attach(self, said: Said[LearnerAttached]) -> None:
        """Attaching to a later epoch ends an expired lease: that epoch does not know of it."""
        incarnation = self._of(said)
        incarnation.attached = said.at if incarnation.attached is None else incarnation.attached
        if incarnation.epoch not in (0, said.incarnation):
            self._renew(said)
        incarnation.epoch = said.incarnation

    def _renew(self, said: Said[Any]) -> None:
        expired = self._of(said).expired
        if expired and expired[-1][1] is None:
            expired[-1] = (expired[-1][0], said.at)

    def _finish(self, said: Said[Any]) -> None:
        if isinstance(said.fact, Finished):
            self.finished = self.finished or said  # each epoch says so
        else:
            self._over = True

    def _go_on(self, said: Said[RunResumed]) -> None:
        """The run continues: forget its end."""
        self.finished, self._over = None, False

    def _end(self, said: Said[Any]) -> None:
        incarnation = self._of(said)
        if not incarnation.over:
            drained = isinstance(said.fact, LearnerFenced) and said.fact.reason == "drained"
            incarnation.over = "stopped" if self.ended else "drained" if drained else "killed"
        if isinstance(said.fact, LearnerLost):
            incarnation.lost = said.at if incarnation.lost is None else incarnation.lost
        else:
            incarnation.fenced = said.at if incarnation.fenced is None else incarnation.fenced

    def _suffer(self, said: Said[Any]) -> None:
        fact = said.fact
        if isinstance(fact, FaultInjected):
            if fact.target == SYNCER:
                return  # its epochs are not learners' incarnations
            incarnation = self._incarnations[fact.target, fact.incarnation]
            if fact.fault_kind in KILLING:
                incarnation.kills.append(said)
            elif fact.fault_kind == "freeze":
                # It heals by itself, even if nobody is left to record that.
                incarnation.freezes.append(Freeze(fact.fault, said.at, said.at + fact.duration_s))
            else:
                incarnation.other_faults.append(said)
        else:
            self.healed[fact.fault] = said.at
            for incarnation in self._incarnations.values():
                for freeze in incarnation.freezes:
                    if freeze.fault == fact.fault:
                        freeze.stop = said.at


_SAID: Callable[[tuple[Any, ...]], Said[Any]] = partial(tuple.__new__, Said)  # without a call for each
_incarnation: Callable[[Said[Any]], int] = itemgetter(Said._fields.index("incarnation"))


def indexed(events: Iterable[Event] | History) -> History:
    """The history of a log; one that exists already is returned."""
    return events if isinstance(events, History) else History(events)
