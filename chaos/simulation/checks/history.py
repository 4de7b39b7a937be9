"""A simulated run's facts as its log would have them, their digest, and what the log's checkers say of them."""

from __future__ import annotations

import hashlib
import marshal
from collections.abc import Callable, Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Any

from chaos.simulation.checks.oracle import Violation
from orchestrator.checkers import suite
from orchestrator.eventlog.events import Event
from orchestrator.simulation.context import SimContext
from outer.protocol.facts import Committed, Participant

Digest = str

# What a harassed run may give no evidence of; everything else has to pass. A donor may die before it could say that it
# gave. The accounts of time are of clocks, which here jump, of processes that go once they have ended, and of runs that
# end in order: whoever is cut off gets to say what it did, and one syncer says both that it is over and to whom.
MAY_BE_UNKNOWN = frozenset({"accounted.time", "replayable.states"})
BY_TIME = frozenset({"accounted.time"})
STOPS = frozenset({"stop", "stop_committing"})  # a run that is stopped at once gives evidence of nothing
UNTIMED = frozenset({"wall_skew", "wall_jump", "clock_jump", "linger", "crash_ending"}) | STOPS


def judged(events: list[Event], fault_counts: Mapping[str, int]) -> list[Violation]:
    """What the checkers of real logs find broken, or cannot tell. `fault_counts`: the faults that there were."""
    violations = []
    unjudged = BY_TIME if UNTIMED & fault_counts.keys() else frozenset()
    nothing = bool(STOPS & fault_counts.keys()) and not any(isinstance(event.fact, Committed) for event in events)
    for verdict in suite.check(events):
        if verdict.name in unjudged:
            continue
        unknown = verdict.status == "unknown" and verdict.name not in MAY_BE_UNKNOWN
        if verdict.status == "violated" or (unknown and not nothing):
            violations.append(Violation(verdict.name, f"{verdict.status}: {verdict.reason}"))
    return violations


def digest_of(context: SimContext) -> Digest:
    """SHA-256 over everything that was said, by whom, and when."""
    running = hashlib.sha256()
    for writer, said in context.facts.items():
        running.update(repr(writer).encode())
        # Format 2 of marshal is fixed, and knows no references: equal values give equal bytes.
        running.update(marshal.dumps([(at, type(fact).__name__, _values(fact)) for at, fact in said], 2))
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
