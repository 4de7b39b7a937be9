"""The digest of a simulated run's facts, and what the log's checks say of them."""

from __future__ import annotations

import hashlib
import marshal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Any

from chaos.simulation.checks.oracle import Violation
from orchestrator.analysis.checks import FAMILIES, verdicts
from orchestrator.analysis.database import Used, filled
from orchestrator.eventlog.events import Event
from outer.protocol.facts import Committed, FactsLost, Participant, StateRebuilt

# Checks that need not be exercised in a hostile run; every other must pass. A donor may die before it has recorded its
# gift.
MAY_BE_UNKNOWN = frozenset({"accounted.time", "replayable.states"})
TIMELESS = [family for family in FAMILIES if family != "time"]
STOPS = frozenset({"stop", "stop_committing"})  # a run that is stopped at once exercises no check
# Time accounts need clocks that do not jump, processes that end with their loop, and runs that end in order.
UNTIMED = frozenset({"wall_skew", "wall_jump", "clock_jump", "linger", "crash_ending", "suspend"}) | STOPS
DAMAGED = frozenset({"value_damaged", "journal_damaged"})
COMMITS = frozenset({"durable.restarts", "versions.chain", "versions.adopted"})  # they say so where a commit is lost
LOST = frozenset({"replayable.steps"})  # unknown where steps are among the facts that FactsLost names


def judged(events: list[Event], fault_counts: Mapping[str, int], used: Used = None) -> list[Violation]:
    """The checks of real logs that fail, or are not exercised although they should be."""
    violations = []
    families = TIMELESS if UNTIMED & fault_counts.keys() else FAMILIES
    lost = LOST if any(isinstance(event.fact, FactsLost) for event in events) else frozenset()
    without = any(isinstance(event.fact, StateRebuilt) and event.fact.commits_lost for event in events)
    without = without and bool(DAMAGED & fault_counts.keys())
    nothing = bool(STOPS & fault_counts.keys()) and not any(isinstance(event.fact, Committed) for event in events)
    for verdict in verdicts(filled(events, used), families):
        if without and verdict.name in COMMITS:
            continue
        unknown = verdict.status == "unknown" and verdict.name not in MAY_BE_UNKNOWN | lost
        if verdict.status == "violated" or (unknown and not nothing):
            violations.append(Violation(verdict.name, f"{verdict.status}: {verdict.reason}"))
    return violations


def digest_of(log: Iterable[Event]) -> str:
    """SHA-256 over every fact in the order of the log, with its writer and its time."""
    running = hashlib.sha256()
    # Format 2 of marshal is fixed, and knows no references: equal values give equal bytes.
    for one in log:
        told = one.writer, one.incarnation, one.sequence, one.at, type(one.fact).__name__, _values(one.fact)
        running.update(marshal.dumps(told, 2))
    return running.hexdigest()


_GETTERS: dict[type[Any], Callable[[Any], Any]] = {}


def _values(fact: Any) -> Any:
    kind = type(fact)
    if kind not in _GETTERS:
        _GETTERS[kind] = attrgetter(*(field.name for field in fields(kind) if field.repr))
    values = _GETTERS[kind](fact)
    if kind is Committed:
        return [[_values(one) for one in each] if _is_participants(each) else each for each in values]
    return values


def _is_participants(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and isinstance(value[0], Participant)
