"""The crew that repeats a tape's learners: what is asked of it, in which order, and what it answers.

For each commit its participants do what leads up to what was read of them. A process that performs its part of this
order and waits for what is missing cannot wait for ever: everything that a moment needs comes earlier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learners.protocol.facts import DeviceTaken
from orchestrator.replay.incarnation import Give, InheritState, Key, Read
from orchestrator.replay.tape import Tape, merged_read

Order = tuple[int, int, int]  # number of the participant, over all commits; its stretch; the moment in it
AFTER_STRETCHES = 1 << 62  # as a stretch: behind the participant's, in the contribution and the commit


@dataclass(frozen=True)
class Stretch:
    """An incarnation is to go on to this place in its moments, this one included."""

    key: Key
    place: int
    syncer_step: int  # of the commit that needs it
    number: tuple[int, int]  # the first two of Order


def stretches(tape: Tape) -> Iterator[list[Stretch]]:
    """For each commit what has to be done before it, donors first."""
    done: Counter[Key] = Counter()
    number = 0
    for commit in tape.commits:
        before: list[Stretch] = []
        for one in commit.participants:
            key = (one.learner, one.incarnation)
            place = tape.incarnations[key].places[merged_read(tape.rules, commit, one)]
            for found in _up_to(tape, key, place, done):
                before.append(Stretch(*found, commit.syncer_step, (number, len(before))))
            number += 1
        yield before


def _up_to(tape: Tape, key: Key, place: int, done: Counter[Key]) -> Iterator[tuple[Key, int]]:
    """(incarnation, last moment): this incarnation's, and before it what its donors do."""
    if done[key] > place:
        return
    first, done[key] = done[key], place + 1
    moments = tape.incarnations[key].moments
    for position in range(first, place + 1):
        moment = moments[position]
        if isinstance(moment, InheritState):
            yield from _up_to(tape, moment.donor, tape.incarnations[moment.donor].places[Give(key)], done)
    yield key, place


# ------------------------------------------------------------------ what is compared

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


# ------------------------------------------------------------------ what is said


@dataclass(frozen=True)
class AdoptedValue:
    """A version of a fragment, float32[n], that will be adopted here so many times."""

    fragment: int
    version: int
    theta: NDArray[np.float32]
    adoptions: int


@dataclass(frozen=True)
class PeerState:
    """A donor's state for a joiner that is computed elsewhere."""

    joiner: Key
    arrays: list[NDArray[Any]]


@dataclass(frozen=True)
class Finish:
    """Nothing more will be asked."""


@dataclass(frozen=True)
class Sent:
    """A contribution, which a commit needs."""

    key: Key
    read: Read
    payload: NDArray[Any]
    digest: str


@dataclass(frozen=True)
class News:
    """The comparisons since the last message."""

    tally: ReplayTally
    device: DeviceTaken | None = None  # of this process, which has finished


@dataclass(frozen=True)
class Failure:
    """Why a process could not go on."""

    problems: tuple[Mapping[str, Any], ...] = ()
    tape: str = ""


ToLearners = Stretch | AdoptedValue | PeerState | Finish
FromLearners = Sent | PeerState | News
