"""Compares two logs: the first event in which they diverge, by writer, sequence and causality.

What clocks measured, and who happened to run where, is left out; wall clocks decide nothing. Of several writers that
diverge, the first is one whose event no other divergence can have caused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from learners.protocol.facts import Adopted, StateReceived, StepFinished
from orchestrator.eventlog.events import Event, finite
from orchestrator.eventlog.facts import RunStarted
from orchestrator.replay.tape import numbered
from outer.protocol.facts import Committed, LearnerAttached, SpanGranted

Key = tuple[str, int]  # writer, incarnation
EventKey = tuple[str, int, int]  # and sequence
MEASURED = {  # by fact, what two equal runs may differ in; under "", of any
    "": {"seconds", "silent_s", "pid", "node", "remaining_s"},
    "StepFinished": {"waited_s"},
    "Committed": {"quorum_s", "grace_s", "sync_s"},
    "RunStarted": {"name", "config_hash"},  # the same recipe under another name; told apart beside the events
}
NOTHING = "(says nothing more)"


@dataclass(frozen=True)
class Divergence:
    """Where one writer's facts diverge. A kind is NOTHING in the log without the fact."""

    writer: str
    incarnation: int
    sequence: int
    kinds: tuple[str, str]
    fields: Mapping[str, tuple[Any, Any]]  # that differ, dotted; empty where the kinds do


@dataclass(frozen=True)
class LogComparison:
    """The result of comparing two logs."""

    first: Divergence | None
    others: int  # further writers that diverge
    events: int  # of the first log
    recipes_differ: bool


def compare(one: Iterable[Event], other: Iterable[Event]) -> LogComparison:
    """Compare two logs. Raises TapeError where one of them has two facts under one number."""
    left, right = _by_writer(one), _by_writer(other)
    divergences = {}
    for key in sorted(left.keys() | right.keys()):
        if (divergence := _divergence(key, left.get(key, []), right.get(key, []))) is not None:
            divergences[key] = divergence
    hashes = [
        {event.fact.config_hash for said in log.values() for event in said if isinstance(event.fact, RunStarted)}
        for log in (left, right)
    ]
    return LogComparison(
        _first(divergences, (left, right)),
        max(0, len(divergences) - 1),
        sum(len(said) for said in left.values()),
        hashes[0] != hashes[1],
    )


def _by_writer(events: Iterable[Event]) -> dict[Key, list[Event]]:
    """Every writer's events, each number once."""
    return {key: [said[number] for number in sorted(said)] for key, said in numbered(events).items()}


def _divergence(key: Key, left: Sequence[Event], right: Sequence[Event]) -> Divergence | None:
    for index in range(max(len(left), len(right))):
        here = left[index] if index < len(left) else None
        there = right[index] if index < len(right) else None
        kinds = (_kind(here), _kind(there))
        fields = _fields(here, there) if here is not None and there is not None and kinds[0] == kinds[1] else {}
        if fields or kinds[0] != kinds[1]:
            event = there if here is None else here
            assert event is not None
            return Divergence(*key, event.sequence, kinds, fields)
    return None


def _kind(event: Event | None) -> str:
    return NOTHING if event is None else type(event.fact).__name__


def _fields(here: Event, there: Event) -> dict[str, tuple[Any, Any]]:
    """The fields that differ, measurements aside."""
    left, right = (dict(_flat(_told(event))) for event in (here, there))
    names = [*left, *(name for name in right if name not in left)]
    return {name: (left.get(name), right.get(name)) for name in names if left.get(name) != right.get(name)}


def _told(event: Event) -> dict[str, Any]:
    left_out = MEASURED[""] | MEASURED.get(type(event.fact).__name__, set())
    # Strict JSON's values: NaN is like NaN.
    return {name: finite(value) for name, value in asdict(event.fact).items() if name not in left_out}


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves under dotted names."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(item, f"{name}.{key}".strip("."))
    elif isinstance(value, (list, tuple)):
        yield f"{name}.length", len(value)
        for index, item in enumerate(value):
            yield from _flat(item, f"{name}.{index}")
    else:
        yield name, value


# ------------------------------------------------------------------ which is first


def _first(divergences: Mapping[Key, Divergence], logs: Sequence[Mapping[Key, Sequence[Event]]]) -> Divergence | None:
    """The divergence that no other can have caused, in either log; of several, the first by name."""
    places = {key: (*key, divergence.sequence) for key, divergence in divergences.items()}
    caused = {key for log in logs for key in _caused(places, log)}
    # Each log alone has no circle; of two that diverge in several places together there may be one.
    return next((divergences[key] for key in sorted(divergences) if key not in caused), None) or next(
        iter(divergences.values()), None
    )


def _caused(places: Mapping[Key, EventKey], log: Mapping[Key, Sequence[Event]]) -> set[Key]:
    """The writers whose divergence was caused by another's."""
    causes = _causes(log)
    caused = set()
    for key, place in places.items():
        seen, waiting = {place}, [place]
        while waiting:
            writer, incarnation, sequence = waiting.pop()
            before = [(writer, incarnation, sequence - 1)] if sequence else []
            for cause in (*before, *causes.get((writer, incarnation, sequence), ())):
                if cause in seen:
                    continue
                seen.add(cause)
                waiting.append(cause)
                other = places.get(cause[:2])
                if other is not None and cause[:2] != key and cause[2] >= other[2]:
                    caused.add(key)
                    waiting.clear()
                    break
    return caused


def _causes(log: Mapping[Key, Sequence[Event]]) -> dict[EventKey, list[EventKey]]:
    """For each event, the events of other writers that it depends on."""
    steps: dict[tuple[str, int, int], EventKey] = {}
    commits: dict[int, EventKey] = {}
    spans: dict[tuple[str, int, int], EventKey] = {}
    attached: dict[Key, EventKey] = {}
    for event in (event for said in log.values() for event in said):
        match event.fact:
            case StepFinished(step):
                steps[event.writer, event.incarnation, step] = event.key
            case Committed():
                commits.setdefault(event.fact.syncer_step, event.key)
            case SpanGranted(learner, incarnation, span):
                spans.setdefault((learner, incarnation, span), event.key)
            case LearnerAttached(learner, incarnation):
                attached.setdefault((learner, incarnation), event.key)
    causes: dict[EventKey, list[EventKey]] = {}
    for event in (event for said in log.values() for event in said):
        key, wanted = (event.writer, event.incarnation), []
        match event.fact:
            case StepFinished():
                wanted = [spans.get((*key, event.fact.span))]
            case Committed():
                wanted = [steps.get((one.learner, one.incarnation, one.step)) for one in event.fact.participants]
            case Adopted():
                wanted = [commits.get(event.fact.version), attached.get(key)]
            case StateReceived():
                wanted = [steps.get((event.fact.donor, event.fact.donor_incarnation, event.fact.donor_step))]
        if found := [place for place in wanted if place is not None]:
            causes[event.key] = found
    return causes
