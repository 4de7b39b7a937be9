"""A run's log as a tape: what every incarnation did, in order, as far as a commit depends on it; and the commits.

Pure. Knows which facts decide the bits of the parameters, and says what a log lacks or where it contradicts itself.
Does not know how anything is computed.
"""

from __future__ import annotations

import graphlib
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from learners.facts import Adopted, DeviceTaken, Spoiled, StateReceived, StepFinished
from orchestrator.events import Event, RunFinished, RunStarted
from outer.facts import Committed, Participant, SyncerStarted

Key = tuple[str, int]  # learner, incarnation
TOLERANCE = 1e-9  # of a weight; what is less shows in the digests
OLDER = "the log is of a version that did not record it, and cannot be replayed"


class TapeError(ValueError):
    """The log contradicts itself, or lacks what replaying needs. The message says what, of whom."""


# ------------------------------------------------------------------ what an incarnation did


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
    """A fragment's version took effect. Rebase subtracts what was read after step `read_at`, or the base."""

    fragment: int
    version: int
    mode: str
    read_at: int | None


@dataclass(frozen=True)
class Spoil:
    """A fault made a fragment NaN."""

    fragment: int


@dataclass(frozen=True)
class Inherit:
    """It goes on from a donor's parameters and inner state."""

    donor: Key
    digest: str  # "" where it was not recorded


@dataclass(frozen=True)
class Read:
    """A fragment as it is now: after this step, grown from this version. Enough to name it within an incarnation."""

    fragment: int
    step: int
    version: int


@dataclass(frozen=True)
class Give:
    """Its parameters and inner state as they are now are what this joiner starts from."""

    joiner: Key


Moment = Step | Adopt | Spoil | Inherit | Read | Give


@dataclass(frozen=True)
class Life:
    """One incarnation, up to the last moment that anything else depends on."""

    key: Key
    device: DeviceTaken | None  # None: not recorded
    moments: tuple[Moment, ...]
    places: Mapping[Read | Give, int]  # where in the moments


@dataclass(frozen=True)
class Tape:
    """All that decides the parameters after the last of `commits`. Nothing in it depends on clocks."""

    rules: SyncerStarted
    commits: tuple[Committed, ...]  # in the order of syncer steps, each once
    lives: Mapping[Key, Life]  # those that the commits depend on
    whole: bool  # the run's last commit is among them
    started: RunStarted | None
    finished: RunFinished | None

    @property
    def devices(self) -> dict[Key, DeviceTaken]:
        """On what each life computed, as far as it was recorded."""
        return {key: life.device for key, life in self.lives.items() if life.device is not None}


def merged_read(commit: Committed, one: Participant) -> Read:
    """What went into a commit from one participant."""
    return Read(commit.fragment, one.step, commit.base_version)


# ------------------------------------------------------------------ from a log


def record(events: Iterable[Event], until: int | None = None) -> Tape:
    """The tape of a log, up to and including syncer step `until`. Raises TapeError."""
    said = _by_writer(events)
    rules = _rules(said)
    every = _commits(said, rules)
    commits = tuple(commit for commit in every if until is None or commit.syncer_step <= until)
    versions = _versions(commits, rules)
    needs = _needs(commits, said)
    lives = {key: _Walk(key, said[key], need, versions).life() for key, need in needs.items()}
    orchestrator = [fact for (writer, _), facts in said.items() if writer == "orchestrator" for fact in facts]
    return Tape(
        rules=rules,
        commits=commits,
        lives=lives,
        whole=len(commits) == len(every),
        started=next((fact for fact in orchestrator if isinstance(fact, RunStarted)), None),
        finished=next((fact for fact in reversed(orchestrator) if isinstance(fact, RunFinished)), None),
    )


def _by_writer(events: Iterable[Event]) -> dict[Key, list[object]]:
    """Every writer's facts in its own order."""
    numbered: dict[Key, dict[int, object]] = defaultdict(dict)
    for event in events:
        numbered[event.writer, event.incarnation].setdefault(event.sequence, event.fact)
    for key, facts in numbered.items():
        if (missing := next((n for n in range(len(facts)) if n not in facts), None)) is not None:
            raise TapeError(f"{_named(key)}: its fact {missing} is missing, and later ones are there")
    return {key: [facts[number] for number in range(len(facts))] for key, facts in numbered.items()}


def _rules(said: Mapping[Key, Sequence[object]]) -> SyncerStarted:
    """What the first epoch began with; later ones must deal the model alike."""
    begun = [fact for _, facts in _epochs(said) for fact in facts if isinstance(fact, SyncerStarted)]
    if not begun:
        raise TapeError("no SyncerStarted is in the log: no syncer ever ran")
    for other in begun[1:]:
        if (other.fragments, other.sizes) != (begun[0].fragments, begun[0].sizes):
            raise TapeError(f"epoch {other.epoch} of the syncer has other fragments than epoch {begun[0].epoch}")
    return begun[0]


def _epochs(said: Mapping[Key, Sequence[object]]) -> list[tuple[Key, Sequence[object]]]:
    return sorted((key, facts) for key, facts in said.items() if key[0] == "syncer")


def _commits(said: Mapping[Key, Sequence[object]], rules: SyncerStarted) -> list[Committed]:
    """Every commit once, though a later epoch may say word for word what an earlier one said."""
    by_step: dict[int, Committed] = {}
    for _, facts in _epochs(said):
        for fact in facts:
            if isinstance(fact, Committed) and by_step.setdefault(fact.syncer_step, fact) != fact:
                raise TapeError(f"syncer step {fact.syncer_step} committed in two ways")
    newest = [0] * len(rules.sizes)
    for step, commit in sorted(by_step.items()):
        if not 0 <= commit.fragment < len(newest):
            raise TapeError(f"syncer step {step}: there is no fragment {commit.fragment}")
        if commit.base_version != newest[commit.fragment]:
            raise TapeError(
                f"syncer step {step}: it merges onto version {commit.base_version} of fragment {commit.fragment}, "
                f"whose newest before it is {newest[commit.fragment]}: a commit is missing, or one too many"
            )
        newest[commit.fragment] = step
        _check_weights(commit)
    return [commit for _, commit in sorted(by_step.items())]


def _check_weights(commit: Committed) -> None:
    """Paper, section 3: a contribution weighs tokens^2 / steps, normalised over the commit."""
    where = f"syncer step {commit.syncer_step}"
    if not commit.participants or any(one.steps < 1 or one.tokens < 1 for one in commit.participants):
        raise TapeError(f"{where}: a contribution without steps or tokens, or none at all")
    raw = [one.tokens * one.tokens / one.steps for one in commit.participants]
    for one, due in zip(commit.participants, raw, strict=True):
        if not abs(one.weight - due / math.fsum(raw)) <= TOLERANCE:
            raise TapeError(
                f"{where}: {one.learner} {one.incarnation} weighs {one.weight!r}, and its counters give "
                f"{due / math.fsum(raw)!r}"
            )


def _versions(commits: Sequence[Committed], rules: SyncerStarted) -> list[set[int]]:
    """The versions that there were, by fragment."""
    versions = [{0} for _ in rules.sizes]
    for commit in commits:
        versions[commit.fragment].add(commit.syncer_step)
    return versions


# ------------------------------------------------------------------ who is needed, and when


@dataclass
class _Need:
    """What others want of an incarnation."""

    reads: dict[Read, tuple[int, Participant]] = field(default_factory=dict)  # and the syncer step it went into
    gives: dict[Key, tuple[int, tuple[int, ...]]] = field(default_factory=dict)  # joiner -> step, versions held


def _needs(commits: Sequence[Committed], said: Mapping[Key, Sequence[object]]) -> dict[Key, _Need]:
    """Those that contributed; those whose state they started from; and so on."""
    needs: dict[Key, _Need] = defaultdict(_Need)
    for commit in commits:
        for one in commit.participants:
            key, read = (one.learner, one.incarnation), merged_read(commit, one)
            if key not in said:
                raise TapeError(f"syncer step {commit.syncer_step}: the log holds no word of {_named(key)} itself")
            if read in needs[key].reads:
                raise TapeError(f"syncer step {commit.syncer_step}: {_named(key)} had merged into it before")
            needs[key].reads[read] = (commit.syncer_step, one)
    origins: dict[Key, list[Key]] = {}
    waiting = list(needs)
    while waiting:
        joiner = waiting.pop()
        received = next((fact for fact in said[joiner] if isinstance(fact, StateReceived)), None)
        origins[joiner] = []
        if received is None or received.source != "peer":
            continue
        donor = (received.donor, received.donor_incarnation)
        if donor not in said:
            raise TapeError(
                f"{_named(joiner)} starts from the state of {_named(donor)}, of which the log holds no word"
            )
        if not received.versions:
            raise TapeError(
                f"{_named(joiner)}: its StateReceived does not say which versions the donor held (versions); {OLDER}"
            )
        if donor not in needs:
            waiting.append(donor)
        needs[donor].gives[joiner] = (received.donor_step, received.versions)
        origins[joiner] = [donor]
    try:
        graphlib.TopologicalSorter(origins).prepare()
    except graphlib.CycleError as error:
        raise TapeError(f"these start from each other's states: {', '.join(map(_named, error.args[1]))}") from error
    return needs


# ------------------------------------------------------------------ one incarnation


class _Walk:
    """An incarnation's facts one after the other, until everything that is wanted of it is found."""

    def __init__(self, key: Key, facts: Sequence[object], need: _Need, versions: Sequence[set[int]]) -> None:
        self._key, self._facts, self._need, self._versions = key, facts, need, versions
        self._moments: list[Moment] = []
        self._places: dict[Read | Give, int] = {}
        self._step: int | None = None  # the last completed; None before anything tells
        self._held: list[int | None] = [None] * len(versions)
        self._since = [0] * len(versions)  # the step after which each fragment's counting began
        self._tokens: dict[int, int] = {}  # by step
        self._newest = 0  # version adopted
        self._missing = len(need.reads) + len(need.gives)
        self._anchors = self._find_anchors()

    def life(self) -> Life:
        for fact in self._facts:
            if not self._missing:
                break
            self._take(fact)
        if self._missing:
            raise TapeError(self._what_is_missing())
        device = next((fact for fact in self._facts if isinstance(fact, DeviceTaken)), None)
        return Life(self._key, device, tuple(self._moments), self._places)

    def _find_anchors(self) -> set[Read]:
        """What rebasing will subtract: reads on the base that is replaced."""
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
                self._moments.append(Inherit((fact.donor, fact.donor_incarnation), fact.digest))
            case Spoiled():
                self._moments.append(Spoil(fact.fragment))
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
        if fact.progress is None:
            raise self._error(f"the StepFinished of its step {fact.step} has no progress; {OLDER}")
        self._step, self._tokens[fact.step] = fact.step, fact.tokens
        self._moments.append(Step(fact.step, fact.position, fact.tokens, fact.progress, fact.loss))

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
                raise self._error(f"it rebases on {what} from step {fact.read_at}, since when it holds another version")
            self._since[fragment] = fact.read_at
        elif fact.mode != "rebase":
            self._since[fragment] = fact.after_step
        self._held[fragment], self._newest = version, max(self._newest, version)
        self._moments.append(Adopt(fragment, version, fact.mode, fact.read_at))

    def _read(self, read: Read) -> None:
        """Note that this is the moment of a read, if it is one."""
        if read in self._places or (read not in self._need.reads and read not in self._anchors):
            return
        if (wanted := self._need.reads.get(read)) is not None:
            self._check_counters(read, *wanted)
            self._missing -= 1
        self._place(read)

    def _give(self) -> None:
        """Note for whom this is the moment of a donation."""
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
                f"{_named(joiner)} started from its state after step {step} with versions {list(versions)}, "
                "and by its own facts it was never in that state"
            )
        )

    def _error(self, message: str) -> TapeError:
        return TapeError(f"{_named(self._key)}: {message}")


def _named(key: Key) -> str:
    return f"{key[0]} {key[1]}"
