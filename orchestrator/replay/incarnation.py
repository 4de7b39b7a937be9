"""One incarnation's part of the tape: the operations on its parameters and optimizer state, in order.

Reads them from the incarnation's facts, up to the last one that a commit or joiner needs. Raises TapeError where facts
are missing or contradict those of others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from learners.protocol.facts import Adopted, DeviceTaken, Spoiled, StateReceived, StepFinished
from outer.protocol.facts import Participant

Key = tuple[str, int]  # learner, incarnation
POSITION_MAX = 2**53  # of samples, excluded


class TapeError(ValueError):
    """The log contradicts itself, or lacks what a replay needs. The message names the writer."""


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

    reads: dict[Read, tuple[int, Participant]] = field(default_factory=dict)  # and the syncer step it went into
    gives: dict[Key, tuple[int, tuple[int, ...]]] = field(default_factory=dict)  # joiner -> step, versions held


class IncarnationReader:
    """Reads an incarnation's facts in order, until everything needed of it is found."""

    def __init__(self, key: Key, facts: Iterable[object], need: Need, versions: Sequence[set[int]]) -> None:
        self._key, self._facts, self._need, self._versions = key, facts, need, versions
        self._moments: list[Moment] = []
        self._places: dict[Read | Give, int] = {}
        self._received = False  # the state that it starts from
        self._step: int | None = None  # the last completed; None before anything tells
        self._held: list[int | None] = [None] * len(versions)
        self._since = [0] * len(versions)  # the step after which each fragment's counting began
        self._tokens: dict[int, int] = {}  # by step
        self._newest = 0  # version adopted
        self._missing = len(need.reads) + len(need.gives)
        self._anchors = self._find_anchors()

    def read(self) -> IncarnationTape:
        for fact in self._facts:
            if not self._missing:
                break
            self._take(fact)
        if self._missing:
            raise TapeError(self._what_is_missing())
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
            case StateReceived():
                self._take_state(fact)
            case Spoiled():
                self._take_fault(fact)
            case StepFinished():
                self._take_step(fact)
                for fragment, version in enumerate(self._held):
                    if version is not None:
                        self._read(Read(fragment, fact.step, version))
                self._give()
            case Adopted():
                self._take_adoption(fact)
                self._read(Read(fact.fragment, fact.after_step, fact.version))
                self._give()

    def _take_step(self, fact: StepFinished) -> None:
        due = (self._step or 0) + 1
        if fact.step != due:
            raise self._error(f"after step {due - 1} comes step {fact.step}: step {due} is missing")
        if fact.progress is None or not math.isfinite(fact.progress) or not 0 <= fact.position < POSITION_MAX:
            raise self._error(f"its step {fact.step} was at sample {fact.position}, progress {fact.progress}")
        self._step, self._tokens[fact.step] = fact.step, fact.tokens
        self._moments.append(Step(fact.step, fact.position, fact.tokens, fact.progress, fact.loss))

    def _take_state(self, fact: StateReceived) -> None:
        """A peer's state comes before anything else; the syncer's snapshot is complete once all of it is adopted."""
        peer = fact.source == "peer"
        if self._received or (peer and self._step is not None):
            raise self._error("it starts from a state for a second time, or after it had begun")
        self._received = True
        if peer:
            self._step = 0
            self._moments.append(InheritState((fact.donor, fact.donor_incarnation), fact.digest))

    def _take_fault(self, fact: Spoiled) -> None:
        if not 0 <= fact.fragment < len(self._held):
            raise self._error(f"a fault spoiled its fragment {fact.fragment}, which there is not")
        self._moments.append(Spoil(fact.fragment))

    def _take_adoption(self, fact: Adopted) -> None:
        fragment, version = fact.fragment, fact.version
        if self._step is None:
            self._step = fact.after_step  # in strict overlap it begins where the syncer's clock is
        what = f"version {version} of fragment {fragment}"
        if fact.after_step != self._step:
            lacking = f": step {self._step + 1} is missing" if fact.after_step > self._step else ""
            raise self._error(f"it adopts {what} after step {fact.after_step}, and its last is {self._step}{lacking}")
        if not 0 <= fragment < len(self._held) or version not in self._versions[fragment]:
            raise self._error(f"it adopts {what}, which was never committed")
        if (self._held[fragment] is None) != (fact.mode == "bootstrap"):
            raise self._error(f"it adopts {what} as {fact.mode}, which does not fit what it had adopted before")
        if fact.read_at is not None:
            held = self._held[fragment]
            if held is None or Read(fragment, fact.read_at, held) not in self._places:
                raise self._error(
                    f"it adopts {what} with its read of step {fact.read_at}, since when it holds another version"
                )
        if fact.mode != "rebase":
            self._since[fragment] = fact.after_step
        elif fact.read_at is not None:
            self._since[fragment] = fact.read_at
        self._held[fragment], self._newest = version, max(self._newest, version)
        self._moments.append(Adopt(fragment, version, fact.mode, fact.read_at))

    def _read(self, read: Read) -> None:
        """Record a read, if one is needed here."""
        if read in self._places or (read not in self._need.reads and read not in self._anchors):
            return
        if (wanted := self._need.reads.get(read)) is not None:
            self._check_counters(read, *wanted)
            self._missing -= 1
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

    def _check_counters(self, read: Read, syncer_step: int, one: Participant) -> None:
        begun = self._since[read.fragment]
        tokens = sum(self._tokens[step] for step in range(begun + 1, read.step + 1))
        if (one.base_step, one.steps, one.tokens) != (begun, read.step - begun, tokens):
            raise self._error(
                f"syncer step {syncer_step} counts {one.steps} steps and {one.tokens} tokens of it after step "
                f"{one.base_step}, and by its own facts it is {read.step - begun} and {tokens} after step {begun}"
            )
        if self._newest >= syncer_step:
            raise self._error(
                f"it had adopted version {self._newest} before it contributed to syncer step {syncer_step}"
            )

    # -------------------------------------------------------------- what is wrong

    def _what_is_missing(self) -> str:
        for read, (syncer_step, _) in sorted(self._need.reads.items(), key=lambda item: item[1][0]):
            if read in self._places:
                continue
            if self._step is None or read.step > self._step:
                return str(self._error(f"its step {read.step} is missing, which went into syncer step {syncer_step}"))
            return str(
                self._error(
                    f"syncer step {syncer_step} merged its fragment {read.fragment} as of step {read.step}, grown "
                    f"from version {read.version}; by its own facts it never held that version then"
                )
            )
        joiner, (step, versions) = next(it for it in self._need.gives.items() if Give(it[0]) not in self._places)
        return str(
            self._error(
                f"{named(joiner)} started from its state after step {step} with versions {list(versions)}, "
                "and by its own facts it was never in that state"
            )
        )

    def _error(self, message: str) -> TapeError:
        return TapeError(f"{named(self._key)}: {message}")


def named(key: Key) -> str:
    return f"{key[0]} {key[1]}"
