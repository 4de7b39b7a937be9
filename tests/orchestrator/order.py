"""Orders made-up events of several writers as the log does: what a commit depends on before it, what follows after."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import accumulate

from learners.protocol.facts import Adopted, StepFinished
from orchestrator.eventlog.block import Key
from orchestrator.eventlog.events import Event
from outer.protocol.facts import Committed, FactsLost

SYNCER = "syncer"


def canonical(events: Iterable[Event]) -> list[Event]:
    """Each event once: the syncer's in their order, epoch by epoch, the others' between them by time.

    Each writer's own order is kept. Where a learner's clock is wrong
    its steps still precede the commits that cover them, its adoptions follow the commits of their versions, and what it
    said after a gap follows the FactsLost that names the gap.
    """
    numbered: defaultdict[Key, dict[int, Event]] = defaultdict(dict)
    for event in events:
        numbered[event.writer, event.incarnation].setdefault(event.sequence, event)
    apart = {key: [said[number] for number in sorted(said)] for key, said in sorted(numbered.items())}
    own = [event for key, said in apart.items() if key[0] == SYNCER for event in said]
    return [*_Order({key: said for key, said in apart.items() if key[0] != SYNCER}, own).events()]


class _Order:
    def __init__(self, said: dict[Key, Sequence[Event]], own: list[Event]) -> None:
        self._said, self._own = said, own
        self._next = dict.fromkeys(said, 0)
        self._dates = {key: [*accumulate((event.at for event in each), max)] for key, each in said.items()}
        self._last = {
            key: max((e.fact.step for e in each if isinstance(e.fact, StepFinished)), default=0)
            for key, each in said.items()
        }
        self._stepped = dict.fromkeys(said, 0)
        self._coming = {event.fact.syncer_step for event in own if isinstance(event.fact, Committed)}
        self._waiting: defaultdict[int, list[Key]] = defaultdict(list)  # by the version of their next adoption
        self._gaps = {
            (lost.writer, lost.incarnation, lost.last + 1) for each in own if isinstance(lost := each.fact, FactsLost)
        }
        self._behind: set[Key] = set()  # whose next fact waits for a FactsLost
        self._heap = [(dates[0], key) for key, dates in self._dates.items()]
        heapify(self._heap)

    def events(self) -> Iterator[Event]:
        for event, date in zip(self._own, accumulate((each.at for each in self._own), max), strict=True):
            yield from self._until(date)
            fact = event.fact
            if isinstance(fact, FactsLost):
                key = (fact.writer, fact.incarnation)
                self._gaps.discard((*key, fact.last + 1))
                if key in self._behind:
                    self._behind.discard(key)
                    self._queue(key)
            if not isinstance(fact, Committed):
                yield event
                continue
            for one in fact.participants:
                key = (one.learner, one.incarnation)
                while self._stepped.get(key, one.step) < one.step <= self._last[key]:
                    yield self._say(key)
            yield event
            self._coming.discard(fact.syncer_step)
            for key in self._waiting.pop(fact.syncer_step, ()):
                self._queue(key)
        self._coming = set()
        self._gaps = set()
        for key in self._behind:
            self._queue(key)
        for version in [*self._waiting]:
            for key in self._waiting.pop(version):
                self._queue(key)
        yield from self._until(float("inf"))

    def _until(self, date: float) -> Iterator[Event]:
        """What the others said by this time, unless it has to wait for a commit."""
        while self._heap and self._heap[0][0] <= date:
            at, key = heappop(self._heap)
            place = self._next[key]
            if place < len(self._said[key]) and self._dates[key][place] <= at:
                event = self._said[key][place]
                fact = event.fact
                if (event.writer, event.incarnation, event.sequence) in self._gaps:
                    self._behind.add(key)
                    continue
                if isinstance(fact, Adopted) and fact.version in self._coming:
                    self._waiting[fact.version].append(key)
                    continue
                yield self._say(key)
            self._queue(key)

    def _queue(self, key: Key) -> None:
        if self._next[key] < len(self._said[key]):
            heappush(self._heap, (self._dates[key][self._next[key]], key))

    def _say(self, key: Key) -> Event:
        event = self._said[key][self._next[key]]
        self._next[key] += 1
        if isinstance(event.fact, StepFinished):
            self._stepped[key] = max(self._stepped[key], event.fact.step)
        return event
