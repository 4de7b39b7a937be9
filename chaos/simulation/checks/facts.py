"""Checks a simulated run's log: every fact once, in order, and none that was acknowledged is lost in silence."""

from __future__ import annotations

from collections.abc import Iterator

from chaos.simulation.checks.oracle import Violation
from orchestrator.simulation.context import SYNCER, Key, SimContext
from orchestrator.simulation.supervisor import Supervisor
from outer.protocol.facts import FactsLost

TAIL_LOST = "tail_lost"  # the only fault that takes acknowledged facts away


def kept(context: SimContext, supervisor: Supervisor) -> Iterator[Violation]:
    """Return the faults of the log at the end of a run."""
    covered: dict[Key, int] = {}
    for key, first, stop in (stretch for group in context.log for stretch in group.stretches):
        said = context.facts[key][first:stop] if key[0] == SYNCER else ()
        for _, fact in said:
            if isinstance(fact, FactsLost):
                yield from _next(covered, (fact.writer, fact.incarnation), fact.first, fact.last + 1)
                if not context.fault_counts[TAIL_LOST]:
                    yield Violation("facts.lost", f"{fact}, and the store has lost nothing")
        yield from _next(covered, key, first, stop)
    for key, number in context.acknowledged.items():
        if covered.get(key, 0) <= number and (not context.fault_counts[TAIL_LOST] or _stayed(supervisor, key)):
            last = covered.get(key, 0) - 1
            yield Violation(
                "facts.acknowledged", f"{key} was told that fact {number} is durable; the log ends at {last}"
            )


def _next(covered: dict[Key, int], key: Key, first: int, stop: int) -> Iterator[Violation]:
    if first != covered.get(key, 0):
        yield Violation("facts.order", f"fact {first} of {key} is in the log where fact {covered.get(key, 0)} is due")
    covered[key] = stop


def _stayed(supervisor: Supervisor, key: Key) -> bool:
    """Whether this incarnation was there until the run ended; of another nobody may be left to name what is lost."""
    learner = supervisor.learners.get(key[0])
    finished = supervisor.syncer is not None and supervisor.syncer.machine.finished
    return learner is not None and learner.key == key and learner.exited == finished
