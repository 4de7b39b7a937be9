"""The comparisons of a replay with the record, and the first difference."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from orchestrator.replay.incarnation import Key
from orchestrator.replay.schedule import Order

DECISIVE = ("commit", "contribution", "state", "final")  # if these are equal, so is everything else


@dataclass(frozen=True)
class Difference:
    """A recomputed value that differs from the recorded one."""

    what: str  # loss | state | contribution | commit | final
    syncer_step: int  # the commit that was being computed again
    fragment: int | None
    learner: str  # "" where it is nobody's: the merge's or the outer step's
    incarnation: int
    step: int | None  # of the learner
    recorded: str
    found: str


@dataclass
class ReplayTally:
    computed: Counter[str] = field(default_factory=Counter)  # by what: how many were computed again
    compared: Counter[str] = field(default_factory=Counter)  # of them, how many had something to be compared with
    equal: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    first: tuple[Order, Difference] | None = None

    def compare(
        self,
        what: str,
        recorded: str,
        found: str,
        order: Order,
        syncer_step: int,
        key: Key = ("", 0),
        step: int | None = None,
        fragment: int | None = None,
    ) -> bool:
        """Returns whether this is the first difference so far. `recorded`: empty if it was not."""
        self.computed[what] += 1
        if not recorded:
            return False
        self.compared[what] += 1
        if recorded == found:
            self.equal[what] += 1
        elif self.first is None or order < self.first[0]:
            self.first = order, Difference(what, syncer_step, fragment, *key, step, recorded, found)
            return True
        return False

    def add(self, other: ReplayTally) -> None:
        self.computed += other.computed
        self.compared += other.compared
        self.equal += other.equal
        self.steps += other.steps
        if other.first is not None and (self.first is None or other.first[0] < self.first[0]):
            self.first = other.first

    @property
    def bit_equal(self) -> bool | None:
        """Whether everything that decides the parameters equals the record; None if some of it was not recorded."""
        if self.first is not None:
            return False
        whole = all(self.compared[what] == self.computed[what] for what in DECISIVE)
        return True if whole and any(self.compared[what] for what in DECISIVE) else None
