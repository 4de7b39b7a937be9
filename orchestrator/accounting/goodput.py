"""Goodput: where the learners' time went, computed from the event log alone.

The window runs from the beginning of the first learner step to the last Committed or the first Finished, whichever is
later; configured time is, summed over the learners, the part of that window in which each was wanted: from the
start, or since its pool was scaled up, until its pool was scaled down. Every second of it falls into exactly one
category, so the shares sum to 1:

    productive                        steps whose tokens were committed
    wasted_killed, wasted_drained,    steps whose tokens were discarded for that reason (`stale_base` counts as
    wasted_overlap, wasted_refused,   refused); the step that a kill broke off is wasted_killed
    wasted_run_ended
    in_flight                         steps whose tokens have no fate yet: none in a run that has ended
    data_stall, sync_blocked          a step waiting to begin: for a span, for an adoption
    suspended                         frozen by a fault, whatever it was doing
    fault_detect                      from its death (the injection, else its last sign of life) until it is noticed
    fault_recover                     from there until the next incarnation is requested
    provision_wait                    requested, no process yet
    startup, compile, bootstrap       the phases starting and importing, compiling, joining
    drain                             the phase draining: it steps no more, and its last steps are waited for
    unattributed                      what no fact explains

Time between the run's suspension, or the loss of all its processes, and its resumption counts for nobody.

Where facts overlap the more specific wins, in the order of RANKS. Times are each writer's own wall clock, in
seconds; processes on hosts whose clocks differ blur the borders of categories, never their sum.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from learners.protocol.facts import StepFinished
from orchestrator.accounting.books import Books, settle
from orchestrator.accounting.history import History, indexed
from orchestrator.accounting.incarnations import Incarnation
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import LearnerRequested, PoolScaled
from outer.protocol.facts import Finished

RANKS = (
    "unattributed",
    "fault_recover",
    "provision_wait",
    "fault_detect",
    "startup",
    "compile",
    "bootstrap",
    "drain",
    "data_stall",
    "sync_blocked",
    "wasted_run_ended",
    "wasted_refused",
    "wasted_overlap",
    "wasted_drained",
    "wasted_killed",
    "in_flight",
    "productive",
    "suspended",
)  # where two overlap, the later one counts
_RANK = {category: rank for rank, category in enumerate(RANKS)}
_OF_FATE = {
    "committed": "productive",
    "in_flight": "in_flight",
    "killed": "wasted_killed",
    "drained": "wasted_drained",
    "overlap": "wasted_overlap",
    "stale_base": "wasted_refused",
    "refused": "wasted_refused",
    "run_ended": "wasted_run_ended",
}
_OF_WAIT = {"span": "data_stall", "adoption": "sync_blocked"}
_OF_PHASE = {
    "starting": "startup",
    "importing": "startup",
    "compiling": "compile",
    "joining": "bootstrap",
    "draining": "drain",
}

BLUR_S = 0.5  # allowed between the times of a learner's steps and its own count of seconds

Interval = tuple[float, float]  # [start, stop), Unix seconds


class TimeSpan(NamedTuple):
    """An interval of one learner's time that a fact explains."""

    start: float
    stop: float
    category: str


@dataclass(frozen=True)
class Goodput:
    """Time accounts of a run, from `start` to `stop` in Unix seconds."""

    start: float
    stop: float
    seconds: dict[str, dict[str, float]]  # learner -> category -> seconds; every category is there
    categories: dict[str, float]  # shares of configured learner-seconds, summing to 1
    availability: float  # learner-seconds attached, and neither dead, suspended nor without a lease / configured
    goodput_time: float  # productive learner-seconds / configured
    global_downtime_s: float  # no learner held a progress lease
    outer_downtime_s: float | None  # None: fewer than two commits
    paused_s: float = 0.0  # of that time the run had no process

    @property
    def wall_s(self) -> float:
        return self.stop - self.start - self.paused_s


def first_step_at(history: History) -> float | None:
    """When the first learner step began, waiting included."""
    steps = history.of(StepFinished)
    return min((said.at - said.fact.seconds - said.fact.waited_s for said in steps), default=None)


def window(history: History) -> Interval | None:
    """The interval of the accounts; None before the first step and a commit after it."""
    start = first_step_at(history)
    ends = [said.at for said in [*history.commits, *history.by_syncer(Finished)[:1]]]  # each epoch says the end
    stop = max(ends, default=None)
    return None if start is None or stop is None or stop <= start else (start, stop)


def account(events: Iterable[Event] | History, books: Books | None = None) -> Goodput | None:
    """The accounts of a log, or None where there is no window or the configured learners are not known."""
    history = indexed(events)
    span = window(history)
    if span is None or history.rules is None:
        return None
    fates = (books if books is not None else settle(history)).fates
    wanted = {name: _minus(_clip(times, span), history.pauses) for name, times in wanted_times(history).items()}
    seconds = {name: _paint(list(_spans(history, name, fates, span[1])), times) for name, times in wanted.items()}
    configured = math.fsum(_length(times) for times in wanted.values())
    categories = {name: math.fsum(spent[name] for spent in seconds.values()) / configured for name in reversed(RANKS)}
    alive = [
        _length(_clip(_alive(history, name, span[1]), interval)) for name, times in wanted.items() for interval in times
    ]
    learners = list(wanted)
    held = [interval for name in learners for interval in _held(history, name, span[1])]
    return Goodput(
        *span,
        seconds,
        categories,
        availability=math.fsum(alive) / configured,
        goodput_time=categories["productive"],
        global_downtime_s=_length(_minus([span], [*held, *history.pauses])),
        paused_s=_length(_clip(history.pauses, span)),
        outer_downtime_s=outer_downtime(history),
    )


def wanted_times(history: History) -> dict[str, list[Interval]]:
    """When each learner was wanted, in Unix seconds; learners in order of their first appearance.

    The configured ones from the start, others since their pool was scaled up; or, where no pool is named, since they
    were first asked for.
    """
    since: dict[str, float] = dict.fromkeys(history.configured, -math.inf)
    times: dict[str, list[Interval]] = {name: [] for name in since}
    for said in history.of(PoolScaled):
        for name in said.fact.added:
            since.setdefault(name, said.at)
            times.setdefault(name, [])
        for name in said.fact.removed:
            if name in since:
                times[name].append((since.pop(name), said.at))
    for asked in history.of(LearnerRequested):
        if (name := asked.fact.learner) not in times:
            since[name], times[name] = asked.at, []
    for name, at in since.items():
        times[name].append((at, math.inf))
    return times


def wanted_within(history: History) -> dict[str, float]:
    """For how many seconds of the window each learner was wanted."""
    span = window(history)
    if span is None:
        return {}
    return {name: _length(_minus(_clip(t, span), history.pauses)) for name, t in wanted_times(history).items()}


def outer_downtime(history: History) -> float | None:
    """Seconds without a commit beyond two median commit intervals, summed over the gaps between commits."""
    gaps = [
        _length(_minus([(a.at, b.at)], history.pauses)) if a.at < b.at else 0.0 for a, b in pairwise(history.commits)
    ]
    if not gaps:
        return None
    allowed = 2 * statistics.median(gaps)
    return math.fsum(max(0.0, gap - allowed) for gap in gaps)


# ------------------------------------------------------------------ what explains a learner's time


def _spans(history: History, learner: str, fates: dict[tuple[str, int, int], str], end: float) -> Iterator[TimeSpan]:
    incarnations = history.incarnations_of(learner)
    strict = any(said.fact.waited_for == "adoption" for incarnation in incarnations for said in incarnation.steps)
    for incarnation, successor in zip(incarnations, [*incarnations[1:], None], strict=True):
        yield from _of_start(incarnation, end)
        for at in incarnation.resumed:
            began = max((stop for _, stop in history.pauses if stop <= at), default=at)
            yield TimeSpan(began, at, "startup")
        yield from _of_steps(incarnation, fates, strict)
        yield from (TimeSpan(*interval, "suspended") for interval in _suspended(incarnation, end))
        if incarnation.over == "killed":
            yield from _of_death(incarnation, successor, end)
        elif incarnation.over == "drained" and incarnation.noticed is not None:
            yield from _broken_off(incarnation, incarnation.noticed, "wasted_drained")
            again = end if successor is None else successor.requested
            yield TimeSpan(incarnation.noticed, max(incarnation.noticed, again or end), "fault_recover")


def _of_start(incarnation: Incarnation, end: float) -> Iterator[TimeSpan]:
    """The time until the first step: waiting for a process, then phase by phase."""
    stop = _until(incarnation, end)
    born = min(
        (at for at in (incarnation.started, *(at for at, _ in incarnation.phases[:1])) if at is not None), default=stop
    )
    if incarnation.requested is not None:
        yield TimeSpan(incarnation.requested, born, "provision_wait")
    phases = [(born, "starting"), *incarnation.phases] if born < stop else incarnation.phases
    for (at, phase), (until, _) in pairwise([*phases, (stop, "")]):
        if phase in _OF_PHASE:
            yield TimeSpan(at, until, _OF_PHASE[phase])


def _of_steps(incarnation: Incarnation, fates: dict[tuple[str, int, int], str], strict: bool) -> Iterator[TimeSpan]:
    """Each step and its wait, cut off at the boundary before it, so that steps never overlap; and the last wait.

    Steps are not broken off but by death: from its last one to its leaving a learner waited for what never came.
    Steps that follow each other with one fate make one span.
    """
    entered = incarnation.entered("stepping")
    boundary = -math.inf if entered is None else entered
    since, category = boundary, ""  # of the span that has no end yet
    for said in incarnation.steps:
        step, at = said.fact, said.at
        waited_s = step.waited_s if step.waited_for in _OF_WAIT else 0.0
        begun = at - step.seconds
        late_s = begun - waited_s - boundary
        if late_s < BLUR_S:  # from boundary to boundary there is nothing else: the dates of both are a little late
            begun = boundary + waited_s if late_s > 0.0 else max(boundary, begun)
        fate = _OF_FATE[fates[(*incarnation.key, step.step)]]
        if fate != category or begun > boundary:
            yield TimeSpan(since, boundary, category or fate)
            since, category = begun, fate
            if waited_s:
                yield TimeSpan(max(boundary, begun - waited_s), begun, _OF_WAIT[step.waited_for])
        if at > boundary:
            boundary = at
    yield TimeSpan(since, boundary, category or "unattributed")
    left = min((at for at, phase in incarnation.phases if phase in ("draining", "stopped")), default=None)
    if left is not None and boundary > -math.inf:
        yield TimeSpan(boundary, max(boundary, left), _OF_WAIT["adoption" if strict else "span"])


def _of_death(incarnation: Incarnation, successor: Incarnation | None, end: float) -> Iterator[TimeSpan]:
    died, noticed = incarnation.died, incarnation.noticed
    if died is None or noticed is None:
        return
    yield from _broken_off(incarnation, died, "wasted_killed")
    yield TimeSpan(died, noticed, "fault_detect")
    again = end if successor is None else successor.requested
    if again is not None:
        yield TimeSpan(noticed, again, "fault_recover")


def _broken_off(incarnation: Incarnation, end: float, category: str) -> Iterator[TimeSpan]:
    """The unfinished step, if it never left the phase stepping."""
    if incarnation.phases and incarnation.phases[-1][1] == "stepping":
        since = max([incarnation.phases[-1][0], *(said.at for said in incarnation.steps[-1:])])
        yield TimeSpan(since, max(since, end), category)


def _until(incarnation: Incarnation, end: float) -> float:
    """When an incarnation ended: its death, its order to stop, or the end of the window."""
    if incarnation.over == "killed":
        return incarnation.died if incarnation.died is not None else end
    return (
        incarnation.noticed if incarnation.over in ("stopped", "drained") and incarnation.noticed is not None else end
    )


# ------------------------------------------------------------------ who was alive


def _alive(history: History, learner: str, end: float) -> list[Interval]:
    """When it was attached to the syncer, and neither dead, suspended, nor without a lease."""
    alive: list[Interval] = []
    for incarnation in history.incarnations_of(learner):
        since = incarnation.attached if incarnation.attached is not None else incarnation.entered("stepping")
        if since is not None:
            out = [*_suspended(incarnation, end), *_expired(incarnation, end), *alive]
            alive += _minus([(since, _until(incarnation, end))], out)
    return alive


def _held(history: History, learner: str, end: float) -> list[Interval]:
    """When it held a progress lease: from stepping until it expires, drains, is fenced or lost; again once renewed."""
    held: list[Interval] = []
    for incarnation in history.incarnations_of(learner):
        begun = [at for at in (incarnation.entered("stepping"),) if at is not None]
        begun += [said.at - said.fact.seconds for said in incarnation.steps[:1]]
        if begun:
            over = min(
                (
                    at
                    for at in (incarnation.lost, incarnation.fenced, incarnation.entered("draining"))
                    if at is not None
                ),
                default=end,
            )
            held += _minus([(min(begun), over)], _expired(incarnation, end))
    return held


def _suspended(incarnation: Incarnation, end: float) -> list[Interval]:
    return [(freeze.start, end if freeze.stop is None else freeze.stop) for freeze in incarnation.freezes]


def _expired(incarnation: Incarnation, end: float) -> list[Interval]:
    return [(at, end if until is None else until) for at, until in incarnation.expired]


# ------------------------------------------------------------------ intervals


def _paint(spans: Sequence[TimeSpan], times: Sequence[Interval]) -> dict[str, float]:
    """Seconds of these times in each category."""
    painted = [_paint_one(spans, span) for span in times]
    return {category: math.fsum(spent[category] for spent in painted) for category in RANKS}


def _paint_one(spans: Iterable[TimeSpan], span: Interval) -> dict[str, float]:
    """Seconds of an interval in each category, exclusive and exhaustive: the highest rank counts."""
    begin, end = span
    edges: list[tuple[float, int, int]] = [(end, 0, 0)]
    for start, stop, category in spans:
        start, stop = max(start, begin), min(stop, end)
        if start < stop:
            rank = _RANK[category]
            edges += ((start, rank, 1), (stop, rank, -1))
    edges.sort()
    spent: list[list[float]] = [[] for _ in RANKS]
    active, top, now = [1] + [0] * (len(RANKS) - 1), 0, begin
    for at, rank, change in edges:
        spent[top].append(at - now)
        now = at
        active[rank] += change
        if rank > top:
            top = rank
        while not active[top]:
            top -= 1
    return {category: math.fsum(parts) for category, parts in zip(RANKS, spent, strict=True)}


def _clip(intervals: Iterable[Interval], span: Interval) -> list[Interval]:
    cut = ((max(start, span[0]), min(stop, span[1])) for start, stop in intervals)
    return [(start, stop) for start, stop in cut if start < stop]


def _minus(intervals: Iterable[Interval], holes: Iterable[Interval]) -> list[Interval]:
    """The parts of the intervals outside the holes."""
    holes = sorted(holes)
    left: list[Interval] = []
    for start, stop in intervals:
        for begin, end in holes:
            if begin < stop and end > start:
                left.append((start, begin))
                start = max(start, end)
        left.append((start, stop))
    return [(start, stop) for start, stop in left if start < stop]


def _length(intervals: Iterable[Interval]) -> float:
    return math.fsum(stop - start for start, stop in intervals)
