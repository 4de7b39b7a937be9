"""Which facts of each learner the syncer has taken into its log, and which of those are durable.

Pure. Facts are numbered from 0 in each incarnation. A message carries some of them and says the oldest number that its
sender still holds. What lies between the last one taken and the oldest one held will never come: it is recorded as
lost, and the writer goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from outer.protocol.facts import FactsLost

INCARNATIONS_KEPT = 2  # the newest of each writer; facts of older ones are refused
NO_LONGER_HELD = "the learner no longer holds them"

Numbered = tuple[int, float, Any]  # sequence number, wall time, fact


class Recorded(NamedTuple):
    """Facts of one incarnation up to this number are in the log, or recorded as lost there."""

    writer: str
    incarnation: int
    last: int


class Recorder:
    """One epoch's. The journal keeps another one of the durable facts, for its snapshots and for the next epoch."""

    def __init__(self, state: Iterable[Sequence[Any]] = ()) -> None:
        """`state`: of an earlier Recorder."""
        self._taken: dict[tuple[str, int], int] = {}  # by writer and incarnation: the last number
        self._durable: dict[tuple[str, int], int] = {}
        self.mark_durable(Recorded(str(writer), int(incarnation), int(last)) for writer, incarnation, last in state)

    def take(
        self, writer: str, incarnation: int, oldest: int, facts: Sequence[Numbered]
    ) -> tuple[list[Numbered], FactsLost | None]:
        """Take the next facts of a message. Returns those to log, and before them what is lost, if anything is.

        Facts beyond a gap that the sender can still fill are left out: they come again.
        """
        key = (writer, incarnation)
        last = self._taken.get(key)
        if last is None:
            if not self._admit(key):
                return [], None
            last = -1
        held = min(oldest, facts[0][0]) if facts else oldest
        lost = None
        if held > last + 1:
            lost = FactsLost(writer, incarnation, last + 1, held - 1, NO_LONGER_HELD)
            last = held - 1
        fresh = []
        for fact in facts:
            if fact[0] == last + 1:
                fresh.append(fact)
                last += 1
        self._taken[key] = last
        return fresh, lost

    def durable(self, writer: str, incarnation: int) -> int:
        """Return the number to acknowledge: facts up to it are durable, or recorded as lost; -1: none."""
        return self._durable.get((writer, incarnation), -1)

    def mark_durable(self, runs: Iterable[Recorded]) -> None:
        """A group of the log with these runs is durable."""
        for writer, incarnation, last in runs:
            key = (writer, incarnation)
            if key in self._taken or self._admit(key):
                self._durable[key] = max(last, self._durable.get(key, -1))
                self._taken[key] = max(last, self._taken.get(key, -1))

    def state(self) -> list[list[Any]]:
        """Return what is durable, as plain values: [writer, incarnation, last number]."""
        return [[*key, last] for key, last in sorted(self._durable.items())]

    def _admit(self, key: tuple[str, int]) -> bool:
        """Make room for an incarnation not known so far; False if two newer ones of its writer are known."""
        known = sorted(each for each in self._taken if each[0] == key[0])
        if len(known) == INCARNATIONS_KEPT:
            if key < known[0]:
                return False
            del self._taken[known[0]]
            self._durable.pop(known[0], None)
        return True


def runs_of(writer: str, incarnation: int, facts: Sequence[Numbered]) -> list[Recorded]:
    """The runs of consecutive facts of one writer, with those of the losses among them."""
    lost = [Recorded(f.writer, f.incarnation, f.last) for _, _, f in facts if type(f) is FactsLost]
    return [*lost, Recorded(writer, incarnation, facts[-1][0])] if facts else []
