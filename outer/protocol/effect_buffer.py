"""Collects the syncer's effects in the order in which the shell must perform them.

A fact that the journal keeps is logged only once it is durable, so the log never has to retract one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

from outer.protocol.events_effects import NOTHING_LOGGED, Append, Cut, Effect, Emit, Merge, Publish, Send, ToLearner
from outer.protocol.facts import Record, SpanGranted, SpanReturned, SyncerFact
from outer.protocol.members import Member, Members
from outer.protocol.messages import Grant, Notice, ReadRequest, Stop, Welcome


class EffectBuffer:
    """Effects since the last `drain`. Facts that Members produced come before the effects that follow from them."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._effects: list[Effect] = []
        self._sequence = 0  # of the next record of this epoch
        self._written: deque[tuple[int, Record]] = deque()  # not yet known to be durable
        self._logged = NOTHING_LOGGED  # records up to this one were logged by effects that were already drained
        self._durable = -1
        self.snapshot = 0  # the newest; every message carries it

    def emit(self, fact: SyncerFact) -> None:
        self._collect()
        self._effects.append(Emit(fact))

    def send(self, member: Member, message: ToLearner) -> None:
        self._collect()
        if self.snapshot and isinstance(message, Welcome | ReadRequest | Notice | Grant | Stop):
            message = replace(message, snapshot=self.snapshot)
        self._effects.append(Send(member.name, member.incarnation, message))

    def add(self, effect: Merge | Publish | Cut) -> None:
        self._effects.append(effect)

    def append(self, record: Record, proposal: Any = None) -> None:
        """Make a record durable. `mark_durable` returns it once it is."""
        self._collect()
        self._write(record, proposal)

    def mark_durable(self, sequence: int) -> list[Record]:
        """Records up to `sequence` are durable. Returns the newly durable ones in order; the caller logs them."""
        records = []
        while self._written and self._written[0][0] <= sequence:
            self._durable, record = self._written.popleft()
            records.append(record)
        return records

    def drain(self) -> list[Effect]:
        """Return all effects so far. The shell performs them before any effect collected after this call."""
        self._collect()
        effects, self._effects = self._effects, []
        self._logged = self._durable
        return effects

    def _collect(self) -> None:
        """Collect the facts of Members in order: records go to the journal, other facts to the log."""
        for fact in self._members.drain_facts():
            if isinstance(fact, SpanGranted | SpanReturned):
                self._write(fact, None)
            else:
                self._effects.append(Emit(fact))

    def _write(self, record: Record, proposal: Any) -> None:
        self._effects.append(Append(self._sequence, self._logged, record, proposal))
        self._written.append((self._sequence, record))
        self._sequence += 1
