"""One incarnation's part of the tape: the operations on its parameters and optimizer state, in order.

Reads them from the incarnation's facts, up to the last one that a commit or joiner needs. Raises TapeError where facts
are missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from learners.protocol.facts import Adopted, DeviceTaken, Spoiled, StateReceived, StepFinished

Key = tuple[str, int]  # learner, incarnation


class TapeError(ValueError):
    """The log lacks what a replay needs. The message names the writer."""


@dataclass(frozen=True)
class Step:
    """One inner step on samples from `start` on."""

    step: int
    start: int
    tokens: int
    progress: float
    loss: float  # as recorded; NaN where it was not


@dataclass(frozen=True)
class Adopt:
    """A fragment's version took effect. It contains what was read after step `read_at`, if that is known."""

    fragment: int
    version: int
    mode: str
    read_at: int | None


@dataclass(frozen=True)
class Spoil:
    """A fault made a fragment NaN."""

    fragment: int


@dataclass(frozen=True)
class InheritState:
    """It starts from a donor's parameters and inner optimizer state."""

    donor: Key
    digest: str  # "" where it was not recorded


@dataclass(frozen=True)
class Read:
    """A fragment was read: after this step, grown from this version, which identifies it in an incarnation."""

    fragment: int
    step: int
    version: int


@dataclass(frozen=True)
class Give:
    """Its current parameters and inner state were given to this joiner."""

    joiner: Key


Moment = Step | Adopt | Spoil | InheritState | Read | Give


@dataclass(frozen=True)
class IncarnationTape:
    """One incarnation, up to the last moment that others depend on."""

    key: Key
    device: DeviceTaken | None  # None: not recorded
    moments: tuple[Moment, ...]
    places: Mapping[Read | Give, int]  # where in the moments


@dataclass
class Need:
    """The outputs that commits and joiners need from an incarnation."""

    reads: dict[Read, int] = field(default_factory=dict)  # and the syncer step it went into
    gives: dict[Key, tuple[int, tuple[int, ...]]] = field(default_factory=dict)  # joiner -> step, versions held


class IncarnationReader:
    """Reads an incarnation's facts in order, until everything needed of it is found."""

    def __init__(self, key: Key, facts: Iterable[object], need: Need, fragments: int) -> None:
        self._key, self._facts, self._need = key, facts, need
        self._moments: list[Moment] = []
        self._places: dict[Read | Give, int] = {}
        self._step: int | None = None  # the last completed; None before anything tells
        self._held: list[int | None] = [None] * fragments  # versions
        self._missing = len(need.reads) + len(need.gives)
        self._anchors = self._find_anchors()

    def read(self) -> IncarnationTape:
        for fact in self._facts:
            if not self._missing:
                break
            self._take(fact)
        if self._missing:
            places, needed = self._places, self._need
            wanted = [f"syncer step {step} merged of it" for read, step in needed.reads.items() if read not in places]
            wanted += [f"{named(joiner)} started from" for joiner in needed.gives if Give(joiner) not in places]
            raise TapeError(f"{named(self._key)}: the log lacks facts of it: it does not come to what {wanted[0]}")
        device = next((fact for fact in self._facts if isinstance(fact, DeviceTaken)), None)
        return IncarnationTape(self._key, device, tuple(self._moments), self._places)

    def _find_anchors(self) -> set[Read]:
        """The reads that adoptions name: those on the replaced base."""
        held: dict[int, int] = {}
        anchors = set()
        for fact in self._facts:
            if isinstance(fact, Adopted):
                if fact.read_at is not None and fact.fragment in held:
                    anchors.add(Read(fact.fragment, fact.read_at, held[fact.fragment]))
                held[fact.fragment] = fact.version
        return anchors

    def _take(self, fact: object) -> None:
        match fact:
            case StateReceived(source="peer"):
                self._step = 0
                self._moments.append(InheritState((fact.donor, fact.donor_incarnation), fact.digest))
            case Spoiled():
                self._moments.append(Spoil(fact.fragment))
            case StepFinished():
                if fact.progress is None:
                    raise TapeError(f"{named(self._key)}: its step {fact.step} has no progress in the log")
                self._step = fact.step
                self._moments.append(Step(fact.step, fact.position, fact.tokens, fact.progress, fact.loss))
                for fragment, version in enumerate(self._held):
                    if version is not None:
                        self._read(Read(fragment, fact.step, version))
                self._give()
            case Adopted():
                self._step = fact.after_step  # in strict overlap it begins where the syncer's clock is
                self._held[fact.fragment] = fact.version
                self._moments.append(Adopt(fact.fragment, fact.version, fact.mode, fact.read_at))
                self._read(Read(fact.fragment, fact.after_step, fact.version))
                self._give()

    def _read(self, read: Read) -> None:
        """Record a read, if one is needed here."""
        if read not in self._places and (read in self._need.reads or read in self._anchors):
            self._missing -= read in self._need.reads
            self._place(read)

    def _give(self) -> None:
        """Record the donations made here."""
        for joiner, (step, versions) in self._need.gives.items():
            give = Give(joiner)
            if step == self._step and list(versions) == self._held and give not in self._places:
                self._missing -= 1
                self._place(give)

    def _place(self, moment: Read | Give) -> None:
        self._places[moment] = len(self._moments)
        self._moments.append(moment)


def named(key: Key) -> str:
    return f"{key[0]} {key[1]}"
