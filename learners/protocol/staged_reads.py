"""Copies of fragments, and the read requests that no copy could answer yet.

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
    """A fragment as of one step, with that step's counters."""

    read_at: Mark
    counters: FragmentCounters
    payload: Any


@dataclass(frozen=True)
class _Waiting:
    request: ReadRequest
    expires_at: float


class StagedReads:
    """In strict overlap a copy answers only the read of its own step; else the newest copy answers any read.

    New copies answer once their step is done, and until then the ones before them do.
    """

    def __init__(self, strict: bool) -> None:
        self._strict = strict
        self._copies: dict[int, Copy] = {}  # by fragment
        self._staged: dict[int, Copy] = {}  # of a step that may still be in flight
        self._waiting: list[_Waiting] = []
        self._bound: list[tuple[_Waiting, Copy]] = []  # reads that a staged copy answers
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
        return self._matching(self._copies, request)

    def _matching(self, copies: Mapping[int, Copy], request: ReadRequest) -> Copy | None:
        copy = copies.get(request.fragment)
        if copy is None or (self._strict and copy.read_at.step != request.syncer_step):
            return None
        return copy

    def wait(self, request: ReadRequest, now: float) -> Copy | None:
        """Keep a read until a later copy answers it or it expires. Of too many the oldest goes.

        Returns the staged copy that answers it as soon as its step is done, if there is one.
        """
        waiting = _Waiting(request, now + request.deadline_s)
        if (copy := self._matching(self._staged, request)) is None:
            self._waiting.append(waiting)
            del self._waiting[:-WAITING_MAX]
        else:
            self._bound.append((waiting, copy))
            del self._bound[:-WAITING_MAX]
        return copy

    def drop(self) -> None:
        """Forget all reads: the epoch that sent them is over."""
        self._waiting, self._bound, self._missed = [], [], {}

    def expire(self, now: float) -> None:
        """Drop the reads whose deadline has passed."""
        self._missed.update((each.request.fragment, None) for each in self._waiting if now >= each.expires_at)
        self._waiting = [waiting for waiting in self._waiting if now < waiting.expires_at]

    def stage(
        self, read_at: Mark, counters: tuple[FragmentCounters, ...], payloads: Mapping[int, Any]
    ) -> list[tuple[ReadRequest, Copy]]:
        """Store new copies, by fragment, for `complete`. Returns the waiting reads that they answer then."""
        self._staged |= {fragment: Copy(read_at, counters[fragment], payload) for fragment, payload in payloads.items()}
        waiting, self._waiting = self._waiting, []
        bound = []
        for each in waiting:
            if (copy := self._matching(self._staged, each.request)) is None:
                self._waiting.append(each)
            else:
                bound.append((each, copy))
        self._bound += bound
        return [(each.request, copy) for each, copy in bound]

    def complete(self, now: float) -> list[tuple[ReadRequest, Copy]]:
        """The staged copies' step is done. Returns the reads that they answer."""
        self._copies = self._copies | self._staged if self._strict else self._staged
        self._staged = {}
        bound, self._bound = self._bound, []
        self._missed.update((each.request.fragment, None) for each, _ in bound if now >= each.expires_at)
        return [(each.request, copy) for each, copy in bound if now < each.expires_at]

    def forget(self, fragments: Iterable[int]) -> None:
        """Drop the copies of fragments that were just adopted: their base is out of date."""
        for fragment in fragments:
            self._copies.pop(fragment, None)
            self._staged.pop(fragment, None)
            self._missed.pop(fragment, None)
