"""One epoch of the syncer as a process: the production machine, and a shell that does what the real one does.

It can die between any two of its effects. Knows the learners' processes as peers, and the journal by its writer.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from chaos.simulation import conduct
from chaos.simulation.contents import Key, Range, Version
from chaos.simulation.hosts import Host, Process
from chaos.simulation.network import Call, ask
from chaos.simulation.setting import Setting
from chaos.simulation.storage import Store, Write, Writer
from chaos.simulation.trace import told
from chaos.simulation.truth import Proposal
from outer.protocol import events_effects
from outer.protocol.facts import Finished, StepOpened, StepPassed, StepReopened
from outer.protocol.messages import Attach, Contribution, Donor, Drain, Grant, ReadRequest, Report, Stop, Welcome

if TYPE_CHECKING:
    from chaos.simulation.unit import Unit

UNDELIVERED_MAX = 64  # messages on their way to one learner; more are dropped, the machine sends again
STEPS = frozenset({StepOpened, StepReopened, StepPassed})
WAKE_S_MIN = 0.001  # the shell never looks again sooner


class Heard(NamedTuple):
    """What reports have told of one incarnation."""

    step: int
    lease_until: float  # as of the last that arrived, by this syncer's clock


NOTHING = Heard(0, math.inf)


class Server(Process):
    """`died` is called when it ends without having been told to."""

    def __init__(
        self,
        setting: Setting,
        host: Host,
        epoch: int,
        machine: Any,
        store: Store,
        values: list[Version],
        died: Callable[[Server], None],
    ) -> None:
        super().__init__(setting.time, host)
        self.epoch, self.machine = epoch, machine
        self.peers: dict[str, Unit] = {}
        self.values = values
        self.shown: defaultdict[str, float] = defaultdict(float)  # the counts that status pages were given last
        self.deposed = False  # a newer epoch is there: it drives its machine no more
        self.performed = 0  # effects
        self.crash_at = math.inf  # after so many of them it dies
        self.crash_writing = False  # it dies as soon as something is on its way to the store
        self.dies_ending = 0  # it dies so many effects after it has said that the run is over
        self.committing: Callable[[], None] | None = None  # happens once, while a commit is being written
        self.facts = setting.facts.setdefault(("syncer", epoch), [])
        self.writer = Writer(store, self, self._durable, self._refused)
        self._setting, self._died, self._trace = setting, died, setting.trace
        # In strict overlap it is the number of a learner's step that makes it count, not that it is a further one.
        self._quorum = 0 if setting.options.sync.overlap == "strict" else setting.options.quorum
        self.opened: dict[int, dict[Key, int]] = {}  # by syncer step: what each had reported by then
        self.heard: dict[Key, Heard] = {}
        self._flushed = 0  # facts that a crash cannot take back
        self._wake_at = math.inf  # virtual seconds
        self._merged_at = 0.0  # when the merging thread is free

    def start(self) -> None:
        self._perform(self.machine.start())
        self._set_timer()

    def die(self) -> None:
        super().die()
        self.writer.crash()

    def crash(self) -> None:
        """In the midst of whatever it does: what it said in this breath may not be in the log."""
        if self.alive:
            if self._setting.chance.random() < 0.5:
                del self.facts[self._flushed :]
            self.die()
            self._died(self)

    # -------------------------------------------------------------- called by the supervisor

    def expect(self, event: events_effects.Expect, heard: Callable[[], None]) -> None:
        peer = self.peers.get(event.learner)
        if peer is not None and peer.incarnation < event.incarnation:
            del self.peers[event.learner]
        self.drive(event)
        heard()

    def tell(self, event: events_effects.Event) -> None:
        conduct.fences(self._setting.truth, self, event, self.drive(event))

    def drain(self, event: events_effects.DrainRequested, told: Callable[[bool], None]) -> None:
        """Whether it was told to leave; else it has nothing to lose."""
        effects = self.drive(event)
        told(any(isinstance(effect, events_effects.Send) and isinstance(effect.message, Drain) for effect in effects))

    # -------------------------------------------------------------- called by learners

    def attach(self, call: Call) -> None:
        message: Attach
        unit, message, upto = call.message
        self.note(unit, upto)
        before = self.peers.get(message.learner)
        self.peers[message.learner] = unit
        effects = self.drive(message)
        for effect in effects:
            if isinstance(effect, events_effects.Send) and isinstance(effect.message, Welcome):
                conduct.lets_in(self._setting.truth, message)
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
        for effect in self.drive(call.message):
            if isinstance(effect, events_effects.Send) and isinstance(effect.message, Donor):
                named, peer = effect.message, self.peers.get(effect.message.donor)
                if peer is not None and peer.incarnation == named.donor_incarnation:
                    call.reply(0.0, (named, peer))
                    return
        call.reply(0.0, None)

    def report(self, unit: Unit, message: Report, upto: int) -> None:
        unit.reports -= 1
        recorded = self._setting.recorded
        if upto > recorded.get(unit.key, 0):
            recorded[unit.key] = upto
        if len(message.counters) == self._setting.options.fragments:  # any other is refused
            before = self.heard.get(unit.key, NOTHING)
            self.heard[unit.key] = Heard(max(before.step, message.step), self.clock() + message.lease_s)
        if self.peers.get(message.learner) is unit:
            self.drive(message)
            return
        life = conduct.life(self, message.learner)
        self.drive(message)
        conduct.hears(self._setting.truth, self, message, life)

    def record(self, call: Call) -> None:
        """What a joiner takes along from its donor."""
        self.note(*call.message)
        call.reply(0.0, None)

    def note(self, unit: Unit, upto: int) -> None:
        """What a learner has said up to here is in the log."""
        recorded = self._setting.recorded
        if upto > recorded.get(unit.key, 0):
            recorded[unit.key] = upto

    def fetch(self, call: Call) -> None:
        fragment, version = call.message
        newest = self.values[fragment]
        call.reply(1.0, None if newest.number < version else newest)

    # -------------------------------------------------------------- the machine and its effects

    def drive(self, event: Any) -> list[Any]:
        if self.deposed or not self.alive:
            return []
        if self._trace is not None:
            self._trace.line(self.time.now, "syncer", self.epoch, "hears", told(event))
        self.handled += 1
        host = self.host
        effects: list[Any] = self.machine.handle(host.offset_s + host.rate * self.time.now, event)
        self._perform(effects)
        if self.alive:
            self._set_timer()
        return effects

    def _perform(self, effects: list[Any]) -> None:
        for effect in effects:
            PERFORM[type(effect)](self, effect)
            self.performed += 1
            if self.performed >= self.crash_at:
                self._setting.fired["syncer_crash"] += 1
                self.crash()
                return
        self._flushed = len(self.facts)

    def _set_timer(self) -> None:
        """An earlier timer stays: it looks again when it comes."""
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
        if at == self._wake_at:  # else an earlier one took its place
            self._wake_at = math.inf
            self.drive(events_effects.Tick())

    def _say(self, effect: events_effects.Emit) -> None:
        fact: Any = effect.fact
        self.facts.append((self.time.now + self.host.wall_s, fact))
        if type(fact) in STEPS:
            self._note_step(fact)
        if self.dies_ending and isinstance(fact, Finished):
            self.crash_at = self.performed + self.dies_ending
            self._setting.fired["crash_ending"] += 1
        if self._trace is not None:
            self._trace.line(self.time.now, "syncer", self.epoch, "says", told(effect.fact))

    def _note_step(self, fact: StepOpened | StepReopened | StepPassed) -> None:
        if isinstance(fact, StepPassed):
            conduct.quorum(self._setting.truth, self, fact.syncer_step, self._quorum)
        else:
            self.opened[fact.syncer_step] = {
                unit.key: self.heard.get(unit.key, NOTHING).step for unit in self.peers.values()
            }

    def _merge(self, effect: events_effects.Merge) -> None:
        """In one thread, beside the loop."""
        begins_at = max(self.time.now, self._merged_at)
        self._merged_at = begins_at + self._setting.options.merge_s
        self.time.reach(self._merged_at - self.time.now, self, self._merged, effect)

    def _merged(self, effect: events_effects.Merge) -> None:
        base = self.values[effect.fragment]
        ranges: tuple[Range, ...] = ()
        for content in effect.payloads:
            ranges += content.beyond(base)
        version = Version(effect.fragment, effect.syncer_step, base, ranges)
        proposal = Proposal(version, effect.payloads, effect.weights)
        digest = f"{effect.fragment}@{effect.syncer_step}/{self.epoch}"
        overflow = bool(self._setting.flips) and self._setting.damaged("overflow")
        self.drive(
            events_effects.Merged(effect.syncer_step, proposal, digest, math.inf if overflow else 1.0, not overflow)
        )

    def _append(self, effect: events_effects.Append) -> None:
        self.writer.put(Write(self.epoch, effect.sequence, effect))
        if self.crash_writing:
            self.crash_writing = False
            self.crash_at = self.performed + 1
        if self.committing is not None and effect.proposal is not None:
            self.time.reach(0.0, self, self.committing)
            self.committing = None

    def _durable(self, write: Write) -> None:
        self.drive(events_effects.Durable(write.sequence))

    def _refused(self, write: Write) -> None:
        """Another epoch is there."""
        self.deposed = True
        if self._trace is not None:
            self._trace.line(self.time.now, "syncer", self.epoch, "deposed", f"append {write.sequence} is refused")

    def _publish(self, effect: events_effects.Publish) -> None:
        version = effect.proposal.version
        self._setting.truth.published(self.epoch, version)
        self.values[effect.fragment] = version

    # -------------------------------------------------------------- to learners

    def _send(self, effect: events_effects.Send) -> None:
        message: Any = effect.message
        kind = type(message)
        unit = self.peers.get(effect.learner)
        if kind is Welcome or kind is Donor or unit is None or unit.incarnation != effect.incarnation:
            return  # attach and seek return them; or there is nobody
        if kind is ReadRequest:
            conduct.quorum(self._setting.truth, self, message.syncer_step, self._quorum)
            answered = partial(self._answered, unit, message.syncer_step)
            missed = partial(self._unread, unit, message.syncer_step)
            links = unit.down, unit.up
            network = self._setting.network
            ask(network, self, unit, links, unit.answers.read, message, message.deadline_s, answered, missed, True)
            return
        if kind is Grant:
            self._setting.truth.granted(self.epoch, message.span)
        if kind is Stop or unit.undelivered < UNDELIVERED_MAX:
            unit.undelivered += self._setting.network.carry(unit.down, 0.0, unit, self._deliver, unit, message)

    @staticmethod
    def _deliver(unit: Unit, message: Any) -> None:
        unit.undelivered -= 1
        unit.hear(message)

    def _unread(self, unit: Unit, syncer_step: int, reason: str) -> None:
        reason = "timeout" if reason == "GetTimeoutError" else reason
        self.drive(events_effects.ReadMissed(unit.name, unit.incarnation, syncer_step, reason))

    def _answered(self, unit: Unit, syncer_step: int, answer: tuple[Contribution, int] | None) -> None:
        if answer is None:
            self._unread(unit, syncer_step, "no_boundary")
            return
        contribution, upto = answer
        self.note(unit, upto)
        effects = self.drive(contribution)
        if garbled := self._setting.truth.garbled.get(id(contribution.payload)):
            reasons = conduct.SOONER | {garbled[1]}
            conduct.refuses(self._setting.truth, self, contribution, effects, reasons)


PERFORM: dict[type[Any], Callable[[Server, Any], None]] = {
    events_effects.Emit: Server._say,
    events_effects.Send: Server._send,
    events_effects.Merge: Server._merge,
    events_effects.Append: Server._append,
    events_effects.Publish: Server._publish,
}
