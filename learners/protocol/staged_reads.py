"""Fragments on the host, and the reads that no copy could answer so far.

Knows which copy answers which read; what else an answer says, and which fragments to copy, is the machine's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from outer.protocol.coverage import Mark
from outer.protocol.messages import FragmentCounters, ReadRequest


@dataclass(frozen=True)
class Copy:
    """A fragment on the host, as of one completed step, with that step's counters."""

    read_at: Mark
    counters: FragmentCounters
    payload: Any


@dataclass(frozen=True)
class _Waiting:
    request: ReadRequest
    expires_at: float


class StagedReads:
    """In strict overlap a copy answers only the read of its own step; else the newest answers any."""

    def __init__(self, strict: bool) -> None:
        self._strict = strict
        self._copies: dict[int, Copy] = {}  # by fragment
        self._waiting: list[_Waiting] = []
        self._missed: dict[int, None] = {}  # fragments that were asked for in vain, the oldest first

    @property
    def missed(self) -> tuple[int, ...]:
        """Fragments asked for in vain since they were last adopted: more reads of them may come at any time."""
        return tuple(self._missed)

    @property
    def asked(self) -> tuple[int, ...]:
        """Fragments that unanswered reads are of, the oldest first."""
        return tuple(dict.fromkeys(waiting.request.fragment for waiting in self._waiting))

    def copy_for(self, request: ReadRequest) -> Copy | None:
        """What answers it now."""
        copy = self._copies.get(request.fragment)
        if copy is None or (self._strict and copy.read_at.step != request.syncer_step):
            return None
        return copy

    def wait(self, request: ReadRequest, now: float) -> None:
        """Nothing answers it now; a later copy may."""
        self._waiting.append(_Waiting(request, now + request.deadline_s))

    def drop(self) -> None:
        """Whoever asked is gone."""
        self._waiting, self._missed = [], {}

    def expire(self, now: float) -> None:
        """Nobody waits any more for what is asked for too long."""
        self._missed.update((each.request.fragment, None) for each in self._waiting if now >= each.expires_at)
        self._waiting = [waiting for waiting in self._waiting if now < waiting.expires_at]

    def stage(
        self, read_at: Mark, counters: tuple[FragmentCounters, ...], payloads: Mapping[int, Any]
    ) -> list[tuple[ReadRequest, Copy]]:
        """Keep new copies, by fragment. Returns the unanswered reads that can be answered now."""
        if not self._strict:
            self._copies = {}
        for fragment, payload in payloads.items():
            self._copies[fragment] = Copy(read_at, counters[fragment], payload)
        waiting, self._waiting = self._waiting, []
        answered = []
        for each in waiting:
            if (copy := self.copy_for(each.request)) is None:
                self._waiting.append(each)
            else:
                answered.append((each.request, copy))
        return answered

    def forget(self, fragments: Iterable[int]) -> None:
        """These copies hold the value, and the base, from before an adoption."""
        for fragment in fragments:
            self._copies.pop(fragment, None)
            self._missed.pop(fragment, None)
