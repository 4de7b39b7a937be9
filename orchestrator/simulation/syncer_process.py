"""One epoch of the syncer as a process: the production machine, its timer, merges, journal and messages.

It can die between any two of its effects.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from orchestrator.simulation.calls import Call, ask
from orchestrator.simulation.context import Key, SimContext, SimGroup
from orchestrator.simulation.fact_log import SimFactLog
from orchestrator.simulation.learner_process import LearnerProcess
from orchestrator.simulation.process import Host, Process
from outer.protocol import events_effects
from outer.protocol.messages import Attach, Contribution, Donor, Drain, ReadRequest, Report, Stop, Welcome
from outer.protocol.recorder import Numbered

UNDELIVERED_MAX = 64  # messages on their way to one learner; more are dropped, the machine sends again
ACK_S = 1.0  # between two acknowledgements to one learner; a real one is told with every answer
WAKE_S_MIN = 0.001  # the shortest time between two timers


class SyncerProcess(Process):
    """`values` are the fragments' newest versions. `died` is called when it ends without having been told to."""

    def __init__(
        self,
        context: SimContext,
        host: Host,
        epoch: int,
        machine: Any,
        values: list[Any],
        died: Callable[[SyncerProcess], None],
    ) -> None:
        super().__init__(context.time, host, ("syncer", epoch))
        self.epoch, self.machine = epoch, machine
        self.peers: dict[str, LearnerProcess] = {}
        self.values = values
        self.deposed = False  # a newer epoch is there: it drives its machine no more
        self.performed = 0  # effects
        self.crash_at = math.inf  # it dies after so many effects
        self.writer = context.make_journal(self, self.on_durable, self._refused)
        self.log = SimFactLog(context, self)
        self._context, self._network, self._died, self._trace = context, context.network, died, context.trace
        self._told: dict[Key, float] = {}  # by learner: when its facts were acknowledged last
        self._held: list[tuple[Key, int, Call]] = []  # answered once facts up to this number are durable
        self._wake_at = math.inf  # virtual seconds
        self._merged_at = 0.0  # when the merging thread is free
        self._effects: dict[type[Any], Callable[[Any], None]] = {
            events_effects.Emit: self._emit,
            events_effects.Send: self._send,
            events_effects.Merge: self._merge,
            events_effects.Append: self._append,
            events_effects.Publish: self._publish,
            events_effects.Cut: self._cut,
        }

    def start(self) -> None:
        self._perform(self.machine.start())
        self._set_timer()

    def die(self) -> None:
        super().die()
        self.writer.crash()

    def crash(self) -> None:
        """Die in the midst of what it does."""
        if self.alive:
            self.die()
            self._died(self)

    # -------------------------------------------------------------- called by the supervisor

    def expect(self, event: events_effects.Expect, done: Callable[[], None]) -> None:
        peer = self.peers.get(event.learner)
        if peer is not None and peer.incarnation < event.incarnation:
            del self.peers[event.learner]
        self.drive(event)
        done()

    def call(self, event: events_effects.Event) -> None:
        """Any other event from the supervisor."""
        self._context.observer.told(self, event, self.drive(event))

    def drain(self, event: events_effects.DrainRequested, done: Callable[[bool], None]) -> None:
        """`done` gets whether the learner was told to leave. If not, it has nothing to lose."""
        effects = self.drive(event)
        done(any(isinstance(effect, events_effects.Send) and isinstance(effect.message, Drain) for effect in effects))

    # -------------------------------------------------------------- called by learners

    def attach(self, call: Call) -> None:
        message: Attach
        learner, message, *facts = call.message
        self.note(learner, *facts)
        before = self.peers.get(message.learner)
        self.peers[message.learner] = learner
        effects = self.drive(message)
        for effect in effects:
            if isinstance(effect, events_effects.Send) and isinstance(effect.message, Welcome):
                self._context.observer.welcomed(message)
                call.reply(0.0, effect.message)
                return
        if before is None:
            self.peers.pop(message.learner, None)
        else:
            self.peers[message.learner] = before
        refusals = [effect.fact for effect in effects if isinstance(effect, events_effects.Emit)]
        if self.alive and not self.deposed:
            call.reply(0.0, "; ".join(f"{fact.reason}" for fact in refusals if hasattr(fact, "reason")))

    def seek(self, call: Call) -> None:
        """A joiner asks for a donor."""
        for effect in self.drive(call.message):
            if isinstance(effect, events_effects.Send) and isinstance(effect.message, Donor):
                named, peer = effect.message, self.peers.get(effect.message.donor)
                if peer is not None and peer.incarnation == named.donor_incarnation:
                    call.reply(0.0, (named, peer))
                    return
        call.reply(0.0, None)

    def report(self, learner: LearnerProcess, message: Report, oldest: int, facts: list[Numbered]) -> None:
        learner.reports -= 1
        if self._context.recording:
            self.note(learner, oldest, facts)
            if self.time.now - self._told.get(learner.key, -ACK_S) >= ACK_S:
                self._acknowledge(learner, oldest)
        then = self._context.observer.reporting(self, learner, message)
        self.drive(message)
        if then is not None:
            then()

    def record(self, call: Call) -> None:
        """A joiner brings its donor's facts: they have to be durable before the state is used."""
        learner, oldest, facts = call.message
        self.note(learner, oldest, facts)
        if not facts or self.log.recorder.durable(*learner.key) >= facts[-1][0]:
            call.reply(0.0, None)
        else:
            self._held.append((learner.key, facts[-1][0], call))

    def note(self, learner: LearnerProcess, oldest: int, facts: list[Numbered]) -> None:
        """A learner's facts have come."""
        if not self.deposed:
            self.log.take(learner.key, oldest, facts)

    def _acknowledge(self, learner: LearnerProcess, oldest: int) -> None:
        """Answer a report with the number up to which facts are durable, if that is news."""
        durable = self.log.recorder.durable(*learner.key)
        if durable >= oldest:
            self._told[learner.key] = self.time.now
            self._network.carry(learner.down, 0.0, learner, learner.acknowledged, durable)

    def fetch(self, call: Call) -> None:
        fragment, version = call.message
        newest = self.values[fragment]
        call.reply(self._network.down_size(fragment), None if newest.number < version else newest)

    # -------------------------------------------------------------- the machine and its effects

    def drive(self, event: Any) -> list[Any]:
        """Hand an event to the machine, and perform its effects."""
        if self.deposed or not self.alive:
            return []
        if self._trace is not None:
            self._trace(self.time.now, self.label, event)
        self.handled += 1
        host = self.host
        effects: list[Any] = self.machine.handle(host.offset_s + host.rate * self.time.now, event)
        self._perform(effects)
        if self.alive:
            self._set_timer()
        return effects

    def _perform(self, effects: list[Any]) -> None:
        perform = self._effects
        for effect in effects:
            perform[type(effect)](effect)
            self.performed += 1
            if self.performed >= self.crash_at:
                self._context.fault_counts["syncer_crash"] += 1
                self.crash()
                return

    def _set_timer(self) -> None:
        """An earlier timer stays: the machine is asked again when it fires."""
        at = self.machine.wake_at
        if at is None:
            return
        host, time = self.host, self.time
        wake_at = (at - host.offset_s) / host.rate
        if wake_at < self._wake_at:
            soonest = time.now + WAKE_S_MIN
            wake_at = wake_at if wake_at > soonest else soonest
            if wake_at < self._wake_at:
                self._wake_at = wake_at
                time.reach(wake_at - time.now, self, self._wake, wake_at)

    def _wake(self, at: float) -> None:
        if at == self._wake_at:  # else an earlier timer took its place
            self._wake_at = math.inf
            self.drive(events_effects.Tick())

    def _emit(self, effect: events_effects.Emit) -> None:
        self.log.say(effect.fact)
        self._emitted(effect.fact)

    def _emitted(self, fact: Any) -> None:
        self._context.observer.emitted(self, fact)
        self._context.faults.emitted(self, fact)
        if self._trace is not None:
            self._trace(self.time.now, self.label, fact)

    def _merge(self, effect: events_effects.Merge) -> None:
        """One merge after the other, beside the loop."""
        begins_at = max(self.time.now, self._merged_at)
        self._merged_at = begins_at + self._context.durations.merge_s(effect.fragment, len(effect.payloads))
        self.time.reach(self._merged_at - self.time.now, self, self._merged, effect)

    def _merged(self, effect: events_effects.Merge) -> None:
        self.drive(self._context.model.merged(self, effect))

    def _append(self, effect: events_effects.Append) -> None:
        self.log.append(effect)
        self._context.faults.appended(self, effect)

    def on_durable(self, group: SimGroup) -> None:
        """Called by the journal: a group is durable."""
        self.log.durable(group)
        held, self._held = self._held, []
        for key, number, call in held:
            if self.log.recorder.durable(*key) >= number:
                call.reply(0.0, None)
            else:
                self._held.append((key, number, call))
        if group.records:
            for record in group.records:
                self._emitted(record.record)
            self.drive(events_effects.Durable(group.records[-1].sequence))

    def _refused(self) -> None:
        """Another epoch is there."""
        self.deposed = True
        if self._trace is not None:
            self._trace(self.time.now, self.label, "is deposed")

    def finish(self) -> None:
        """The run is over: nothing of its log is lost."""
        if self.alive and not self.deposed:
            self.log.finish()

    def _publish(self, effect: events_effects.Publish) -> None:
        self.values[effect.fragment] = self._context.model.published(self, effect)

    def _cut(self, effect: events_effects.Cut) -> None:
        """Checkpoints are not simulated."""

    # -------------------------------------------------------------- to learners

    def _send(self, effect: events_effects.Send) -> None:
        message: Any = effect.message
        kind = type(message)
        learner = self.peers.get(effect.learner)
        if kind is Welcome or kind is Donor or learner is None or learner.incarnation != effect.incarnation:
            return  # `attach` and `seek` return those two; or nobody is there
        self._context.observer.sent(self, message)
        if kind is ReadRequest:
            links = learner.down, learner.up
            answered = partial(self._answered, learner, message.syncer_step, self.time.now)
            missed = partial(self._unread, learner, message.syncer_step)
            ask(self._network, self, learner, links, learner.read, message, message.deadline_s, answered, missed, True)
        elif kind is Stop or learner.undelivered < UNDELIVERED_MAX:
            learner.undelivered += self._network.carry(learner.down, 0.0, learner, self._deliver, learner, message)

    @staticmethod
    def _deliver(learner: LearnerProcess, message: Any) -> None:
        learner.undelivered -= 1
        learner.on_message(message)

    def _unread(self, learner: LearnerProcess, syncer_step: int, reason: str) -> None:
        reason = "timeout" if reason == "GetTimeoutError" else reason
        self.drive(events_effects.ReadMissed(learner.name, learner.incarnation, syncer_step, reason))

    def _answered(
        self,
        learner: LearnerProcess,
        syncer_step: int,
        asked_at: float,
        answer: tuple[Contribution, int, list[Numbered]] | None,
    ) -> None:
        if answer is None:
            self._unread(learner, syncer_step, "no_boundary")
            return
        contribution, oldest, facts = answer
        contribution = replace(contribution, took_s=max(0.0, self.time.now - asked_at - contribution.held_s))
        self.note(learner, oldest, facts)
        self._context.observer.answered(self, contribution, self.drive(contribution))
