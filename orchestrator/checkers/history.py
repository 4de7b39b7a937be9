"""What every computation over the log starts from: each event once, by kind, and the lives of the learners.

Knows the facts and their order. Does not know what they promise: that is for the checkers, the books and the
accounts of time to say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from learners.facts import Adopted, PhaseEntered, StepFinished
from orchestrator.events import (
    Event,
    FaultHealed,
    FaultInjected,
    LearnerLost,
    LearnerRequested,
    LearnerStarted,
    PoolScaled,
    RunFinished,
    merge,
)
from outer.facts import (
    Committed,
    Finished,
    LearnerAttached,
    LearnerFenced,
    LeaseExpired,
    LeaseRenewed,
    SyncerStarted,
)

F = TypeVar("F")
Key = tuple[str, int]  # learner, incarnation
KILLING = frozenset({"kill", "wrong_config"})  # injected faults that end the process at once
OVERWRITING = frozenset({"bootstrap", "overwrite", "mix"})  # adoptions that set the counters of a fragment to zero


@dataclass(frozen=True)
class Verdict:
    """What a checker says of one promise. A log without evidence is `unknown`, and unknown is never a pass."""

    name: str
    promise: str
    status: Literal["pass", "violated", "unknown"]
    reason: str


def judge(name: str, promise: str, checked: int, things: str, broken: Sequence[str]) -> Verdict:
    """Violated by the first thing found broken, unknown when there was nothing to check, else pass."""
    if broken:
        more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
        return Verdict(name, promise, "violated", broken[0] + more)
    if not checked:
        return Verdict(name, promise, "unknown", f"the log has no {things}")
    return Verdict(name, promise, "pass", f"{checked} {things} checked")


class Said(NamedTuple, Generic[F]):
    """A fact, and where in the log it stands."""

    position: int  # in the merged log
    at: float  # Unix seconds, on the writer's clock
    writer: str
    incarnation: int  # the syncer's: its epoch
    fact: F


@dataclass
class Freeze:
    """One suspension of a process, [start, stop) in Unix seconds; stop is None while nothing has ended it."""

    fault: int
    start: float
    stop: float | None


@dataclass
class Life:
    """One incarnation of one learner, as the log tells it. Times are Unix seconds; None is never said."""

    learner: str
    incarnation: int
    requested: float | None = None
    started: float | None = None
    attached: float | None = None
    phases: list[tuple[float, str]] = field(default_factory=list)
    steps: list[Said[StepFinished]] = field(default_factory=list)
    adoptions: list[Said[Adopted]] = field(default_factory=list)
    expired: list[tuple[float, float | None]] = field(default_factory=list)  # without a lease, [from, to)
    kills: list[Said[FaultInjected]] = field(default_factory=list)
    freezes: list[Freeze] = field(default_factory=list)
    strikes: list[Said[FaultInjected]] = field(default_factory=list)  # every other injected fault
    fenced: float | None = None
    lost: float | None = None
    over: Literal["", "killed", "drained", "stopped"] = ""  # stopped: its end came after the run's

    @property
    def key(self) -> Key:
        return (self.learner, self.incarnation)

    @property
    def noticed(self) -> float | None:
        """When the orchestrator, or failing that the syncer, held this incarnation for dead."""
        return self.lost if self.lost is not None else self.fenced

    @property
    def last_sign(self) -> float | None:
        """The last thing it is known to have done, or to have been given."""
        signs = [at for at, _ in self.phases] + [said.at for said in self.steps[-1:]]
        signs += [at for at in (self.requested, self.started, self.attached) if at is not None]
        return max(signs, default=None)

    @property
    def killer(self) -> Said[FaultInjected] | None:
        """The injected fault that ended its process: the first, there is no second death."""
        return self.kills[0] if self.over == "killed" and self.kills else None

    @property
    def fatal_freeze(self) -> Freeze | None:
        """The freeze during which it was given up for dead, when no kill explains its end."""
        noticed = self.noticed
        if self.over != "killed" or self.kills or noticed is None:
            return None
        during = (f for f in self.freezes if f.start <= noticed and (f.stop is None or noticed <= f.stop))
        return next(during, None)

    @property
    def died(self) -> float | None:
        """The best known moment of its death: the fault that explains it, else its last sign of life."""
        noticed = self.noticed
        if self.over != "killed" or noticed is None:
            return None
        if self.killer is not None:
            return min(noticed, self.killer.at)
        if self.fatal_freeze is not None:
            return self.fatal_freeze.start
        return noticed if self.last_sign is None else min(noticed, self.last_sign)

    def entered(self, phase: str) -> float | None:
        """When it first entered this phase."""
        return next((at for at, name in self.phases if name == phase), None)


class History:
    """A log with its indexes. `said` is what was read, doubles included; `events` has each once, merged."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.said = tuple(events)
        self.events = merge([self.said])
        self.lives: dict[Key, Life] = {}
        self.finished: Said[Finished] | None = None
        self.healed: dict[int, float] = {}  # by fault, in Unix seconds
        self._kinds: defaultdict[type[Any], list[Said[Any]]] = defaultdict(list)
        for position, event in enumerate(self.events):
            said = Said(position, event.at, event.writer, event.incarnation, event.fact)
            self._kinds[type(event.fact)].append(said)
            self._follow(said)
        for life in self.lives.values():
            for freeze in life.freezes:  # a dead process is no longer suspended
                if life.noticed is not None and life.noticed > freeze.start:
                    freeze.stop = life.noticed if freeze.stop is None else min(freeze.stop, life.noticed)

    def of(self, kind: type[F]) -> list[Said[F]]:
        """Every fact of one kind, in the order of the merged log."""
        return self._kinds.get(kind, [])

    def by_syncer(self, *kinds: type[Any]) -> list[Said[Any]]:
        """The syncer's facts of these kinds in its own order, epoch by epoch: no clock decides it."""
        return sorted((s for kind in kinds for s in self.of(kind)), key=lambda s: (s.incarnation, s.position))

    @cached_property
    def commits(self) -> list[Said[Committed]]:
        """In the syncer's own order."""
        return self.by_syncer(Committed)

    @property
    def rules(self) -> SyncerStarted | None:
        """What the newest epoch began with."""
        started = self.by_syncer(SyncerStarted)
        return started[-1].fact if started else None

    @property
    def learners(self) -> tuple[str, ...]:
        """Every learner that was ever to be there, in the order of their coming."""
        configured = self.rules.learners if self.rules else ()
        return tuple(dict.fromkeys([*configured, *(name for s in self.of(PoolScaled) for name in s.fact.added)]))

    @property
    def ended(self) -> bool:
        """Nothing merges any more: the syncer has finished, or the run has."""
        return self.finished is not None or bool(self.of(RunFinished))

    def lives_of(self, learner: str) -> list[Life]:
        """Its incarnations, oldest first."""
        return sorted((x for x in self.lives.values() if x.learner == learner), key=lambda x: x.incarnation)

    def _life(self, learner: str, incarnation: int) -> Life:
        return self.lives.setdefault((learner, incarnation), Life(learner, incarnation))

    def _follow(self, said: Said[Any]) -> None:
        at, fact = said.at, said.fact
        match fact:
            case PhaseEntered():
                self._life(said.writer, said.incarnation).phases.append((at, fact.phase))
            case StepFinished():
                self._life(said.writer, said.incarnation).steps.append(said)
            case Adopted():
                self._life(said.writer, said.incarnation).adoptions.append(said)
            case LearnerRequested():
                self._life(fact.learner, fact.incarnation).requested = at
            case LearnerStarted():
                self._life(fact.learner, fact.incarnation).started = at
            case LearnerAttached():
                life = self._life(fact.learner, fact.incarnation)
                life.attached = at if life.attached is None else life.attached
            case LeaseExpired():
                self._life(fact.learner, fact.incarnation).expired.append((at, None))
            case LeaseRenewed():
                expired = self._life(fact.learner, fact.incarnation).expired
                if expired and expired[-1][1] is None:
                    expired[-1] = (expired[-1][0], at)
            case LearnerFenced() | LearnerLost():
                self._end(said)
            case FaultInjected() | FaultHealed():
                self._suffer(said)
            case Finished():
                self.finished = said

    def _end(self, said: Said[Any]) -> None:
        life = self._life(said.fact.learner, said.fact.incarnation)
        if not life.over:
            drained = isinstance(said.fact, LearnerFenced) and said.fact.reason == "drained"
            life.over = "stopped" if self.ended else "drained" if drained else "killed"
        if isinstance(said.fact, LearnerLost):
            life.lost = said.at if life.lost is None else life.lost
        else:
            life.fenced = said.at if life.fenced is None else life.fenced

    def _suffer(self, said: Said[Any]) -> None:
        fact = said.fact
        if isinstance(fact, FaultInjected):
            life = self._life(fact.target, fact.incarnation)
            if fact.fault_kind in KILLING:
                life.kills.append(said)
            elif fact.fault_kind == "freeze":
                # It heals by itself, even when nobody is left to say so.
                life.freezes.append(Freeze(fact.fault, said.at, said.at + fact.duration_s))
            else:
                life.strikes.append(said)
        else:
            self.healed[fact.fault] = said.at
            for life in self.lives.values():
                for freeze in life.freezes:
                    if freeze.fault == fact.fault:
                        freeze.stop = said.at


def indexed(events: Iterable[Event] | History) -> History:
    """The history of a log, or the one already made of it."""
    return events if isinstance(events, History) else History(events)
