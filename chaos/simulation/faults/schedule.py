"""The fault schedule of a hostile run: one method for each kind of fault. `fault_counts` counts what each really did.

A fault with a duration heals by itself; `heal` ends all of them at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from random import Random
from typing import Any

from chaos.simulation.faults.protocol_faults import ProtocolFaults
from chaos.simulation.faults.triggered_faults import TRIGGERS, TriggeredFaults
from chaos.simulation.ports.context import HostileContext
from chaos.simulation.ports.network import NetworkLink
from chaos.simulation.ports.storage import Store
from chaos.simulation.profile import EVERYBODY, SHARDS, Fault, between, pick
from orchestrator.simulation.learner_process import LearnerProcess
from orchestrator.simulation.process import Host, Process
from orchestrator.simulation.supervisor import Supervisor
from orchestrator.simulation.syncer_process import ShardProcess
from outer.protocol.events_effects import Tick

POLL_S = 0.05

FLAPS = 4


TAIL_LOST = "tail_lost"  # the only fault that takes acknowledged facts away
DAMAGE = ("bit_flip", "fetch_damage", "overflow", "garbled")
PROTOCOL = ("echo", "linger", "suspend", "stop", "stop_committing", "crash_ending")


class FaultSchedule:
    """Strength is 0 to 1; durations are virtual seconds."""

    def __init__(
        self, context: HostileContext, rng: Random, hosts: Mapping[str, Host], store: Store, supervisor: Supervisor
    ) -> None:
        self.calm = False  # no more faults
        self._context, self._rng, self._hosts = context, rng, hosts
        self._store, self._supervisor = store, supervisor
        self._learners = context.options.learners
        self._frozen: list[Process] = []
        self.protocol = ProtocolFaults(context, rng, supervisor)
        self.triggered = TriggeredFaults(context, rng, supervisor, self._cut)
        for fault in context.options.faults:
            context.time.at(fault.at, self.strike, fault)

    def strike(self, fault: Fault) -> None:
        if self.calm or self._supervisor.finished_at is not None:
            return
        if self._context.trace is not None:
            self._context.trace(self._context.time.now, "fault", fault)
        striking(fault.kind)(self, fault)

    def heal(self) -> None:
        """End all faults, and begin no more."""
        self.calm = self.protocol.calm = self.triggered.calm = True
        self._context.faults.heal(self._supervisor.syncer)
        self._context.network.heal()
        self._store.heal()
        for host in self._hosts.values():
            host.slowdown = 1.0
        for learner in self._supervisor.learners.values():
            learner.faults.end()
        for process in self._frozen:
            self._thaw(process)
        if self._supervisor.finished_at is None:
            for pool in self._supervisor.controller.pools.sizes:
                self._supervisor.restore(pool)

    def _count(self, kind: str) -> None:
        self._context.fault_counts[kind] += 1

    def _later(self, seconds: float, happen: Callable[..., None], *args: object) -> None:
        self._context.time.after(seconds, happen, *args)

    def _targets(self, fault: Fault) -> list[LearnerProcess]:
        """The living learners that a fault targets."""
        learners = self._supervisor.learners
        names = sorted(learners) if fault.target == EVERYBODY else [fault.target]
        return [learners[name] for name in names if name in learners and learners[name].alive]

    # -------------------------------------------------------------- the network

    def _links(self, fault: Fault) -> list[NetworkLink]:
        network = self._context.network
        names = self._learners if fault.target == EVERYBODY else (fault.target,)
        ends = ("syncer", *SHARDS[: self._context.options.shards if self._context.options.shards > 1 else 0])
        links = [network.link(*pair) for end in ends for name in names for pair in ((name, end), (end, name))]
        if len(names) == 1:
            peers = [name for name in self._learners if name not in names]
            links += [network.link(*pair) for peer in peers for pair in ((names[0], peer), (peer, names[0]))]
        return links

    def _share(self, fault: Fault, name: str, value: float) -> None:
        for link in self._links(fault):
            setattr(link, name, value)
            link.update()
            self._later(fault.duration_s, self._unshare, link, name)

    def _unshare(self, link: NetworkLink, name: str) -> None:
        setattr(link, name, 0.0)
        self._context.network.mend(link)

    def _loss(self, fault: Fault) -> None:
        self._share(fault, "lost", 0.05 + 0.5 * fault.strength)

    def _duplication(self, fault: Fault) -> None:
        self._share(fault, "doubled", 0.1 + 0.6 * fault.strength)

    def _reordering(self, fault: Fault) -> None:
        self._share(fault, "delay_s", 0.05 + 1.5 * fault.strength * fault.strength)

    def _slow_link(self, fault: Fault) -> None:
        for link in self._links(fault):
            link.slow_kind = "slow_link"
        self._share(fault, "slow_s", 0.05 + 3.0 * fault.strength * fault.strength)

    def _slow_download(self, fault: Fault) -> None:
        """Messages to the learner are late, those that it sends are not."""
        names = self._learners if fault.target == EVERYBODY else (fault.target,)
        for link in (each for each in self._links(fault) if each.target in names):
            link.slow_kind, link.slow_s = "slow_download", 0.05 + 3.0 * fault.strength * fault.strength
            link.update()
            self._later(fault.duration_s, self._unshare, link, "slow_s")

    def _cut(self, fault: Fault, links: list[NetworkLink]) -> None:
        holding = fault.strength < 0.5
        for link in links:
            link.cuts.append(fault.kind)
            link.holding = holding
            link.update()
            self._later(fault.duration_s, self._uncut, link, fault.kind)

    def _uncut(self, link: NetworkLink, kind: str) -> None:
        if kind in link.cuts:
            link.cuts.remove(kind)
            self._context.network.mend(link)

    def _cut_one_way(self, fault: Fault) -> None:
        self._cut(fault, self._links(fault)[int(2 * self._rng.random()) :: 2])

    def _cut_two_way(self, fault: Fault) -> None:
        self._cut(fault, self._links(fault))

    def _flapping(self, fault: Fault) -> None:
        short = fault.duration_s / FLAPS
        for number in range(FLAPS):
            once = Fault(0.0, fault.kind, fault.target, short * between(self._rng, 0.2, 0.8), fault.strength)
            self._later(number * short, self._cut_again, once)

    def _cut_again(self, fault: Fault) -> None:
        if not self.calm:
            self._cut_two_way(fault)

    # -------------------------------------------------------------- hosts

    def _crash(self, fault: Fault) -> None:
        """At once, or after so many callbacks: between any two awaits."""
        for learner in self._targets(fault)[:1]:
            if fault.strength < 0.5:
                learner.dies_at = learner.turns + 1 + int(200 * fault.strength)
                self._count("crash")
            elif self._supervisor.crash(learner.name):
                self._count("crash")

    def _freeze(self, fault: Fault) -> None:
        for learner in self._targets(fault):
            self._freeze_process(learner, fault)

    def _freeze_process(self, process: LearnerProcess, fault: Fault) -> None:
        if process.running:
            if process.exited:
                self._count("linger")  # its loop has ended, its process stays
            process.freeze()
            self._frozen.append(process)
            self._later(fault.duration_s * (1.0 + 3.0 * fault.strength), self._thaw, process, fault.kind)

    def _thaw(self, process: Process, kind: str = "freeze") -> None:
        if process.thaw() and kind == "freeze":
            self._count(kind)

    def _slow(self, fault: Fault) -> None:
        for learner in self._targets(fault):
            learner.host.slowdown = 1.5 + 5.0 * fault.strength
            self._later(fault.duration_s, self._speed_up, learner.host)

    def _straggle(self, fault: Fault) -> None:
        self._disturb(fault, "straggle", fault.strength)

    def _link_down(self, fault: Fault) -> None:
        """As chaos does it in a real run: the learner's own process holds back what it says and hears."""
        self._disturb(fault, "link")

    def _disturb(self, fault: Fault, kind: str, delay_s: float = 0.0) -> None:
        for learner in self._targets(fault):
            self._count(fault.kind)
            call = learner.shell.disturb, kind, fault.duration_s, delay_s, f"{fault.at}", math.inf
            learner.deliver(partial(_spawn, learner, *call))

    def _speed_up(self, host: Host) -> None:
        host.slowdown = 1.0

    def _wall_skew(self, fault: Fault) -> None:
        for host in self._hosts_of(fault):
            host.wall_s += 600.0 * (fault.strength - 0.5)
            self._count(fault.kind)

    def _wall_jump(self, fault: Fault) -> None:
        for host in self._hosts_of(fault):
            host.wall_s += 20.0 * (fault.strength - 0.5)
            host.jumped = True

    def _clock_rate(self, fault: Fault) -> None:
        for host in self._hosts_of(fault):
            host.set_rate(self._context.time.now, 1.0 + 0.06 * (fault.strength - 0.5))
            self._count(fault.kind)

    def _clock_jump(self, fault: Fault) -> None:
        for host in self._hosts_of(fault):
            host.offset_s += 0.5 + 15.0 * fault.strength * fault.strength
            self._count(fault.kind)
        syncer = self._supervisor.syncer
        if syncer is not None:  # by its clock its timers are due
            syncer.deliver(lambda: syncer.shell._drive(Tick()))

    def _hosts_of(self, fault: Fault) -> list[Host]:
        return [
            self._hosts[name] for name in (self._learners if fault.target == EVERYBODY else ("syncer", fault.target))
        ]

    # -------------------------------------------------------------- storage and syncer

    def _storage_slow(self, fault: Fault) -> None:
        self._store.slow_s = 0.05 + 2.0 * fault.strength
        self._later(fault.duration_s, setattr, self._store, "slow_s", 0.0)

    def _storage_failing(self, fault: Fault) -> None:
        self._store.failing = 0.2 + 0.7 * fault.strength
        self._later(fault.duration_s, setattr, self._store, "failing", 0.0)

    def _storage_full(self, fault: Fault) -> None:
        self._store.full = True
        self._later(fault.duration_s, setattr, self._store, "full", False)

    def _storage_torn(self, fault: Fault) -> None:
        self._store.tearing = True
        self._syncer_dies_writing()

    def _storage_lost(self, fault: Fault) -> None:
        self._store.losing = True
        self._syncer_dies_writing()

    def _storage_stale(self, fault: Fault) -> None:
        self._store.stale = True
        self._syncer_crash(fault)

    def _tail_lost(self, fault: Fault) -> None:
        """The syncer's node is lost with the newest groups of the log, once learners were told that one is durable."""
        context, syncer = self._context, self._supervisor.syncer
        if context.time.now >= context.options.storm_s:
            return
        if syncer is None or not syncer.serves or not self._store.tail_known(context.faults.acknowledged):
            self._later(POLL_S, self._tail_lost, fault)
            return
        syncer.jobs.outlives = lambda kind: False  # its node is lost, with what was on its way
        syncer.crash()
        context.fault_counts[fault.kind] += bool(self._store.lose_tail(1 + int(3 * fault.strength)))

    def _syncer_dies_writing(self) -> None:
        """The syncer dies as soon as a record is on its way to the store."""
        syncer = self._supervisor.syncer
        if syncer is not None:
            self._context.faults.dies_writing.add(syncer.epoch)

    def _syncer_crash(self, fault: Fault) -> None:
        syncer = self._supervisor.syncer
        if syncer is not None and syncer.alive:
            after = 1 + int(12 * fault.strength)
            if self._rng.random() < 0.5:
                syncer.crash_at = syncer.performed + after
            else:
                syncer.dies_at = syncer.turns + 3 * after

    def _zombie(self, fault: Fault) -> None:
        """Freeze the syncer until another takes its place, then thaw it."""
        syncer = self._supervisor.syncer
        if syncer is not None and syncer.running:
            syncer.freeze()
            self._frozen.append(syncer)
            self._later(7.0 + fault.duration_s, self._thaw, syncer, fault.kind)

    def _one_shard(self, fault: Fault) -> ShardProcess | None:
        shards = [] if self._supervisor.syncer is None else self._supervisor.syncer.shards
        return pick(self._rng, shards) if shards else None

    def _shard_crash(self, fault: Fault) -> None:
        if (shard := self._one_shard(fault)) is not None:
            self._count(fault.kind)
            shard.dies_at = shard.turns + 1 + int(20 * fault.strength)

    def _shard_freeze(self, fault: Fault) -> None:
        if (shard := self._one_shard(fault)) is not None and shard.running:
            self._count(fault.kind)
            shard.freeze()
            self._frozen.append(shard)
            self._later(fault.duration_s, self._thaw, shard, fault.kind)

    def _shard_cut(self, fault: Fault) -> None:
        if (shard := self._one_shard(fault)) is not None:
            name = shard.host.name
            ends = ("syncer", *self._learners)
            self._cut(fault, [self._context.network.link(*pair) for end in ends for pair in ((end, name), (name, end))])

    # -------------------------------------------------------------- membership

    def _scale_out(self, fault: Fault) -> None:
        for name in self._context.options.newcomers[: 1 + int(2 * fault.strength)]:
            if name not in self._supervisor.controller.wanted:
                self._supervisor.resize(self._context.options.place(name).pool, 1)
                self._count(fault.kind)

    def _drain(self, fault: Fault) -> None:
        name = pick(self._rng, self._learners) if fault.target == EVERYBODY else fault.target
        if fault.strength < 0.5:
            if self._supervisor.preempt(name):
                self._count(fault.kind)
        elif self._supervisor.resize(pool := self._context.options.place(name).pool, -1):
            self._count(fault.kind)
            self._later(fault.duration_s, self._supervisor.restore, pool)

    def _leave(self, fault: Fault) -> None:
        for learner in self._targets(fault)[:1]:
            if learner.running:
                self._count(fault.kind)
                learner.deliver(learner.leave)

    def _flap(self, fault: Fault) -> None:
        """A learner dies again and again."""
        for number in range(FLAPS):
            self._later(number * (1.0 + fault.duration_s), self._strike_one, fault)

    def _strike_one(self, fault: Fault) -> None:
        for learner in self._targets(fault)[:1]:
            if not self.calm and self._supervisor.crash(learner.name):
                self._count(fault.kind)

    def _rejoin_storm(self, fault: Fault) -> None:
        """All but one die at once, and come back at once."""
        for name in self._learners[1:]:
            if self._supervisor.crash(name):
                self._count(fault.kind)

    def _all_die(self, fault: Fault) -> None:
        for name in sorted(self._supervisor.learners):
            if self._supervisor.crash(name):
                self._count(fault.kind)

    def _two_joiners(self, fault: Fault) -> None:
        """Two learners join while few can give their state."""
        if len(self.triggered.someone_rejoins(2)) == 2:
            self._count(fault.kind)

    # -------------------------------------------------------------- payloads

    def _damage(self, fault: Fault) -> None:
        self._context.faults.flips[fault.kind] = (
            self._context.time.now + 2.0 * fault.duration_s,
            0.2 + 0.8 * fault.strength,
        )

    def _state_damage(self, fault: Fault) -> None:
        self._context.faults.flips[fault.kind] = (self._context.time.now + 60.0, 1.0)
        self.triggered.someone_rejoins(1)

    def _non_finite(self, fault: Fault) -> None:
        for learner in self._targets(fault)[:1]:
            learner.deliver(partial(_spawn, learner, learner.shell.disturb, "non_finite", 0.0, 0.0, "", math.inf))

    def _bad_sample(self, fault: Fault) -> None:
        self._context.faults.to_spoil += 1

    def _wrong_manifest(self, fault: Fault) -> None:
        """Kill a learner, so that its next incarnation comes with another recipe."""
        for learner in self._targets(fault)[:1]:
            self._context.faults.misled.add(learner.name)
            self._supervisor.crash(learner.name)


def _spawn(process: Process, method: Callable[..., Coroutine[Any, Any, object]], *arguments: object) -> None:
    process.spawn(method(*arguments))


def striking(kind: str) -> Callable[[FaultSchedule, Fault], None]:
    """What a fault of this kind does: the schedule's method _KIND, unless its group has one for all."""
    if kind in TRIGGERS:
        return lambda schedule, fault: schedule.triggered.lay(fault)
    if kind in PROTOCOL:
        return lambda schedule, fault: getattr(schedule.protocol, kind)(fault)
    method: Callable[[FaultSchedule, Fault], None] = getattr(FaultSchedule, "_damage" if kind in DAMAGE else f"_{kind}")
    return method
