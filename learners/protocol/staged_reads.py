"""Host copies of fragments, and the read requests that no copy could answer yet.

The learner machine decides which fragments to copy, and writes the answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from outer.protocol.coverage import Mark
from outer.protocol.messages import FragmentCounters, ReadRequest

WAITING_MAX = 64  # reads that no copy could answer yet


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
    """In strict overlap a copy answers only the read of its own step; else the newest copy answers any read."""

    def __init__(self, strict: bool) -> None:
        self._strict = strict
        self._copies: dict[int, Copy] = {}  # by fragment
        self._waiting: list[_Waiting] = []
        self._missed: dict[int, None] = {}  # fragments of expired reads, oldest first

    @property
    def missed(self) -> tuple[int, ...]:
        """Fragments whose reads expired since they were last adopted. The syncer may ask for them again at any time."""
        return tuple(self._missed)

    @property
    def asked(self) -> tuple[int, ...]:
        """Fragments with unanswered reads, oldest first."""
        return tuple(dict.fromkeys(waiting.request.fragment for waiting in self._waiting))

    def copy_for(self, request: ReadRequest) -> Copy | None:
        """The copy that answers this read now; None if there is none."""
        copy = self._copies.get(request.fragment)
        if copy is None or (self._strict and copy.read_at.step != request.syncer_step):
            return None
        return copy

    def wait(self, request: ReadRequest, now: float) -> None:
        """Keep a read until a later copy answers it or it expires. Of too many the oldest goes."""
        self._waiting.append(_Waiting(request, now + request.deadline_s))
        del self._waiting[:-WAITING_MAX]

    def drop(self) -> None:
        """Forget all reads: the epoch that sent them is over."""
        self._waiting, self._missed = [], {}

    def expire(self, now: float) -> None:
        """Drop the reads whose deadline has passed."""
        self._missed.update((each.request.fragment, None) for each in self._waiting if now >= each.expires_at)
        self._waiting = [waiting for waiting in self._waiting if now < waiting.expires_at]

    def stage(
        self, read_at: Mark, counters: tuple[FragmentCounters, ...], payloads: Mapping[int, Any]
    ) -> list[tuple[ReadRequest, Copy]]:
        """Store new copies, by fragment. Returns the waiting reads that they answer."""
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
        """Drop the copies of fragments that were just adopted: their base is out of date."""
        for fragment in fragments:
            self._copies.pop(fragment, None)
            self._missed.pop(fragment, None)
