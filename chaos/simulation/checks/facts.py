"""Checks a simulated run's log: every fact once, in order, and none that was acknowledged is lost in silence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from chaos.simulation.checks.oracle import Violation
from learners.protocol.facts import StateReceived, StepFinished
from orchestrator.eventlog.events import Event
from orchestrator.simulation.context import Key
from orchestrator.simulation.orchestrator_process import VirtualCluster
from outer.protocol.facts import FactsLost


def kept(
    log: Iterable[Event], acknowledged: Mapping[Key, int], tail_lost: bool, virtual: VirtualCluster
) -> Iterator[Violation]:
    """Return the faults of the log at the end of a run. `tail_lost`: the store has lost what it had acknowledged."""
    covered: dict[Key, int] = {}
    stepped: dict[Key, int] = {}
    for event in log:
        key = event.writer, event.incarnation
        if event.sequence != covered.get(key, 0):
            due = f"fact {event.sequence} of {key} is in the log where fact {covered.get(key, 0)} is due"
            yield Violation("facts.order", due)
        covered[key] = event.sequence + 1
        if isinstance(fact := event.fact, FactsLost):
            whose = fact.writer, fact.incarnation
            if fact.first != covered.get(whose, 0):
                yield Violation("facts.order", f"{fact}, where fact {covered.get(whose, 0)} is due")
            covered[whose] = fact.last + 1
            if not tail_lost:
                yield Violation("facts.lost", f"{fact}, and the store has lost nothing")
        elif isinstance(fact, StepFinished):
            stepped[key] = fact.step
        elif isinstance(fact, StateReceived) and fact.source == "peer" and not tail_lost:
            donor = fact.donor, fact.donor_incarnation
            if stepped.get(donor, 0) < fact.donor_step:
                due = f"{key} starts from {donor} at step {fact.donor_step}"
                yield Violation("facts.donated", f"{due}; the log has step {stepped.get(donor, 0)} of it by then")
    for key, number in acknowledged.items():
        if covered.get(key, 0) <= number and (not tail_lost or _stayed(virtual, key)):
            last = covered.get(key, 0) - 1
            yield Violation(
                "facts.acknowledged", f"{key} was told that fact {number} is durable; the log ends at {last}"
            )


def _stayed(virtual: VirtualCluster, key: Key) -> bool:
    """Whether this incarnation was there until the run ended; of another nobody may be left to name what is lost."""
    learner = virtual.learners.get(key[0])
    return learner is not None and learner.key == key and learner.exited == virtual.finished
