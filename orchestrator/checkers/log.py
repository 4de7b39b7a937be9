"""The log itself: nothing that was said is missing or told in two ways, and a finished run says so last.

Does not know what the facts mean. What a writer said last before it vanished cannot be missed here; that is for
the checkers that add things up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from orchestrator.accounting.history import History
from orchestrator.accounting.verdicts import Verdict, judge
from orchestrator.eventlog.events import Event, RunFinished, RunResumed
from outer.protocol.facts import Finished


def check(history: History) -> list[Verdict]:
    return [_sequence(history), _ending(history)]


def _sequence(history: History) -> Verdict:
    """Copies of one event, in the writer's segment and on its reports, must agree to the letter."""
    broken: list[str] = []
    for key, events in history.said.items():
        numbers = [event.sequence for event in events]
        if numbers != list(range(len(numbers))):
            broken += _gaps(f"{key[0]} {key[1]}", events)
    promise = "each writer's facts are numbered from 0 without a gap, and each number is one fact"
    return judge("log.sequence", promise, len(history.events), "events", broken)


def _gaps(name: str, events: Sequence[Event]) -> Iterator[str]:
    said: dict[int, Event] = {}
    for event in events:
        first = said.setdefault(event.sequence, event)
        if first is not event and first != event and first.content != event.content:  # NaN is like NaN
            yield f"{name} says two things as its fact {event.sequence}"
    for before, number in pairwise([-1, *sorted(said)]):
        if number != before + 1:
            yield f"{name} goes from fact {before} to fact {number}"


def _ending(history: History) -> Verdict:
    endings, finished = history.of(RunFinished), history.of(Finished)
    broken: list[str] = []
    if finished and not endings:
        broken.append(f"the syncer finished at step {finished[-1].fact.syncer_step}, but the run never did")
    if len(endings) > 1 + len(history.of(RunResumed)):
        broken.append(
            f"the run finished {len(endings)} times, and was gone on with {len(history.of(RunResumed))} times"
        )
    broken += [
        "the run is called finished, but its syncer never reached the budget"
        for said in endings
        if said.fact.state == "finished" and not finished
    ]
    promise = "a run that reached its budget ends with one RunFinished, and only such a run is called finished"
    return judge("log.ending", promise, len(endings), "end of the run", broken)
