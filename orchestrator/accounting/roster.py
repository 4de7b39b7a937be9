"""The roster: what the log says of the learners' incarnations that still matter. A fold.

An incarnation is dropped once it has ended, its learner's next one was requested, and the time accounts are past both.
Times are Unix seconds on the writers' clocks; None: not in the log.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np

from learners.protocol.facts import PhaseEntered, Resumed
from orchestrator.eventlog.block import Block, Key
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import (
    FaultHealed,
    FaultInjected,
    LearnerLost,
    LearnerRequested,
    LearnerStarted,
    RunFinished,
    RunResumed,
)
from outer.protocol.facts import (
    FactsLost,
    Finished,
    LearnerAttached,
    LearnerFenced,
    LeaseExpired,
    LeaseRenewed,
    SyncerStarted,
)

KILLING = frozenset({"kill", "wrong_config"})  # injected faults that end the process at once
SYNCER = "syncer"
UNHEALED = 1000  # newest faults whose end is awaited
KEPT = 64  # of an incarnation's newest phases and faults
EXPIRIES = 1024  # of its newest expired leases

Over = Literal["", "killed", "drained", "stopped"]  # stopped: its end came after the run's


@dataclass(eq=False)
class InjectedFault:
    """An injected fault. `healed`: when the log says that it was."""

    fault: int
    kind: str
    at: float
    duration_s: float
    healed: float | None = None


@dataclass(eq=False)
class Incarnation:
    """One incarnation of one learner, as the log tells it."""

    learner: str
    number: int
    requested: float | None = None
    started: float | None = None
    attached: float | None = None
    epoch: int = 0  # of the syncer that it attached to last
    phases: deque[tuple[float, str]] = field(default_factory=partial(deque, maxlen=KEPT))
    begun: float | None = None  # its first step, without its wait
    stepped: float | None = None  # when its newest step ended
    steps: int = 0
    resumed: deque[float] = field(default_factory=partial(deque, maxlen=KEPT))  # went on after the run was suspended
    expired: deque[tuple[float, float | None]] = field(
        default_factory=partial(deque, maxlen=EXPIRIES)
    )  # lease, [from, to)
    kill: InjectedFault | None = None  # the first fault that was to end its process
    faults: deque[InjectedFault] = field(default_factory=partial(deque, maxlen=KEPT))  # the others, freezes among them
    fenced: float | None = None
    lost: float | None = None
    over: Over = ""

    @property
    def key(self) -> Key:
        return (self.learner, self.number)

    @property
    def noticed(self) -> float | None:
        """When it had left; or else when the orchestrator, or the syncer, first considered this incarnation dead."""
        return self.fenced if self.lost is None or self.over == "drained" else self.lost

    @property
    def last_sign(self) -> float | None:
        """The time of the last sign of life."""
        signs = [at for at, _ in self.phases]
        signs += [at for at in (self.stepped, self.requested, self.started, self.attached) if at is not None]
        return max(signs, default=None)

    @property
    def freezes(self) -> Iterator[tuple[InjectedFault, float, float]]:
        """Its suspensions, [from, to). A dead process is no longer suspended."""
        for fault in self.faults:
            if fault.kind == "freeze":
                stop = fault.at + fault.duration_s if fault.healed is None else fault.healed
                noticed = self.noticed
                yield fault, fault.at, min(stop, noticed) if noticed is not None and noticed > fault.at else stop

    @property
    def fatal_freeze(self) -> InjectedFault | None:
        """The freeze during which it was considered dead, if no kill explains its end."""
        noticed = self.noticed
        if self.over != "killed" or self.kill is not None or noticed is None:
            return None
        return next((fault for fault, start, stop in self.freezes if start <= noticed <= stop), None)

    @property
    def died(self) -> float | None:
        """The best known time of its death: the fault that explains it, else its last sign of life."""
        noticed = self.noticed
        if self.over != "killed" or noticed is None:
            return None
        if self.kill is not None:
            return min(noticed, self.kill.at)
        if (freeze := self.fatal_freeze) is not None:
            return freeze.at
        return noticed if self.last_sign is None else min(noticed, self.last_sign)

    def until(self, end: float) -> float:
        """When it ended: its death, its order to stop, or `end` where it did not."""
        at = self.died if self.over == "killed" else self.noticed if self.over else None
        return end if at is None else at

    def entered(self, phase: str) -> float | None:
        """When it first entered this phase."""
        return next((at for at, name in self.phases if name == phase), None)


class Roster:
    """A fold. `table`: the incarnations that still matter, in order of appearance."""

    def __init__(self) -> None:
        self.table: dict[Key, Incarnation] = {}
        self.numbers: dict[str, list[int]] = {}  # by learner, the incarnations in the table, ascending
        self.rules: SyncerStarted | None = None  # of the newest epoch
        self.finished: float | None = None  # when the syncer first said so, unless the run was resumed since
        self.over = False  # whether the orchestrator has ended the run
        self.faults = 0  # injected
        self.facts_lost: Counter[str] = Counter()  # by writer
        self._unhealed: dict[int, InjectedFault] = {}
        self._gone: dict[str, int] = {}  # by learner, its newest incarnation that was dropped

    @property
    def ended(self) -> bool:
        """Whether the syncer or the run has finished: nothing merges any more."""
        return self.finished is not None or self.over

    def of(self, learner: str) -> list[Incarnation]:
        """A learner's incarnations in the table, oldest first."""
        return [self.table[learner, number] for number in self.numbers.get(learner, ())]

    def __getitem__(self, key: Key) -> Incarnation:
        """The incarnation, added if it is not in the table. Of one that was dropped nothing is kept."""
        if key not in self.table:
            if key[1] <= self._gone.get(key[0], 0):
                return Incarnation(*key)
            self.table[key] = Incarnation(*key)
            numbers = self.numbers.setdefault(key[0], [])
            numbers.append(key[1])
            numbers.sort()
        return self.table[key]

    def drop(self, incarnation: Incarnation) -> None:
        """Nothing that is computed needs its learner's oldest incarnation any more."""
        del self.table[incarnation.key]
        self.numbers[incarnation.learner].remove(incarnation.number)
        self._gone[incarnation.learner] = incarnation.number

    def take(self, block: Block) -> None:
        for _, event in block.others:
            if (follow := _FOLLOW.get(type(event.fact))) is not None:
                follow(self, event, event.fact)
        steps = block.steps
        if not len(steps.at):
            return
        order = np.argsort(steps.source, kind="stable")
        sources, at = steps.source[order], steps.at[order]
        first = np.flatnonzero(np.diff(sources, prepend=-1))
        for begin, end in zip(first.tolist(), [*first[1:].tolist(), len(at)], strict=True):
            incarnation = self[block.sources[int(sources[begin])]]
            if incarnation.begun is None:
                incarnation.begun = float(at[begin] - steps.seconds[order[begin]])
            incarnation.stepped = max(incarnation.stepped or -math.inf, float(at[begin:end].max()))
            incarnation.steps += end - begin

    # -------------------------------------------------------------- facts

    def _enter(self, event: Event, fact: PhaseEntered) -> None:
        self[event.writer, event.incarnation].phases.append((event.at, fact.phase))

    def _go_on(self, event: Event, fact: Resumed) -> None:
        self[event.writer, event.incarnation].resumed.append(event.at)

    def _request(self, event: Event, fact: LearnerRequested) -> None:
        self[fact.learner, fact.incarnation].requested = event.at

    def _start(self, event: Event, fact: LearnerStarted) -> None:
        self[fact.learner, fact.incarnation].started = event.at

    def _attach(self, event: Event, fact: LearnerAttached) -> None:
        """Attaching to a later epoch ends an expired lease: that epoch does not know of it."""
        incarnation = self[fact.learner, fact.incarnation]
        incarnation.attached = event.at if incarnation.attached is None else incarnation.attached
        if incarnation.epoch not in (0, event.incarnation):
            self._renew(event, fact)
        incarnation.epoch = event.incarnation

    def _expire(self, event: Event, fact: LeaseExpired) -> None:
        self[fact.learner, fact.incarnation].expired.append((event.at, None))

    def _renew(self, event: Event, fact: LeaseRenewed | LearnerAttached) -> None:
        expired = self[fact.learner, fact.incarnation].expired
        if expired and expired[-1][1] is None:
            expired[-1] = (expired[-1][0], event.at)

    def _end(self, event: Event, fact: LearnerFenced | LearnerLost) -> None:
        incarnation = self[fact.learner, fact.incarnation]
        if not incarnation.over:
            drained = isinstance(fact, LearnerFenced) and fact.reason == "drained"
            incarnation.over = "stopped" if self.ended else "drained" if drained else "killed"
        if isinstance(fact, LearnerLost):
            incarnation.lost = event.at if incarnation.lost is None else incarnation.lost
        elif incarnation.fenced is None:
            incarnation.fenced = event.at

    def _suffer(self, event: Event, fact: FaultInjected) -> None:
        self.faults += 1
        if fact.target == SYNCER:
            return  # its epochs are not learners' incarnations
        incarnation = self[fact.target, fact.incarnation]
        fault = InjectedFault(fact.fault, fact.fault_kind, event.at, fact.duration_s)
        if fact.fault_kind in KILLING:
            incarnation.kill = incarnation.kill or fault
            return
        incarnation.faults.append(fault)
        self._unhealed[fact.fault] = fault
        if len(self._unhealed) > UNHEALED:
            del self._unhealed[next(iter(self._unhealed))]

    def _heal(self, event: Event, fact: FaultHealed) -> None:
        if (fault := self._unhealed.pop(fact.fault, None)) is not None:
            fault.healed = event.at

    def _miss(self, event: Event, fact: FactsLost) -> None:
        self.facts_lost[fact.writer] += fact.last - fact.first + 1

    def _rule(self, event: Event, fact: SyncerStarted) -> None:
        self.rules = fact

    def _finish(self, event: Event, fact: Finished | RunFinished) -> None:
        if isinstance(fact, RunFinished):
            self.over = True
        elif self.finished is None:
            self.finished = event.at

    def _resume(self, event: Event, fact: RunResumed) -> None:
        """The run continues: forget its end."""
        self.finished, self.over = None, False


_FOLLOW: dict[type[Any], Callable[[Roster, Event, Any], None]] = {
    PhaseEntered: Roster._enter,
    Resumed: Roster._go_on,
    LearnerRequested: Roster._request,
    LearnerStarted: Roster._start,
    LearnerAttached: Roster._attach,
    LeaseExpired: Roster._expire,
    LeaseRenewed: Roster._renew,
    LearnerFenced: Roster._end,
    LearnerLost: Roster._end,
    FaultInjected: Roster._suffer,
    FaultHealed: Roster._heal,
    FactsLost: Roster._miss,
    SyncerStarted: Roster._rule,
    Finished: Roster._finish,
    RunFinished: Roster._finish,
    RunResumed: Roster._resume,
}
