"""Writes a simulated syncer's log: facts and records in order, in groups of the journal's chain.

Groups name facts by their numbers: SimContext.facts has them all. Everything in memory here is lost with its process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.simulation.context import FactStretch, Key, SimContext, SimGroup
from outer.protocol.events_effects import Append
from outer.protocol.facts import FactsLost
from outer.protocol.recorder import Numbered, Recorder, Run

FLUSH_S = 0.25  # the longest that a fact waits for a group to be begun


class SimFactLog:
    """One epoch's part of the log; `syncer` is its process. While a group is written, the next one collects."""

    def __init__(self, context: SimContext, syncer: Any) -> None:
        self.records: list[Append] = []  # for the next group
        self.recorder = Recorder()
        for group in context.log:
            self.recorder.mark_durable(group.runs)
        self._context, self._syncer, self._recording = context, syncer, context.recording
        self._said = context.facts.setdefault(syncer.key, [])
        self._said_at = context.said_at.setdefault(syncer.key, [])
        self._stretches: list[FactStretch] = []
        self._runs: list[Run] = []
        self._writing = self._timed = self._owed = False

    def say(self, fact: Any) -> None:
        """A fact of the syncer's own."""
        if not self._recording:
            return
        syncer = self._syncer
        self._add(syncer.key, len(self._said), len(self._said) + 1)
        self._said.append((syncer.time.now + syncer.host.wall_s, fact))
        self._said_at.append(syncer.time.now)

    def append(self, effect: Append) -> None:
        """A record: its group is begun at once, and takes along what waits."""
        self.say(effect.record)
        self.records.append(effect)
        self._flush()

    def take(self, key: Key, oldest: int, facts: Sequence[Numbered]) -> None:
        """A learner's facts have come."""
        fresh, lost = self.recorder.take(*key, oldest, facts)
        if lost is not None:
            self.lose(lost)
        if fresh:
            self._add(key, fresh[0][0], fresh[-1][0] + 1)

    def lose(self, lost: FactsLost) -> None:
        """Facts will never come: say so."""
        self.say(lost)
        self._runs.append(Run(lost.writer, lost.incarnation, lost.last))

    def _add(self, key: Key, first: int, stop: int) -> None:
        stretches = self._stretches
        if stretches and stretches[-1].key == key:
            stretches[-1] = FactStretch(key, stretches[-1].first, stop)
        else:
            stretches.append(FactStretch(key, first, stop))
        if not self._timed:
            self._timed = True
            self._syncer.time.reach(FLUSH_S, self._syncer, self._due)

    def _due(self) -> None:
        self._timed = False
        self._flush()

    def _flush(self) -> None:
        """Begin a group, now or as soon as the one under way is done."""
        self._owed = self._writing
        if not self._writing and (self._stretches or self.records):
            self._writing = True
            self._syncer.writer.put(self._next())

    def _next(self) -> SimGroup:
        runs = [Run(*stretch.key, stretch.stop - 1) for stretch in self._stretches]
        group = SimGroup(tuple(self._stretches), (*self._runs, *runs), tuple(self.records))
        self._stretches, self._runs, self.records = [], [], []
        return group

    def durable(self, group: SimGroup) -> None:
        """A group of this epoch is durable, and the process knows."""
        self._writing = False
        self.recorder.mark_durable(group.runs)
        if self._owed:
            self._flush()

    def finish(self) -> None:
        """The run is over: everything that waits becomes durable."""
        self._syncer.writer.finish(self._next())
