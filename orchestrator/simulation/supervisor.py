"""Keeps the wanted learners and one syncer alive, by the production controller.

It detects deaths after a while, grants incarnations and epochs, fences, restarts, and tells the processes. It does not
fail, and what it tells a process arrives, unless the process is dead or frozen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from orchestrator.eventlog.facts import LearnerLost, LearnerRequested, LearnerStarted, PoolScaled, RunFinished
from orchestrator.lifecycle import controller
from orchestrator.simulation.context import SimContext
from orchestrator.simulation.learner_process import LearnerProcess
from orchestrator.simulation.syncer_process import SyncerProcess
from outer.protocol import events_effects

SYNCER_HANG_S = 3.0  # a syncer that has not answered for so long counts as dead


class Supervisor:
    """`begin_epoch` makes a syncer of that epoch from what the journal holds, or returns None if it cannot yet."""

    def __init__(
        self, context: SimContext, learners: Iterable[str], begin_epoch: Callable[[int], SyncerProcess | None]
    ) -> None:
        durations = context.durations
        self.learners: dict[str, LearnerProcess] = {}  # the newest incarnation of each, once its process is up
        self.syncer: SyncerProcess | None = None
        self.finished_at: float | None = None  # when it first saw the run finished
        self.over = False
        self.controller = controller.Controller(learners, backoff_s=durations.backoff_s, hang_s=durations.hang_s)
        self.incarnations: dict[str, int] = {}
        self.drains: dict[str, events_effects.DrainRequested] = {}
        self._context, self.time, self._durations, self._begin_epoch = context, context.time, durations, begin_epoch
        self._first = frozenset(self.controller.wanted)
        self._facts = context.facts.setdefault(("orchestrator", 1), [])
        self._stopping = ""  # why the run is to end before its budget is reached
        self._epoch = 0
        self._detected = 0  # the epoch whose end was detected last
        self._frozen_since: float | None = None
        self._expected: dict[tuple[str, int], bool] = {}  # the syncer has heard of it
        self._dead: dict[str, int] = {}  # the newest incarnation of each that has ended

    def start(self) -> None:
        self._next_epoch()
        self._advance()
        self.time.after(self._durations.look_s, self._poll)

    # -------------------------------------------------------------- looking after everybody

    def _poll(self) -> None:
        if self.over:
            return
        self._look_at_syncer()
        syncer = self.syncer
        if syncer is not None and syncer.running and not syncer.deposed:
            if syncer.machine.finished and self.finished_at is None:
                self.finished_at = self.time.now
            for row in syncer.machine.view(syncer.clock()):
                if not row["alive"] and row["lease_age_s"] is not None and self.finished_at is None:
                    self._act(self.controller.silent(row["name"], row["incarnation"], row["lease_age_s"]))
        if self.finished_at is None:
            self._advance()
        elif not any(learner.alive for learner in self.learners.values()):
            self._end()
            return
        self.time.after(self._durations.look_s, self._poll)

    def _end(self) -> None:
        self.over = True
        self.emit(RunFinished("finished", self.syncer.machine.finished if self.syncer else ""))
        if self.syncer is not None:
            self.syncer.die()

    def _advance(self) -> None:
        self._act(self.controller.advance(self.time.now))

    def _act(self, actions: list[controller.Action]) -> None:
        for action in actions:
            match action:
                case controller.Start(name):
                    self._start(name)
                case controller.AskToLeave():
                    self._drain(action, self._context.sync.drain_s)
                case controller.End(name):
                    if (learner := self.learners.get(name)) is not None:
                        learner.die()
                    self.time.after(self._durations.end_s, self._lost, name, action.incarnation, "lease_expired")

    def emit(self, fact: Any) -> None:
        """Record a fact of the orchestrator."""
        context = self._context
        if context.recording:
            self._facts.append((self.time.now, fact))
        if context.trace is not None:
            context.trace.line(self.time.now, "orchestrator", 1, "says", context.trace.words(fact))

    # -------------------------------------------------------------- one learner after another

    def _start(self, name: str) -> None:
        """Grant an incarnation. Its process begins once it is up and the syncer expects it."""
        spec = self._context.specs[name]
        incarnation = self.incarnations[name] = self.incarnations.get(name, 0) + 1
        self.controller.started(name, incarnation)
        self.drains.pop(name, None)
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
        if not self._expected.get((name, incarnation)):
            self._expected[name, incarnation] = True
            learner = self.learners.get(name)
            if learner is not None and learner.incarnation == incarnation:
                self.time.reach(self._durations.begin_s(), learner, learner.begin)

    def _up(self, name: str, incarnation: int) -> None:
        if self.incarnations[name] != incarnation or self._is_dead(name, incarnation) or self.over:
            return
        learner = self.learners[name] = LearnerProcess(self._context, name, incarnation, self._ended)
        self._context.faults.started(learner)
        learner.syncer = self.syncer
        self.emit(LearnerStarted(name, incarnation, incarnation, learner.host.name))
        self.controller.answered(name, incarnation)
        if self._expected.get((name, incarnation)):
            learner.begin()

    def _is_dead(self, name: str, incarnation: int) -> bool:
        return self._dead.get(name, 0) >= incarnation

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
        if self.controller.lost(self.time.now, name, incarnation) is None:
            return
        self.emit(LearnerLost(name, incarnation, cause, cause))
        self._on_death(name, incarnation, "killed" if cause == "died" else cause)

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
        if not self._is_dead(name, incarnation):
            self.controller.left(name, incarnation)
            self._on_death(name, incarnation, "drained")

    def _on_death(self, name: str, incarnation: int, reason: str) -> None:
        """Fence the incarnation at the syncer, and start what is due."""
        self._dead[name] = incarnation
        if self.syncer is not None:
            self._tell(self.syncer, self.syncer.call, events_effects.Fence(name, incarnation, reason))
        if self.finished_at is None:
            self._advance()

    # -------------------------------------------------------------- leaving and scaling

    def _drain(self, action: controller.AskToLeave, deadline_s: float) -> None:
        event = events_effects.DrainRequested(action.learner, action.incarnation, action.reason, deadline_s)
        self.drains[action.learner] = event
        if self.syncer is not None:
            done = partial(self._dismissed, action.learner, action.incarnation)
            self._tell(self.syncer, self.syncer.drain, event, done)

    def _dismissed(self, name: str, incarnation: int, told: bool) -> None:
        """A learner that was not told to leave has nothing to lose: end it at once."""
        if told or self._is_dead(name, incarnation):
            return
        learner = self.learners.get(name)
        if learner is not None and learner.incarnation == incarnation:
            learner.die()
        self.time.after(self._durations.end_s, self._left, name, incarnation)

    def want(self, name: str) -> None:
        """This learner is to be there."""
        if name not in self.controller.wanted:
            specs = self._context.specs
            if name not in self._first:
                there = sum(specs[other].pool == specs[name].pool for other in self.controller.wanted)
                self.emit(PoolScaled(specs[name].pool, there + 1, (name,), ()))
            self.controller.want(name)
            self._advance()

    def unwant(self, name: str) -> bool:
        """This learner is to leave for good. False: it is not wanted anyway."""
        if name not in self.controller.wanted:
            return False
        self._act(self.controller.unwant(name, "scaled down"))
        return True

    def preempt(self, name: str) -> bool:
        """Its host is to go: it leaves, and comes back."""
        actions = self.controller.drain(name, "its node is to go")
        self._act(actions)
        return bool(actions)

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
            living = [pair for pair in self.incarnations.items() if not self._is_dead(*pair)]
            syncer.call(events_effects.Living(tuple(self._announced(*pair) for pair in living)))
            for pair in living:
                self._heard(*pair)
        if self._stopping:
            syncer.call(events_effects.StopRequested(self._stopping))
        for event in self.drains.values():
            if not self._is_dead(event.learner, event.incarnation):
                self._drain(controller.AskToLeave(event.learner, event.incarnation, event.reason), event.deadline_s)
        for learner in self.learners.values():
            if learner.alive:
                self.time.reach(self._durations.reattach_s(), learner, learner.reattach, syncer)

    def _tell(self, syncer: SyncerProcess, what: Callable[..., None], *args: Any) -> None:
        self.time.reach(self._durations.tell_s(), syncer, what, *args)
