"""Keeps the wanted learners alive: what is true of every learner unit, as a pure machine that returns actions.

A unit has a newest incarnation, which has ranks (its processes). The learner manager reports
what happened and carries out the actions. Times are seconds of its monotonic clock.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from orchestrator.eventlog.facts import NodePreempted, PoolScaled
from orchestrator.lifecycle.actions import Action, AskToLeave, End, Probe, Release, Start
from orchestrator.lifecycle.pools import Change, Pools
from orchestrator.recipe.config import PoolConfig

BACKOFF_S_MAX = 30.0
SOUND_S = 60.0  # an incarnation that lived this long clears the count of failures
NOTICE_MARGIN_S = 2.0  # learners leave a node this long before it ends
DRAIN_S_MIN = 1.0
NOTICE = "its node is about to end"
PROBED_FROM = 0.25  # of the hang deadline: the silence from which the learner itself is asked
PROBES_S = 2.0  # of silence between two probes


class State(Enum):
    WAITING = "waiting"  # for its time to start
    STARTING = "starting"  # requested; not every rank is up
    RUNNING = "running"
    UNREACHABLE = "unreachable"  # its node cannot be seen, or it steps and its reports do not arrive
    DRAINING = "draining"  # asked to leave, and still there
    ENDING = "ending"  # being killed, and still there
    DONE = "done"  # the run is over, or the unit is not wanted any more


REPLACED, OVER = "gone and still wanted", "gone and not wanted, or the run is over"
LEAVES, KILLED = "asked to leave", "silent for too long, or refused"
UNSEEN = "its node cannot be seen, or its reports do not arrive"
FROM_RUNNING: dict[State, str] = {
    State.UNREACHABLE: UNSEEN,
    State.WAITING: REPLACED,
    State.DRAINING: LEAVES,
    State.ENDING: KILLED,
    State.DONE: OVER,
}

# From each state to which, and when. docs/protocol.md draws it.
TRANSITIONS: dict[State, dict[State, str]] = {
    State.WAITING: {State.STARTING: "its time has come", State.DONE: "not wanted any more, or the run is over"},
    State.STARTING: {State.RUNNING: "every rank is up"} | FROM_RUNNING,
    State.RUNNING: FROM_RUNNING,
    State.UNREACHABLE: {
        State.STARTING: "seen or heard again before every rank was up",
        State.RUNNING: "seen or heard again",
        State.WAITING: REPLACED,
        State.DRAINING: "asked to leave, or seen or heard again while leaving",
        State.ENDING: KILLED,
        State.DONE: OVER,
    },
    State.DRAINING: {State.UNREACHABLE: UNSEEN, State.WAITING: REPLACED, State.ENDING: KILLED, State.DONE: OVER},
    State.ENDING: {State.WAITING: REPLACED, State.DONE: OVER},
    State.DONE: {State.WAITING: "wanted again"},
}
GONE = (State.WAITING, State.DONE)  # no process is there


@dataclass
class RankState:
    """One process of an incarnation."""

    up: bool = False
    pid: int | None = None
    node: str | None = None  # Ray's id in hex


@dataclass
class CurrentIncarnation:
    """The state of a unit's newest incarnation."""

    number: int = 0  # 0: there has been none
    ranks: tuple[RankState, ...] = ()
    leaving: str = ""  # why it was asked to leave
    leave_by: float = math.inf
    ending: str = ""  # why it is being killed
    unseen: str = ""  # why it is out of reach
    probing: bool = False  # a probe is under way
    probed: bool = False  # a probe has answered since it was heard last
    probed_s: float = -math.inf  # its silence when the newest probe began
    noticed: bool = False  # its node has announced its end
    gone: bool = False  # its end was reported
    resumed: bool = False  # it goes on from its own saved state


@dataclass
class Unit:
    """The state of one learner."""

    state: State = State.WAITING
    wanted: bool = True
    incarnation: CurrentIncarnation = field(default_factory=CurrentIncarnation)
    resume: State = State.RUNNING  # the state that an unreachable unit returns to
    fault: str = ""  # the last thing that went wrong
    no_place: str = ""  # why nothing could be reserved for it; empty once something is
    failures: int = 0  # in a row
    start_at: float = float("-inf")
    began_at: float = 0.0
    ended_by: str = ""  # what ended the incarnation before
    restarts: Counter[str] = field(default_factory=Counter)  # by what ended the incarnation before
    lost_at: float | None = None  # when it was lost, until it contributes again
    recoveries: int = 0
    recovery_s: float | None = None  # the newest: from the loss to a contribution of a later incarnation

    def move(self, state: State) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} -> {state}"
        self.state = state

    def end(self) -> None:
        self.incarnation.gone = True
        self.move(State.WAITING if self.wanted else State.DONE)

    @property
    def waits(self) -> bool:
        """It may be let go if it has no place. One that goes on from its own state has its time to start."""
        return self.state is State.WAITING or (self.state is State.STARTING and not self.incarnation.resumed)

    @property
    def leaves(self) -> bool:
        return State.DRAINING in (self.state, self.resume if self.state is State.UNREACHABLE else None)


class Controller:
    """Restarts a learner at once after its first failure, later with a back-off that doubles.

    `hang_s`: the longest silence of a learner that does not step. `unreachable_s`: of one that is out of reach.
    `drain_s`: how long a learner may take to leave. `pools`, `quorum`: what may be scaled, and to how few learners.
    `local`: the Ray cluster was started for this run and has no room for more than the recipe's maximum.
    """

    def __init__(
        self,
        learners: Iterable[str],
        *,
        backoff_s: float,
        hang_s: float,
        unreachable_s: float = math.inf,
        drain_s: float = math.inf,
        pools: Sequence[PoolConfig] = (),
        quorum: int = 0,
        local: bool = False,
    ) -> None:
        self.units = {name: Unit() for name in learners}
        self._backoff_s, self._hang_s, self._unreachable_s, self._drain_s = backoff_s, hang_s, unreachable_s, drain_s
        self.pools, self._quorum = Pools(pools, quorum, local), quorum

    # -------------------------------------------------------------- what others may ask

    @property
    def wanted(self) -> list[str]:
        return [name for name, unit in self.units.items() if unit.wanted]

    @property
    def quorum_possible(self) -> bool:
        """Whether enough wanted learners have a place, or may still get one at once, to reach the quorum."""
        return sum(unit.wanted and not unit.no_place for unit in self.units.values()) >= self._quorum

    def alive(self, learner: str, incarnation: int) -> bool:
        """Whether this incarnation is the newest, and its end was not reported."""
        newest = self.units[learner].incarnation
        return newest.number == incarnation and not newest.gone

    def running(self) -> list[dict[str, Any]]:
        """The processes of running incarnations: the targets of faults."""
        return [
            {"name": name, "incarnation": unit.incarnation.number, "rank": number, "pid": rank.pid, "node": rank.node}
            for name, unit in self.units.items()
            if unit.state is State.RUNNING
            for number, rank in enumerate(unit.incarnation.ranks)
            if rank.pid is not None
        ]

    def leaving(self, now: float) -> list[AskToLeave]:
        """The drains under way, which a new epoch of the syncer has to be asked for again."""
        return [
            AskToLeave(name, newest.number, newest.leaving, max(DRAIN_S_MIN, newest.leave_by - now))
            for name, newest in ((name, unit.incarnation) for name, unit in self.units.items())
            if newest.leaving and not newest.gone
        ]

    # -------------------------------------------------------------- which learners are wanted

    def want(self, learner: str) -> None:
        """Have this learner run; one that is leaving comes back once it has left."""
        unit = self.units.setdefault(learner, Unit())
        unit.wanted = True
        if unit.state is State.DONE:
            unit.failures, unit.start_at = 0, float("-inf")
            unit.move(State.WAITING)

    def unwant(self, learner: str, reason: str, now: float = 0.0) -> list[Action]:
        """Have this learner leave for good. `now` is needed where `drain_s` is finite."""
        unit = self.units[learner]
        unit.wanted, unit.no_place = False, ""
        if unit.state is State.WAITING:
            unit.move(State.DONE)
        return self.drain(learner, reason, now)

    def scale(self, now: float, pool: str, request: Mapping[str, Any] | None) -> list[Action]:
        """Make a pool as large as was last requested, if that can be."""
        if not (change := self.pools.scale(pool, request)):
            return []
        return self._change(now, change, f"pool {pool} is scaled to {self.pools.sizes[pool]}")

    def claims(self) -> list[str]:
        """Learners that opportunistic pools take once they have a place."""
        return [name for name in self.pools.claims() if self._idle(name)]

    def follow(self, now: float, placed: Collection[str]) -> list[Action]:
        """Take and let go learners of opportunistic pools; `placed`: those without a process that have a place."""
        free = {name for name in self.claims() if name in placed}
        homeless = {name for name in self.wanted if name not in placed and self.units[name].waits}
        changes = list(self.pools.follow(now, free, homeless))
        return [action for change in changes for action in self._change(now, change, change.reason)]

    def rejoin(self, there: Iterable[str]) -> list[Action]:
        """An earlier orchestrator has left these learners, or their states: opportunistic pools want them."""
        return [action for change in self.pools.rejoin(set(there)) for action in self._change(0.0, change)]

    def _change(self, now: float, change: Change, why: str = "") -> list[Action]:
        size = self.pools.sizes[change.pool]
        actions: list[Action] = [PoolScaled(change.pool, size, change.added, change.removed, change.reason)]
        for name in change.added:
            self.want(name)
        for name in filter(self.units.__contains__, reversed(change.removed)):
            actions += self.unwant(name, why, now)
            actions += [Release(name)] if self._idle(name) else []
        return actions

    def _idle(self, name: str) -> bool:
        return name not in self.units or self.units[name].state is State.DONE

    # -------------------------------------------------------------- starting

    def advance(self, now: float) -> list[Action]:
        """The starts that are due."""
        due = [name for name, unit in self.units.items() if unit.state is State.WAITING and now >= unit.start_at]
        for name in due:
            self.units[name].move(State.STARTING)
            self.units[name].began_at = now
        return [Start(name) for name in due]

    def started(self, learner: str, incarnation: int, ranks: int = 1, resumed: bool = False) -> None:
        """The incarnation was granted. If the unit was asked to leave since `advance`, that holds for this one."""
        unit = self.units[learner]
        before, unit.incarnation = (
            unit.incarnation,
            CurrentIncarnation(incarnation, tuple(RankState() for _ in range(ranks))),
        )
        unit.incarnation.resumed = resumed
        if before.number and unit.ended_by:
            unit.restarts[unit.ended_by] += 1
        if unit.leaves:
            unit.incarnation.leaving, unit.incarnation.leave_by = before.leaving, before.leave_by

    def place(self, learner: str, missing: str) -> None:
        """Whether resources are reserved for the learner; `missing`: why not, empty when they are."""
        unit = self.units[learner]
        unit.no_place = missing if unit.wanted else ""

    def answered(
        self, learner: str, incarnation: int, pid: int | None = None, node: str | None = None, rank: int = 0
    ) -> None:
        """A rank's process is up. The unit runs once every rank is."""
        if (unit := self._there(learner, incarnation)) is None:
            return
        ranks, up = unit.incarnation.ranks, RankState(True, pid, node)
        unit.incarnation.ranks = (*ranks[:rank], up, *ranks[rank + 1 :])
        self.reachable(learner, incarnation)
        if unit.state is State.STARTING and all(each.up for each in unit.incarnation.ranks):
            unit.move(State.RUNNING)

    # -------------------------------------------------------------- leaving

    def drain(self, learner: str, reason: str, now: float = 0.0, deadline_s: float = math.inf) -> list[Action]:
        """Have this incarnation leave; if the learner is still wanted, another follows."""
        unit = self.units[learner]
        if unit.state in (*GONE, State.ENDING) or unit.leaves:
            return []
        unit.move(State.DRAINING)
        return [self._drain(now, learner, reason, deadline_s)]

    def _drain(self, now: float, learner: str, reason: str, deadline_s: float) -> AskToLeave:
        newest, deadline_s = self.units[learner].incarnation, min(deadline_s, self._drain_s)
        newest.leaving, newest.leave_by = reason, now + deadline_s
        return AskToLeave(learner, newest.number, reason, deadline_s)

    def node_notice(self, now: float, node: str, remaining_s: float | None) -> list[Action]:
        """A node has announced its end; `remaining_s` is None where it did not say when."""
        here = [
            name
            for name, unit in self.units.items()
            if not unit.incarnation.noticed and any(rank.node == node for rank in unit.incarnation.ranks)
        ]
        if not here:
            return []
        deadline_s = math.inf if remaining_s is None else max(DRAIN_S_MIN, remaining_s - NOTICE_MARGIN_S)
        actions: list[Action] = [NodePreempted(node, tuple(here), remaining_s)]
        for name in here:
            unit = self.units[name]
            unit.incarnation.noticed = True
            if unit.leaves:  # there may be less time than it was given
                actions.append(self._drain(now, name, NOTICE, deadline_s))
            else:
                actions += self.drain(name, NOTICE, now, deadline_s)
        return actions

    def left(self, learner: str, incarnation: int) -> None:
        """It has left without losing anything."""
        unit = self.units[learner]
        if unit.incarnation.number == incarnation and unit.state not in GONE:
            unit.failures, unit.start_at, unit.ended_by = 0, float("-inf"), "drained"
            unit.end()

    # -------------------------------------------------------------- failing

    def silent(self, learner: str, incarnation: int, silent_s: float) -> list[Action]:
        """Its lease has run out, and the syncer has heard nothing for this long. It is ended only after a probe."""
        if (unit := self._there(learner, incarnation)) is None:
            return []
        newest = unit.incarnation
        unit.fault = f"silent for {silent_s:.1f} s" + (newest.unseen and f"; {newest.unseen}")
        if newest.probed and silent_s >= (self._unreachable_s if newest.unseen else self._hang_s):
            return self.end(learner, incarnation, unit.fault)
        if newest.probing or silent_s < max(PROBED_FROM * self._hang_s, newest.probed_s + PROBES_S):
            return []
        newest.probing, newest.probed_s = True, silent_s
        return [Probe(learner, incarnation)]

    def end(self, learner: str, incarnation: int, reason: str) -> list[Action]:
        """Kill this incarnation."""
        if (unit := self._there(learner, incarnation)) is None:
            return []
        unit.move(State.ENDING)
        unit.incarnation.ending = reason
        return [End(learner, incarnation, reason)]

    def probed(self, learner: str, incarnation: int, unseen: str) -> None:
        """The answer to a Probe: why it is out of reach; empty when it is not, so that its silence is a hang."""
        if (unit := self._there(learner, incarnation)) is None:
            return
        newest = unit.incarnation
        newest.probing, newest.probed, newest.unseen = False, True, unseen
        if not unseen:
            self._return(unit)
        elif unit.state is not State.UNREACHABLE:
            unit.resume = unit.state
            unit.move(State.UNREACHABLE)

    def reachable(self, learner: str, incarnation: int) -> None:
        """Its lease was renewed, or one of its ranks came up."""
        if (unit := self._there(learner, incarnation)) is not None:
            newest = unit.incarnation
            newest.unseen, newest.probed, newest.probed_s = "", False, -math.inf
            self._return(unit)

    @staticmethod
    def _return(unit: Unit) -> None:
        if unit.state is State.UNREACHABLE:
            unit.move(unit.resume)

    def ended(self, learner: str, incarnation: int, fault: str) -> bool:
        """It is gone, and the syncer is about to be told; `left` or `lost` follows. False: this was known."""
        if not self.alive(learner, incarnation):
            return False
        unit = self.units[learner]
        unit.incarnation.gone, unit.fault = True, fault
        return True

    def lost(self, now: float, learner: str, incarnation: int, cause: str = "died") -> float | None:
        """It is gone. Returns the seconds until it starts again; None if that is old news."""
        unit = self.units[learner]
        if unit.incarnation.number != incarnation or unit.state in GONE:
            return None
        unit.failures = 1 if now - unit.began_at >= SOUND_S else unit.failures + 1
        wait = 0.0 if unit.failures == 1 else min(BACKOFF_S_MAX, self._backoff_s * 2.0 ** (unit.failures - 2))
        unit.start_at, unit.ended_by = now + wait, cause
        unit.lost_at = now if unit.lost_at is None else unit.lost_at
        unit.end()
        return wait

    def contributed(self, now: float, learner: str, incarnation: int) -> None:
        """A commit contains steps of this incarnation: the learner has recovered, if it was lost."""
        unit = self.units[learner]
        if unit.lost_at is not None and self.alive(learner, incarnation):
            unit.recoveries, unit.recovery_s, unit.lost_at = unit.recoveries + 1, now - unit.lost_at, None

    def finished(self, learner: str, incarnation: int) -> None:
        """Its training loop returned because the run is over."""
        unit = self.units[learner]
        if unit.incarnation.number == incarnation and unit.state is not State.DONE:
            unit.wanted, unit.incarnation.gone = False, True
            unit.move(State.DONE)

    def _there(self, learner: str, incarnation: int) -> Unit | None:
        """The learner's record, if this incarnation is alive and not being killed."""
        unit = self.units[learner]
        ended = unit.state in (*GONE, State.ENDING) or not self.alive(learner, incarnation)
        return None if ended else unit
