"""The log of a simulated run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import count

from orchestrator.eventlog.events import Event
from orchestrator.eventlog.reader import ChainReader, Findings
from orchestrator.simulation.context import SimContext
from outer.journal.groups import SYNCER


def read(context: SimContext) -> tuple[list[Event], list[str]]:
    """The run's log in its order, as the production reader finds it in the store, and what of it is damaged.

    Facts of the orchestrator come by virtual time among the syncer's own: wall clocks may jump.
    """
    found = Findings()
    counts = defaultdict[int, Iterator[int]](count)
    others = [Event("orchestrator", number, next(counts[number]), at, fact) for at, number, fact in context.said][::-1]
    events: list[Event] = []
    for part in ChainReader(context.store, SYNCER, found).poll():
        for event in part.events():
            if event.writer == SYNCER:
                said_at = context.said_at[event.incarnation][event.sequence]
                while others and others[-1].at <= said_at:
                    events.append(others.pop())
            events.append(event)
    return events + others[::-1], found.damage
