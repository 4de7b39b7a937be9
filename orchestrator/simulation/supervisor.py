"""Keeps the wanted learners and one syncer alive: the shell of the production controller in a simulated run.

It detects deaths after a delay, grants incarnations and epochs, and carries out the controller's actions. It never
fails, and its messages to a process arrive, unless the process is dead or frozen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any

from pydantic import NonNegativeInt

from orchestrator.eventlog.facts import (
    LearnerLost,
    LearnerRequested,
    LearnerStarted,
    NodePreempted,
    PoolScaled,
    RunFinished,
)
from orchestrator.lifecycle.actions import Action, AskToLeave, End, Probe, RecordNotice, RecordScaling, Start
from orchestrator.lifecycle.controller import Controller
from orchestrator.recipe.config import PoolConfig
from orchestrator.simulation.context import SimContext
from orchestrator.simulation.learner_process import LearnerProcess
from orchestrator.simulation.syncer_process import SyncerProcess
from outer.protocol import events_effects

SYNCER_HANG_S = 3.0  # a syncer that has not answered for so long counts as dead


class SimPool(PoolConfig):
    """A pool whose learners have names of their own. It may begin without any."""

    name: str
    learners: NonNegativeInt = 0
    members: list[str]  # every learner that it may have, in the order in which they are added

    def names(self, learners: int) -> list[str]:
        return self.members[:learners]


def _pools(context: SimContext, first: Collection[str]) -> list[SimPool]:
    """The pools of all learners; `first`: those that are wanted from the start."""
    members: dict[str, list[str]] = {}
    for name in sorted(context.specs, key=lambda name: name not in first):
        members.setdefault(context.specs[name].pool, []).append(name)
    return [
        SimPool(name=pool, learners=sum(name in first for name in names), max=len(names), members=names)
        for pool, names in members.items()
    ]


class Supervisor:
    """`begin_epoch` makes a syncer of that epoch from the journal's records, or returns None if it cannot yet.

    `quorum`: the pools cannot be scaled down to fewer learners.
    """

    def __init__(
        self,
        context: SimContext,
        learners: Iterable[str],
        begin_epoch: Callable[[int], SyncerProcess | None],
        quorum: int = 0,
    ) -> None:
        durations, learners = context.durations, list(learners)
        pools = _pools(context, learners)
        self.learners: dict[str, LearnerProcess] = {}  # the newest incarnation of each, once its process is up
        self.syncer: SyncerProcess | None = None
        self.finished_at: float | None = None  # when it first saw the run finished
        self.over = False
        self.controller = Controller(
            learners,
            backoff_s=durations.backoff_s,
            hang_s=durations.hang_s,
            unreachable_s=durations.unreachable_s,
            drain_s=context.sync.drain_s,
            pools=pools,
            quorum=quorum,
        )
        self._context, self.time, self._durations, self._begin_epoch = context, context.time, durations, begin_epoch
        self._pools = {pool.name: pool for pool in pools}
        self._facts = context.facts.setdefault(("orchestrator", 1), [])
        self._stopping = ""  # why the run is to end before its budget is reached
        self._epoch = 0
        self._detected = 0  # the epoch whose end was detected last
        self._frozen_since: float | None = None
        self._expected: dict[str, int] = {}  # the newest incarnation of each learner that the syncer expects

    def start(self) -> None:
        self._next_epoch()
        self._advance()
        self.time.after(self._durations.look_s, self._poll)

    # -------------------------------------------------------------- polling

    def _poll(self) -> None:
        if self.over:
            return
        self._look_at_syncer()
        syncer = self.syncer
        if syncer is not None and syncer.running and not syncer.deposed:
            if syncer.machine.finished and self.finished_at is None:
                self.finished_at = self.time.now
            for row in syncer.machine.view(syncer.clock()):
                if row["alive"]:
                    self.controller.reachable(row["name"], row["incarnation"])
                elif row["lease_age_s"] is not None and self.finished_at is None:
                    self._act(self.controller.silent(row["name"], row["incarnation"], row["lease_age_s"]))
        if self.finished_at is None:
            self._advance()
        elif not any(learner.alive for learner in self.learners.values()):
            self._end()
            return
        self.time.after(self._durations.look_s, self._poll)

    def _end(self) -> None:
        self.over = True
        if self.syncer is not None:
            self.syncer.finish()
        self.emit(RunFinished("finished", self.syncer.machine.finished if self.syncer else ""))
        if self.syncer is not None:
            self.syncer.die()

    def _advance(self) -> None:
        self._act(self.controller.advance(self.time.now))

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Start(name):
                    self._start(name)
                case AskToLeave():
                    self._drain(action)
                case Probe(name):
                    self._probe(name, action.incarnation)
                case End(name):
                    if (learner := self.learners.get(name)) is not None:
                        learner.die()
                    self.time.after(self._durations.end_s, self._lost, name, action.incarnation, "lease_expired")
                case RecordScaling():
                    self.emit(PoolScaled(action.pool, action.learners, action.added, action.removed, action.reason))
                case RecordNotice(node, names, remaining_s):
                    self.emit(NodePreempted(node, names, remaining_s))

    def emit(self, fact: Any) -> None:
        """Record a fact of the orchestrator."""
        context = self._context
        if context.recording:
            self._facts.append((self.time.now, fact))
        if context.trace is not None:
            context.trace(self.time.now, "orchestrator", fact)

    # -------------------------------------------------------------- one learner after another

    def _start(self, name: str) -> None:
        """Grant an incarnation. Its process begins once it is up and the syncer expects it."""
        spec = self._context.specs[name]
        incarnation = self.controller.units[name].incarnation.number + 1
        self.controller.started(name, incarnation)
        self.emit(LearnerRequested(name, incarnation, spec.pool, spec.region))
        if self.syncer is not None:
            event = self._announced(name, incarnation)
            self._tell(self.syncer, self.syncer.expect, event, partial(self._heard, name, incarnation))
        self._durations.place(name, incarnation, self._up, name, incarnation)

    def _announced(self, name: str, incarnation: int) -> events_effects.Expect:
        spec = self._context.specs[name]
        return events_effects.Expect(name, incarnation, self._durations.start_s, spec.batch_size, spec.region or "")

    def _heard(self, name: str, incarnation: int) -> None:
        """The syncer expects it."""
        if self._expected.get(name, 0) < incarnation:
            self._expected[name] = incarnation
            learner = self.learners.get(name)
            if learner is not None and learner.incarnation == incarnation:
                self.time.reach(self._durations.begin_s(), learner, learner.begin)

    def _up(self, name: str, incarnation: int) -> None:
        if not self.controller.alive(name, incarnation) or self.over:
            return
        learner = self.learners[name] = LearnerProcess(self._context, name, incarnation, self._ended)
        self._context.faults.started(learner)
        learner.syncer = self.syncer
        self.emit(LearnerStarted(name, incarnation, incarnation, learner.host.name))
        self.controller.answered(name, incarnation, node=learner.host.name)
        if self._expected.get(name) == incarnation:
            learner.begin()

    def _probe(self, name: str, incarnation: int) -> None:
        """Ask a learner itself. Its host is always seen. It hears again of an epoch that it is not attached to."""
        learner, syncer = self.learners.get(name), self.syncer
        if learner is None or learner.incarnation != incarnation or not learner.steps:
            self.controller.probed(name, incarnation, "")
            return
        self.controller.probed(name, incarnation, "it steps, but its reports do not arrive")
        if syncer is not None and learner.machine.epoch != syncer.epoch:
            learner.attach_again()

    def crash(self, name: str, detected: bool = False) -> bool:
        """Kill a learner's process. The death is detected at once or after a while. False: there is none."""
        learner = self.learners.get(name)
        if learner is None or not learner.alive:
            return False
        learner.die()
        wait_s = 0.0 if detected else self._durations.notice_s()
        self.time.after(wait_s, self._lost, name, learner.incarnation, "died")
        return True

    def _lost(self, name: str, incarnation: int, cause: str) -> None:
        if not self.controller.ended(name, incarnation, cause):
            return
        self.emit(LearnerLost(name, incarnation, cause, cause))
        self._fence(name, incarnation, "killed" if cause == "died" else cause)
        self.controller.lost(self.time.now, name, incarnation)
        self._replace()

    def _ended(self, learner: LearnerProcess, reason: str) -> None:
        """A learner's loop has returned, or failed."""
        self.time.after(self._durations.end_s, self._settle, learner, reason)

    def _settle(self, learner: LearnerProcess, reason: str) -> None:
        if reason.startswith("failed"):
            self._lost(learner.name, learner.incarnation, "failed")
        elif reason.startswith("drained"):
            self._left(learner.name, learner.incarnation)
        else:
            self.controller.finished(learner.name, learner.incarnation)

    def _left(self, name: str, incarnation: int) -> None:
        if self.controller.ended(name, incarnation, "drained"):
            self._fence(name, incarnation, "drained")
            self.controller.left(name, incarnation)
            self._replace()

    def _fence(self, name: str, incarnation: int, reason: str) -> None:
        if self.syncer is not None:
            self._tell(self.syncer, self.syncer.call, events_effects.Fence(name, incarnation, reason))

    def _replace(self) -> None:
        if self.finished_at is None:
            self._advance()

    # -------------------------------------------------------------- leaving and scaling

    def _drain(self, action: AskToLeave) -> None:
        if self.syncer is not None:
            event = events_effects.DrainRequested(action.learner, action.incarnation, action.reason, action.deadline_s)
            done = partial(self._dismissed, action.learner, action.incarnation)
            self._tell(self.syncer, self.syncer.drain, event, done)

    def _dismissed(self, name: str, incarnation: int, told: bool) -> None:
        """A learner that was not told to leave has nothing to lose: end it at once."""
        if told or not self.controller.alive(name, incarnation):
            return
        learner = self.learners.get(name)
        if learner is not None and learner.incarnation == incarnation:
            learner.die()
        self.time.after(self._durations.end_s, self._left, name, incarnation)

    def scale(self, pool: str, learners: int) -> bool:
        """Ask for this many learners in a pool. False: nothing changes."""
        actions = self.controller.scale(self.time.now, pool, {"learners": learners})
        self._act(actions)
        self._advance()
        return bool(actions)

    def resize(self, pool: str, change: int) -> bool:
        """Ask for so many learners more in a pool, or fewer. False: nothing changes."""
        return self.scale(pool, self.controller.pools.sizes[pool] + change)

    def restore(self, pool: str) -> None:
        """Undo scaling below the pool's first size."""
        self.scale(pool, max(self._pools[pool].learners, self.controller.pools.sizes[pool]))

    def want(self, name: str) -> None:
        """Have this learner run: one that was there comes back, another is added to its pool."""
        pool = self._context.specs[name].pool
        if name not in self.controller.units:
            members = self._pools[pool].members
            members.remove(name)
            members.insert(self.controller.pools.sizes[pool], name)
            self.resize(pool, 1)
        elif name not in self.controller.wanted:
            self.controller.want(name)
            self._advance()

    def unwant(self, name: str) -> None:
        """Have this learner leave, without scaling its pool: its capacity is gone."""
        if name in self.controller.wanted:
            self._act(self.controller.unwant(name, "its capacity is gone", self.time.now))

    def preempt(self, name: str) -> bool:
        """The learner's node announces its end. False: no learner is asked to leave."""
        learner = self.learners.get(name)
        if learner is None:
            return False
        actions = self.controller.node_notice(self.time.now, learner.host.name, None)
        self._act(actions)
        return any(isinstance(action, AskToLeave) for action in actions)

    def stop(self, reason: str) -> None:
        """End the run early. This syncer and every later one is told."""
        self._stopping = self._stopping or reason
        if self.syncer is not None:
            self._tell(self.syncer, self.syncer.call, events_effects.StopRequested(reason))

    # -------------------------------------------------------------- the syncer

    def _look_at_syncer(self) -> None:
        syncer = self.syncer
        if syncer is None or not syncer.alive or syncer.running:
            self._frozen_since = None
            return
        now = self.time.now
        self._frozen_since = now if self._frozen_since is None else self._frozen_since
        if now - self._frozen_since >= SYNCER_HANG_S:
            self._frozen_since = None
            self._context.fault_counts["zombie"] += 1
            self._detected = syncer.epoch
            self._next_epoch()

    def on_syncer_death(self, syncer: SyncerProcess) -> None:
        """Begin the next epoch once the death is detected."""
        self.time.after(self._durations.outage_s(), self._succeed, syncer)

    def _succeed(self, syncer: SyncerProcess) -> None:
        if syncer is self.syncer and not self.over and self._detected < syncer.epoch:
            self._detected = syncer.epoch
            self._next_epoch()

    def _next_epoch(self) -> None:
        """Try until a syncer has opened its epoch. Tell it what the last one knew, and tell the learners of it."""
        syncer = self._begin_epoch(self._epoch + 1)
        if syncer is None:
            self.time.after(self._durations.retry_s(), self._next_epoch)
            return
        self._epoch, self.syncer = syncer.epoch, syncer
        syncer.start()
        if syncer.epoch > 1:
            newest = ((name, unit.incarnation.number) for name, unit in self.controller.units.items())
            living = [pair for pair in newest if pair[1] and self.controller.alive(*pair)]
            syncer.call(events_effects.Living(tuple(self._announced(*pair) for pair in living)))
            for pair in living:
                self._heard(*pair)
        if self._stopping:
            syncer.call(events_effects.StopRequested(self._stopping))
        for drain in self.controller.leaving(self.time.now):
            self._drain(drain)
        for learner in self.learners.values():
            if learner.alive:
                self.time.reach(self._durations.reattach_s(), learner, learner.reattach, syncer)

    def _tell(self, syncer: SyncerProcess, what: Callable[..., None], *args: Any) -> None:
        self.time.reach(self._durations.tell_s(), syncer, what, *args)
