"""live.* (I5): while K learners are alive every fragment keeps committing, and it does so again after a fault.

Between two commits of a fragment each participant of the second has finished some steps. A gap is too long if each of
them finished more than PACE x (H + tau) in it, and took for them, by its own monotonic clock, more than

    PACE x (H + tau) x the slowest learner's median step + H x the longest grace + (1 + troubles) x patience

seconds, and if the syncer's own times agree, unless they run backwards. Patience is a read timeout, a lease and 1 s
to resend. Troubles are the facts in between other than steps, spans and commits; of those that a step may repeat
(reopened, read failed, refused) one of a kind counts per syncer step, so retrying for ever is no excuse. Gaps without
trouble are checked as the rate, those with trouble as the recovery. A gap is not judged if fewer than K learners may
have been healthy: alive by the syncer's facts, not leaving, and without a fault that prevents contributions. No two
clocks are compared, so a clock that jumps makes no gap too long.
"""

from __future__ import annotations

import math
import sys
import typing
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from orchestrator.accounting.history import KILLING, History
from orchestrator.accounting.incarnations import Incarnation, Key, Said
from orchestrator.accounting.verdicts import Verdict, judge
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
    SyncerFact,
    SyncerStarted,
)

PACE = 3  # so many rounds, where one would do
LEASE_STEPS = 5.0  # a lease lasts at least so many steps
READ_TIMEOUT_S, LEASE_S = 2.0, 3.0  # of a log that does not tell
RESEND_S = 1.0
ROUTINE = {Committed, Finished, SpanGranted, SpanReturned, StepOpened, StepPassed}
TROUBLES = tuple(kind for kind in typing.get_args(SyncerFact) if kind not in ROUTINE)
RETRIED = (StepReopened, ReadFailed, Refused)  # of these, one for each kind and syncer step
LOSSES = (LeaseExpired, LearnerFenced, Quarantined, DrainStarted)
TOLD = KILLING | {"slow", "straggle"}  # faults that end the incarnation, and those under which it contributes

Position = tuple[int, int]  # in the syncer's own order: epoch, position


class _Gap(NamedTuple):
    """The gap between two commits of a fragment, or between a commit and the end."""

    fragment: int
    before: Said[Committed] | None  # None: since the start
    end: Said[Any] | None  # None: the log's end
    steps: int  # that each who could commit has finished in it, at least
    seconds: float  # that they took, at least


def check(history: History) -> list[Verdict]:
    calm, troubled = 0, 0
    slow: list[str] = []
    lost: list[str] = []
    if history.rules is not None and history.commits + history.by_syncer(Finished):
        timeline, limits = _Timeline(history), _Limits(history)
        for gap in _gaps(history, timeline):
            troubles = timeline.troubles(gap)
            if gap.before is None or not troubles:
                calm += 1
                slow += limits.exceeded(gap, troubles, timeline)
            else:
                troubled += 1
                lost += limits.exceeded(gap, troubles, timeline)
    rate = "while K learners are alive every fragment commits within stated numbers of their steps and seconds"
    recovery = "after any trouble every fragment commits again within a stated time"
    went_wrong = history.rules is not None and any(history.of(kind) for kind in LOSSES)
    not_exercised = (
        "whenever there was trouble, fewer than K learners may have been alive" if went_wrong else "nothing went wrong"
    )
    return [
        judge("live.rate", rate, calm, "gaps between commits", slow),
        judge("live.recovery", recovery, troubled, "gaps with trouble", lost, not_exercised if calm else ""),
    ]


# ------------------------------------------------------------------ gaps


def _gaps(history: History, timeline: _Timeline) -> Iterator[_Gap]:
    """The gaps in which K learners were alive throughout."""
    newest: dict[int, Said[Committed]] = {}
    reads: dict[int, dict[Key, int]] = {}  # by fragment, how many steps each had finished at its newest read
    for said, contributions in groupby(history.contributions, itemgetter(0)):
        fragment = said.fact.fragment
        before, since, now = newest.get(fragment), reads.get(fragment, {}), dict[Key, int]()
        fewest, least = sys.maxsize, math.inf
        for _, one, incarnation, first, last in contributions:
            key, now[one.learner, one.incarnation] = (one.learner, one.incarnation), last
            first = since[key] if key in since else _adopted(incarnation, said.fact, first)
            fewest, least = min(fewest, last - first), min(least, incarnation.clock[last] - incarnation.clock[first])
        newest[fragment], reads[fragment] = said, now
        if timeline.alive(before, said) >= timeline.quorum:
            yield _Gap(fragment, before, said, fewest, least)
    for fragment in range(len(timeline.rules.sizes)):
        yield from _last(history, timeline, newest.get(fragment), fragment, reads.get(fragment))


def _adopted(incarnation: Incarnation, commit: Committed, first: int) -> int:
    """How many steps it had finished when it adopted the base. With rebase, counting starts earlier."""
    adopted = incarnation.adopted.get(commit.fragment, ())
    after = next((fact.after_step for fact in reversed(adopted) if fact.version == commit.base_version), None)
    return first if after is None else max(first, bisect_right(incarnation.step_numbers, after))


def _last(
    history: History,
    timeline: _Timeline,
    before: Said[Committed] | None,
    fragment: int,
    since: Mapping[Key, int] | None,
) -> Iterator[_Gap]:
    """The gap from a fragment's last commit, or from the start, to the end."""
    left = [
        incarnation
        for incarnation in history.incarnations.values()
        if incarnation.over in ("", "stopped") and incarnation.steps
    ]
    spans = [
        (incarnation, 0 if since is None else since[incarnation.key])
        for incarnation in left
        if since is None or incarnation.key in since
    ]
    if len(spans) >= timeline.quorum and timeline.alive(before, timeline.end) >= timeline.quorum:
        fewest = min(len(incarnation.step_numbers) - first for incarnation, first in spans)
        yield _Gap(
            fragment,
            before,
            timeline.end,
            fewest,
            min(incarnation.clock[-1] - incarnation.clock[first] for incarnation, first in spans),
        )


# ------------------------------------------------------------------ what a gap is held against


class _Limits:
    def __init__(self, history: History) -> None:
        assert history.rules is not None
        rules = history.rules
        slowest = max(
            (_median(incarnation) for incarnation in history.incarnations.values() if len(incarnation.steps) >= 3),
            default=0.0,
        )
        grace = max((said.fact.grace_s for said in history.commits), default=0.0)
        lease = max(rules.lease_s or LEASE_S, LEASE_STEPS * slowest)
        self._steps = PACE * (rules.round_steps + rules.overlap_steps)
        self._seconds = self._steps * slowest + rules.round_steps * grace
        self._patience_s = (rules.read_timeout_s or READ_TIMEOUT_S) + lease + RESEND_S

    def exceeded(self, gap: _Gap, troubles: int, timeline: _Timeline) -> Iterator[str]:
        """The failure in words, if every measure of the gap exceeds its limit."""
        allowed = self._seconds + (1 + troubles) * self._patience_s
        if gap.steps <= self._steps or gap.seconds <= allowed:
            return
        dated = timeline.seconds(gap)
        if dated is None or dated > allowed:
            since = f"version {gap.before.fact.syncer_step}" if gap.before is not None else "the start"
            yield (
                f"fragment {gap.fragment} had no commit for {gap.seconds:.1f} s after {since}, while each of those "
                f"that could take part finished {gap.steps} steps; allowed are {self._steps} steps or {allowed:.1f} s"
            )


def _median(incarnation: Incarnation) -> float:
    """The median seconds of its steps."""
    ordered = sorted(said.fact.seconds for said in incarnation.steps)
    return ordered[len(ordered) // 2]


class _Timeline:
    """The syncer's facts in its own order: troubles, losses, and times."""

    def __init__(self, history: History) -> None:
        assert history.rules is not None
        self.rules = history.rules
        self.quorum = history.rules.quorum
        ends = history.by_syncer(Finished)
        self.end: Said[Finished] | None = ends[0] if ends else None  # nothing commits after it
        troubles = history.by_syncer(*TROUBLES)
        self._once = [_place(said) for said in troubles if not isinstance(said.fact, RETRIED)]
        retried = [said for said in troubles if isinstance(said.fact, RETRIED)]
        self._retried = [_place(said) for said in retried], [_tried(said.fact) for said in retried]
        self._losses = [_place(said) for said in troubles if isinstance(said.fact, LOSSES)]
        self._living = list(_living(troubles))
        self._faults = sorted(said.position for kind in (FaultInjected, FaultHealed) for said in history.of(kind))
        self._history = history

    def alive(self, before: Said[Committed] | None, end: Said[Any] | None) -> int:
        """At least so many learners were healthy throughout. Before the first commit: the quorum that made it."""
        if before is None:
            return self.quorum
        begin, until = _place(before), None if end is None else _place(end)
        index = bisect_right(self._living, begin, key=itemgetter(0))
        living = self._living[index - 1][1] if index else frozenset[Key]()
        faulty = self._faulty(before.position, sys.maxsize if end is None else end.position)
        return len(living - faulty) - _between(self._losses, begin, until)

    def _faulty(self, begin: int, end: int) -> set[Key]:
        """Incarnations with a fault that overlaps this stretch of the merged log."""
        return {key for key, injected, healed in self._faults_between if injected <= end and begin <= healed}

    @cached_property
    def _faults_between(self) -> list[tuple[Key, int, int]]:
        """(target, position injected, position healed) of every fault that prevents contributions."""
        healed = {said.fact.fault: said.position for said in self._history.of(FaultHealed)}
        return [
            ((said.fact.target, said.fact.incarnation), said.position, healed.get(said.fact.fault, sys.maxsize))
            for said in self._history.of(FaultInjected)
            if said.fact.fault_kind not in TOLD
        ]

    def troubles(self, gap: _Gap) -> int:
        begin = (0, -1) if gap.before is None else _place(gap.before)
        faults = len(self._faults) if gap.end is None else bisect_right(self._faults, gap.end.position)
        faults -= bisect_right(self._faults, -1 if gap.before is None else gap.before.position)
        until = None if gap.end is None else _place(gap.end)
        places, tried = self._retried
        retried = len({*tried[slice(*_bounds(places, begin, until))]})
        return _between(self._once, begin, until) + retried + max(0, faults)

    @cached_property
    def _dated(self) -> list[Said[Any]]:
        return self._history.by_syncer(*TROUBLES, *ROUTINE)

    def seconds(self, gap: _Gap) -> float | None:
        """The gap's length by the syncer's times, if one epoch gave both and its times never run backwards."""
        if gap.before is None or (gap.end is not None and gap.end.incarnation != gap.before.incarnation):
            return None
        dates = [said.at for said in self._dated if said.incarnation == gap.before.incarnation]
        if dates != sorted(dates):
            return None
        return (dates[-1] if gap.end is None else gap.end.at) - gap.before.at


def _place(said: Said[Any]) -> Position:
    return said.incarnation, said.position


def _between(places: list[Position], begin: Position, end: Position | None) -> int:
    first, last = _bounds(places, begin, end)
    return max(0, last - first)


def _bounds(places: list[Position], begin: Position, end: Position | None) -> tuple[int, int]:
    return bisect_right(places, begin), len(places) if end is None else bisect_right(places, end)


def _tried(fact: StepReopened | ReadFailed | Refused) -> tuple[object, ...]:
    """The key by which repeated facts count once. A refusal may belong to no step."""
    if fact.syncer_step is None:
        return (type(fact), fact.learner, fact.incarnation, fact.reason)
    return (type(fact), fact.syncer_step)


def _living(troubles: Sequence[Said[Any]]) -> Iterator[tuple[Position, frozenset[Key]]]:
    """Who was alive after each of these facts: attached to the epoch, with a lease, not let go."""
    living: dict[str, int] = {}
    for said in troubles:
        match said.fact:
            case SyncerStarted():
                living = {}
            case LearnerAttached(learner, incarnation) | LeaseRenewed(learner, incarnation):
                living[learner] = incarnation
            case (
                LearnerFenced(learner, incarnation)
                | LeaseExpired(learner, incarnation)
                | Quarantined(learner, incarnation)
                | DrainStarted(learner, incarnation)
            ) if living.get(learner) == incarnation:
                del living[learner]
        yield _place(said), frozenset(living.items())
