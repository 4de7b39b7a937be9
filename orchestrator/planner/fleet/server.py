"""One epoch of the syncer: the production machine, and a shell in which merging and journaling are time that passes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from orchestrator.planner.fleet.world import Merged, World
from outer.protocol import events_effects
from outer.protocol.facts import Committed
from outer.protocol.messages import Attach, Contribution, Donor, ReadRequest, Report, SeekDonor, Welcome
from outer.protocol.recovery import Entry, Recovered
from outer.protocol.syncer import Syncer

if TYPE_CHECKING:
    from orchestrator.planner.fleet.unit import Unit

WAKE_S_MIN = 0.001  # the shell never looks again sooner


class Server:
    """`entries` is the journal: it outlives this epoch."""

    def __init__(self, world: World, epoch: int, recovered: Recovered | None, entries: list[Entry]) -> None:
        fleet = world.fleet
        self.epoch, self.region = epoch, fleet.syncer_region
        self.shards = fleet.shards or (self.region,)
        self.alive = self.running = True
        self.machine = Syncer(
            epoch=epoch,
            config=fleet.sync,
            fragments=fleet.fragments,
            learners={member.name: member.batch_size for member in fleet.members if not member.since_s},
            quorum=fleet.quorum,
            span_steps=fleet.span_steps,
            budget=fleet.budget,
            manifest={},
            recovered=recovered,
            ahead_s=fleet.ahead_s,
        )
        self._world, self._time, self._entries = world, world.time, entries
        self._facts = world.facts.setdefault(("syncer", epoch), [])
        self._peers: dict[str, Unit] = {}
        self._reads: set[tuple[str, int, int, int]] = set()  # learner, incarnation, syncer step, attempt
        self._versions = list(self.machine.versions)
        self._wake_at = math.inf
        self._merging_until = self._writing_until = 0.0

    # -------------------------------------------------------------- the process

    def start(self) -> None:
        self._perform(self.machine.start())
        self._set_timer()

    def deliver(self, happen: Callable[..., Any], *args: Any) -> None:
        """Whatever reaches a dead one is lost."""

    def die(self) -> None:
        self.alive = self.running = False

    def drive(self, event: Any) -> list[Any]:
        if not self.alive:
            return []
        self._world.events += 1
        effects: list[Any] = self.machine.handle(self._time.now, event)
        self._perform(effects)
        self._set_timer()
        return effects

    def _perform(self, effects: list[Any]) -> None:
        for effect in effects:
            PERFORM[type(effect)](self, effect)

    def _set_timer(self) -> None:
        """An earlier timer stays: it looks again when it comes."""
        at = self.machine.wake_at
        if at is not None and at < self._wake_at:
            at = max(at, self._time.now + WAKE_S_MIN)
            if at < self._wake_at:
                self._wake_at = at
                self._time.reach(at - self._time.now, self, self._wake, at)

    def _wake(self, at: float) -> None:
        if at == self._wake_at:  # else an earlier one took its place
            self._wake_at = math.inf
            self.drive(events_effects.Tick())

    # -------------------------------------------------------------- called by learners

    def attach(self, unit: Unit, message: Attach) -> None:
        self._peers[unit.name] = unit
        for effect in self.drive(message):
            if isinstance(effect, events_effects.Send) and isinstance(effect.message, Welcome):
                self._time.reach(self._latency_s(unit), unit, unit.hear, effect.message)

    def seek(self, unit: Unit, message: SeekDonor, deadline: float) -> None:
        for effect in self.drive(message):
            if isinstance(effect, events_effects.Send) and isinstance(effect.message, Donor):
                self._time.reach(self._latency_s(unit), unit, unit.named, effect.message, deadline)
                return
        self._time.reach(self._latency_s(unit), unit, unit.missed, "", 0, "none")

    def report(self, unit: Unit, message: Report, upto: int) -> None:
        self.note(unit, upto)
        self.drive(message)

    def note(self, unit: Unit, upto: int) -> None:
        """What a learner has said up to here is in the log."""
        told = self._world.told
        told[unit.key] = max(upto, told.get(unit.key, 0))

    def fetch(self, unit: Unit, fragment: int, asked_at: float) -> None:
        unit.fetched(fragment, self._versions[fragment], asked_at)

    def answered(self, unit: Unit, contribution: Contribution) -> None:
        """A fragment is there, in time or not."""
        key = (unit.name, unit.incarnation, contribution.syncer_step, contribution.attempt)
        if key in self._reads:
            self._reads.remove(key)
            self.note(unit, len(unit.facts))
            self.drive(contribution)

    # -------------------------------------------------------------- effects

    def _latency_s(self, unit: Unit) -> float:
        late_s = self._world.network.latency_s(self.region, unit.member.region)
        return late_s + unit.held_up_s

    def _say(self, effect: events_effects.Emit) -> None:
        fact = effect.fact
        if isinstance(fact, Committed) and fact.epoch == self.epoch:  # else an earlier one has said so
            weighty = tuple(one.learner for one in fact.participants if one.weight > 0.0)
            self._world.merges.append(Merged(self._time.now, weighty, fact.live, fact.tokens_committed))
        if self._world.fleet.recorded:
            self._facts.append((self._time.now, fact))

    def _send(self, effect: events_effects.Send) -> None:
        message, unit = effect.message, self._peers.get(effect.learner)
        if isinstance(message, Welcome | Donor) or unit is None or unit.incarnation != effect.incarnation:
            return  # attach and seek return them; or there is nobody
        if isinstance(message, ReadRequest):
            key = (effect.learner, effect.incarnation, message.syncer_step, message.attempt)
            self._reads.add(key)
            self._time.reach(message.deadline_s, self, self._miss, key)
        self._time.reach(self._latency_s(unit), unit, unit.hear, message)

    def _miss(self, key: tuple[str, int, int, int]) -> None:
        if key in self._reads:
            self._reads.remove(key)
            self.drive(events_effects.ReadMissed(*key[:3], "timeout"))

    def _merge(self, effect: events_effects.Merge) -> None:
        """One after the other."""
        elements = self._world.fleet.fragments[effect.fragment].size // len(self.shards)
        takes_s = self._world.fleet.timing.merge_s(elements, len(effect.payloads))
        self._merging_until = max(self._time.now, self._merging_until) + takes_s
        done = events_effects.Merged(effect.syncer_step, effect.syncer_step, "", 1.0, True)
        self._time.reach(self._merging_until - self._time.now, self, self.drive, done)

    def _append(self, effect: events_effects.Append) -> None:
        """Commits take time, in order; other records ride along with them."""
        record, takes_s = effect.record, 0.0
        if isinstance(record, Committed):
            elements = self._world.fleet.fragments[record.fragment].size // len(self.shards)
            takes_s = self._world.fleet.timing.append_s(elements)
        self._writing_until = max(self._time.now, self._writing_until) + takes_s
        entry = Entry(self.epoch, effect.sequence, effect.logged, record)
        self._time.reach(self._writing_until - self._time.now, self, self._durable, entry)

    def _durable(self, entry: Entry) -> None:
        if self._world.keeps_journal:
            self._entries.append(entry)
        self.drive(events_effects.Durable(entry.sequence))

    def _publish(self, effect: events_effects.Publish) -> None:
        self._versions[effect.fragment] = effect.version

    def _ignore(self, effect: Any) -> None:
        """No snapshot is ever taken."""


PERFORM: dict[type[Any], Callable[[Server, Any], None]] = {
    events_effects.Emit: Server._say,
    events_effects.Send: Server._send,
    events_effects.Merge: Server._merge,
    events_effects.Append: Server._append,
    events_effects.Publish: Server._publish,
    events_effects.Cut: Server._ignore,
}
