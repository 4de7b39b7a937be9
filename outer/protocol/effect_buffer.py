"""Collects the syncer's effects in the order in which the shell must perform them.

A record is a fact of the log at its place among the others; what follows from it waits until it is durable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from outer.protocol.events_effects import Append, Cut, Effect, Emit, Forget, Merge, Publish, Reply, Send, ToLearner
from outer.protocol.facts import Record, Refused, SetAside, SpanGranted, SpanReturned, SyncerFact
from outer.protocol.members import Member, Members
from outer.protocol.messages import Contribution, Grant, Notice, ReadRequest, Stop


class EffectBuffer:
    """Effects since the last `drain`. Facts that Members produced come before the effects that follow from them."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._effects: list[Effect] = []
        self._sequence = 0  # of the next record of this epoch
        self._written: deque[tuple[int, Record]] = deque()  # not yet known to be durable
        self.snapshot = 0  # the newest; every message carries it

    @property
    def waiting(self) -> int:
        """Records that are not durable yet."""
        return len(self._written)

    def emit(self, fact: SyncerFact) -> None:
        self._collect()
        self._effects.append(Emit(fact))

    def send(self, member: Member, message: ToLearner) -> None:
        self._collect()
        if self.snapshot and isinstance(message, ReadRequest | Notice | Grant | Stop):
            message = replace(message, snapshot=self.snapshot)
        self._effects.append(Send(member.name, member.incarnation, message))

    def forget(self, contributions: Iterable[Contribution]) -> None:
        """Nothing merges these any more."""
        self._collect()
        if payloads := tuple(each.payload for each in contributions if each.payload is not None):
            self._effects.append(Forget(payloads))

    def add(self, effect: Merge | Publish | Cut | Reply) -> None:
        self._effects.append(effect)

    def append(self, record: Record, proposal: Any = None) -> None:
        """Log a record and make it durable. `mark_durable` returns it once it is."""
        self._collect()
        self._write(record, proposal)

    def mark_durable(self, sequence: int) -> list[Record]:
        """Records up to `sequence` are durable. Returns the newly durable ones in order."""
        records = []
        while self._written and self._written[0][0] <= sequence:
            records.append(self._written.popleft()[1])
        return records

    def drain(self) -> list[Effect]:
        """Return all effects so far. The shell performs them before any effect collected after this call."""
        self._collect()
        effects, self._effects = self._effects, []
        for effect in effects:
            if isinstance(effect, Emit):
                self._members.counts.note(effect.fact)
        return effects

    def _collect(self) -> None:
        """Collect the facts of Members in order. That an Attach is refused is its reply, too."""
        for fact in self._members.drain_facts():
            if isinstance(fact, SpanGranted | SpanReturned | SetAside):
                self._write(fact, None)
            else:
                self._effects.append(Emit(fact))
            if isinstance(fact, Refused) and fact.message == "attach":
                self._effects.append(Reply(f"{fact.reason}: {fact.detail}" if fact.detail else fact.reason))

    def _write(self, record: Record, proposal: Any) -> None:
        self._effects.append(Append(self._sequence, record, proposal))
        self._written.append((self._sequence, record))
        self._sequence += 1
