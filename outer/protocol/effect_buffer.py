"""What the syncer says and does, in the order in which it is to be performed. Knows no reason for any of it.

What the journal keeps is said once it is durable, and not before: what stands in the log is never taken back.
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
    """Effects until they are taken. What the members have to say comes before what follows from it."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._effects: list[Effect] = []
        self._sequence = 0  # of the next record of this epoch
        self._written: deque[tuple[int, Record]] = deque()  # records that are not known to be durable
        self._logged = NOTHING_LOGGED  # as far as every effect was performed that came before those now collected
        self._durable = -1
        self.snapshot = 0  # the newest; every message says so

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
        """Have it made durable; `durable` gives it back then."""
        self._collect()
        self._write(record, proposal)

    def mark_durable(self, sequence: int) -> list[Record]:
        """The records that are durable now and were not before, in order; they are about to be said."""
        records = []
        while self._written and self._written[0][0] <= sequence:
            self._durable, record = self._written.popleft()
            records.append(record)
        return records

    def drain(self) -> list[Effect]:
        """Everything so far. What it says is in the log before any effect that is collected from here on."""
        self._collect()
        effects, self._effects = self._effects, []
        self._logged = self._durable
        return effects

    def _collect(self) -> None:
        """In the order in which it came about."""
        for fact in self._members.drain_facts():
            if isinstance(fact, SpanGranted | SpanReturned):
                self._write(fact, None)
            else:
                self._effects.append(Emit(fact))

    def _write(self, record: Record, proposal: Any) -> None:
        self._effects.append(Append(self._sequence, self._logged, record, proposal))
        self._written.append((self._sequence, record))
        self._sequence += 1
