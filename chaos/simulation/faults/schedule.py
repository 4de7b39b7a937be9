"""The fault schedule of a hostile run: one method for each kind of fault. `fault_counts` counts what each really did.

A fault with a duration heals by itself; `heal` ends all of them at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from chaos.simulation.faults.protocol_faults import ProtocolFaults
from chaos.simulation.faults.triggered_faults import TRIGGERS, TriggeredFaults
from chaos.simulation.ports.context import HostileContext
from chaos.simulation.ports.network import NetworkLink
from chaos.simulation.ports.storage import Store
from chaos.simulation.profile import EVERYBODY, KINDS, SHARDS, Fault, between, pick
from orchestrator.lifecycle.ports import ORCHESTRATOR
from orchestrator.simulation.learner_process import LearnerProcess
from orchestrator.simulation.objects import MemoryObjects
from orchestrator.simulation.orchestrator_process import GatewayProcess, VirtualCluster
from orchestrator.simulation.process import Host, Process
from orchestrator.simulation.syncer_process import ShardProcess, SyncerProcess
from outer.journal import checkpoint_parts, values
from outer.journal.chain import IDENTITY
from outer.journal.journal_writer import FOLDER
from outer.kill_points import MERGING, POINTS
from outer.protocol.events_effects import Tick

POLL_S = 0.05

FLAPS = 4


TAIL_LOST = "tail_lost"  # the only fault that takes acknowledged facts away
# What is worse, at least and at strength 1; for links the power of the strength, too.
LINKS = {
    "loss": ("lost", 0.05, 0.5, 1), "duplication": ("doubled", 0.1, 0.6, 1), "reordering": ("delay_s", 0.05, 1.5, 2),
    "slow_link": ("slow_s", 0.05, 3.0, 2), "slow_download": ("slow_s", 0.05, 3.0, 2),
}  # fmt: skip
STORE = {
    "storage_slow": ("slow_s", 0.05, 2.0),
    "storage_failing": ("failing", 0.2, 0.7),
    "storage_full": ("full", 1, 0),
}
WRITES = {"storage_torn": "tearing", "storage_lost": "losing"}
DAMAGE = ("fetch_damage", "overflow", "garbled")
BESIDE = KINDS["standbys"] | KINDS["islands"]
METHODS = (
    dict.fromkeys(BESIDE, "_strike_beside")
    | dict.fromkeys(WRITES, "_dies_writing")
    | dict.fromkeys(LINKS, "_worse_links")
    | dict.fromkeys(STORE, "_worse_store")
    | dict.fromkeys(DAMAGE, "_damage")
)
PROTOCOL = ("echo", "linger", "suspend", "stop", "stop_committing", "crash_ending")


class FaultSchedule:
    """Strength is 0 to 1; durations are virtual seconds."""

    def __init__(
        self, context: HostileContext, rng: Random, hosts: Mapping[str, Host], store: Store, virtual: VirtualCluster
    ) -> None:
        self.calm = False  # no more faults
        self._context, self._rng, self._hosts = context, rng, hosts
        self._store, self._virtual = store, virtual
        self._learners = context.options.learners
        self._frozen: list[Process] = []
        self.protocol = ProtocolFaults(context, rng, virtual)
        self.triggered = TriggeredFaults(context, rng, virtual, self._cut)
        for fault in context.options.faults:
            context.time.at(fault.at, self.strike, fault)

    def strike(self, fault: Fault) -> None:
        if self.calm or self._virtual.finished_at is not None:
            return
        if self._context.trace is not None:
            self._context.trace(self._context.time.now, "fault", fault)
        striking(fault.kind)(self, fault)

    def heal(self) -> None:
        """End all faults, and begin no more."""
        self.calm = self.protocol.calm = self.triggered.calm = True
        self._context.faults.heal(self._virtual.syncer)
        self._context.network.heal()
        self._store.heal()
        self._virtual.records.away = False
        self._virtual.unseen_nodes.clear()
        self._virtual.cut_off.clear()
        for host in self._hosts.values():
            host.slowdown, host.data_at = 1.0, 0.0
        for learner in self._virtual.learners.values():
            learner.faults.end()
        for process in self._frozen:
            self._thaw(process)
        for process in [*self._virtual.standbys, *self._virtual.ranks, *self._virtual.doors.values()]:
            process.dies_at = math.inf
        if self._virtual.finished_at is None:
            for pool in self._virtual.controller.pools.sizes:
                self._virtual.restore(pool)

    def _count(self, kind: str) -> None:
        self._context.fault_counts[kind] += 1

    def _later(self, seconds: float, happen: Callable[..., None], *args: object) -> None:
        self._context.time.after(seconds, happen, *args)

    def _targets(self, fault: Fault) -> list[LearnerProcess]:
        """The living learners that a fault targets."""
        learners = self._virtual.learners
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

    def _worse_links(self, fault: Fault) -> None:
        """For a while; downloads alone are messages to the learner."""
        name, least, more, power = LINKS[fault.kind]
        names = self._learners if fault.target == EVERYBODY else (fault.target,)
        for link in (each for each in self._links(fault) if fault.kind != "slow_download" or each.target in names):
            if name == "slow_s":
                link.slow_kind = fault.kind
            setattr(link, name, least + more * fault.strength**power)
            link.update()
            self._later(fault.duration_s, self._mend, link, name)

    def _mend(self, link: NetworkLink, name: str) -> None:
        setattr(link, name, 0.0)
        self._context.network.mend(link)

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
            elif self._virtual.crash(learner.name):
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
            self._later(fault.duration_s, setattr, learner.host, "slowdown", 1.0)

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
        syncer = self._virtual.syncer
        if syncer is not None:  # by its clock its timers are due
            syncer.deliver(lambda: syncer.shell._drive(Tick()))

    def _hosts_of(self, fault: Fault) -> list[Host]:
        return [
            self._hosts[name] for name in (self._learners if fault.target == EVERYBODY else ("syncer", fault.target))
        ]

    # -------------------------------------------------------------- storage and syncer

    def _worse_store(self, fault: Fault) -> None:
        name, least, more = STORE[fault.kind]
        setattr(self._store, name, least + more * fault.strength)
        self._later(fault.duration_s, setattr, self._store, name, 0.0)

    def _storage_stale(self, fault: Fault) -> None:
        self._store.stale = True
        self._syncer_crash(fault)

    def _tail_lost(self, fault: Fault) -> None:
        """The syncer's node is lost with the newest groups of the log, once learners were told that one is durable."""
        context, syncer = self._context, self._virtual.syncer
        if context.time.now >= context.options.storm_s:
            return
        if syncer is None or not syncer.serves or not self._store.tail_known(context.faults.acknowledged):
            self._later(POLL_S, self._tail_lost, fault)
            return
        self._lose_node(syncer)
        context.fault_counts[fault.kind] += bool(self._store.lose_tail(1 + int(3 * fault.strength)))

    @staticmethod
    def _lose_node(syncer: SyncerProcess) -> None:
        syncer.jobs.outlives = lambda kind: False  # what was on its way is lost, too
        syncer.die()

    def _checkpoint_damaged(self, fault: Fault) -> None:
        """Between two sessions something of the newest checkpoint is damaged, or the journal's identity."""
        folders = self._store.folders(checkpoint_parts.FOLDER) if self._virtual.paused else []
        if folders:
            names = MemoryObjects.names(self._store, f"{checkpoint_parts.FOLDER}/{folders[-1]}")
            self._store.damage(pick(self._rng, [*names, *names, *self._identity]))
            self._count(fault.kind)
        elif not self.calm:
            self._later(POLL_S, self._checkpoint_damaged, fault)

    @property
    def _identity(self) -> list[str]:
        """The journal's identity, which groups tell, too; none where a listing may show no group."""
        if any(fault.kind == "storage_stale" for fault in self._context.options.faults):
            return []
        return [name for name in MemoryObjects.names(self._store, FOLDER) if IDENTITY in name]

    def _value_damaged(self, fault: Fault) -> None:
        """The syncer dies with the newest value of a fragment that a shard has written, or the journal's identity."""
        tip = pick(self._rng, self._context.oracle.tips)
        names = MemoryObjects.names(self._store, f"{values.FOLDER}/{tip.fragment:04d}")
        if self._context.options.shards == 1:  # values are in the journal's groups
            names = MemoryObjects.names(self._store, FOLDER)
        if not self._lose(fault, [*self._identity, *(name for name in names if f"/{tip.number:012d}." in name)]):
            self._later(POLL_S, self._value_damaged, fault)

    def _journal_damaged(self, fault: Fault) -> None:
        """The syncer dies with a group of its journal, once segments of the log have every group's facts."""
        self._store.segmented = lambda: self._later(0.0, self._group_damaged, fault)

    def _group_damaged(self, fault: Fault) -> None:
        names = self._store.compacted()
        if names and self._lose(fault, [pick(self._rng, names)]):
            self._store.segmented = lambda: None

    def _lose(self, fault: Fault, names: Sequence[str]) -> bool:
        """The syncer dies, and these objects are damaged; True once that is over."""
        syncer = self._virtual.syncer
        if self.calm or not (names and syncer is not None and syncer.serves):
            return self.calm
        self._lose_node(syncer)
        for name in names:
            self._store.damage(name)
        self._count(fault.kind)
        return True

    def _dies_writing(self, fault: Fault) -> None:
        """The syncer dies as soon as a record is on its way to the store."""
        setattr(self._store, WRITES[fault.kind], True)
        syncer = self._virtual.syncer
        if syncer is not None:
            self._context.faults.dies_writing.add(syncer.epoch)

    def _syncer_crash(self, fault: Fault) -> None:
        syncer = self._virtual.syncer
        if syncer is not None and syncer.alive:
            after = 1 + int(12 * fault.strength)
            if self._rng.random() < 0.5:
                syncer.crash_at = syncer.performed + after
            else:
                syncer.dies_at = syncer.turns + 3 * after

    def _kill_point(self, fault: Fault) -> None:
        """The syncer, or one of its shards, dies where chaos has it die in a real run."""
        syncer = self._virtual.syncer
        if syncer is not None and syncer.serves:
            self._count(fault.kind)
            point = MERGING if syncer.shards and fault.strength < 0.5 else pick(self._rng, POINTS)
            call = syncer.shell.die, point, 1 + int(4 * fault.strength)
            syncer.deliver(partial(_spawn, syncer, *call))

    def _zombie(self, fault: Fault) -> None:
        """Freeze the syncer until another takes its place, then thaw it."""
        syncer = self._virtual.syncer
        if syncer is not None and syncer.running:
            syncer.freeze()
            self._frozen.append(syncer)
            self._later(7.0 + fault.duration_s, self._thaw, syncer, fault.kind)

    def _one_shard(self, fault: Fault) -> ShardProcess | None:
        shards = [] if self._virtual.syncer is None else self._virtual.syncer.shards
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

    # -------------------------------------------------------------- the orchestrator

    def _orchestrator_crash(self, fault: Fault) -> None:
        """After so many callbacks: between any two awaits."""
        process = self._virtual.process
        if process.running:
            process.dies_at = process.turns + 1 + int(100 * fault.strength)
            self._count(fault.kind)

    def _orchestrator_freeze(self, fault: Fault) -> None:
        """Until another has taken its place, or not so long."""
        if (process := self._virtual.freeze()) is not None:
            self._count(fault.kind)
            self._frozen.append(process)
            self._later(2.0 * fault.duration_s, self._thaw, process, fault.kind)

    def _folder_away(self, fault: Fault) -> None:
        """The run's folder cannot be reached for a while."""
        self._virtual.records.away = True
        self._count(fault.kind)
        self._later(fault.duration_s, setattr, self._virtual.records, "away", False)

    def _control_dies(self, fault: Fault) -> None:
        """The node of orchestrator and syncer is lost."""
        process, syncer = self._virtual.process, self._virtual.syncer
        if process.running and syncer is not None and syncer.serves:
            self._count(fault.kind)
            self._lose_node(syncer)
            process.die()

    # -------------------------------------------------------------- standbys, and ranks of islands

    def _strike_beside(self, fault: Fault) -> None:
        """A standby that prepares or waits, or a rank, dies between any two awaits, freezes, is cut off from whom it
        hears, or hears late and twice; and mostly a standby's learner is lost, so that it is promoted just then.
        """
        who, what = fault.kind.split("_")
        virtual, of_island = self._virtual, who == "rank"
        there: list[Any] = [each for each in virtual.standbys if each.alive and not each.incarnation]
        if of_island:
            there = [each for each in virtual.ranks if each.alive and each.leader.alive]
        if not there:
            if self._context.options.ranks if of_island else self._context.options.standbys:
                self._later(1.0, self.strike, fault)  # there will be some
            return
        self._count(fault.kind)
        one = pick(self._rng, there)
        heard, here = one.leader.host.name if of_island else ORCHESTRATOR, one.host.name
        if what == "crash":
            turns = 40 if of_island else 4  # a standby mostly waits
            one.dies_at = one.turns + 1 + int(turns * fault.strength)
        elif what == "freeze":
            self._freeze_process(one, fault)
        elif what == "cut":  # what the orchestrator and others say comes late, not never
            links = [self._context.network.link(*pair) for pair in ((here, heard), (heard, here))]
            self._cut(fault if of_island else replace(fault, strength=0.0), links)
        else:
            link = self._context.network.link(heard, here)
            link.delay_s, link.doubled = 0.5 * fault.strength, 0.5
            link.update()
            for name in ("delay_s", "doubled"):
                self._later(fault.duration_s, self._mend, link, name)
        if not of_island and fault.strength < 0.7:
            virtual.crash(one.name, detected=fault.strength < 0.3)

    # -------------------------------------------------------------- regions

    def _gateway(self, fault: Fault) -> GatewayProcess | None:
        there = list(self._virtual.doors.values())
        return there[int(len(there) * fault.strength)] if there else None

    def _gateway_crash(self, fault: Fault) -> None:
        """After so many callbacks: between any two awaits."""
        if (gateway := self._gateway(fault)) is not None and gateway.alive:
            gateway.dies_at = gateway.turns + 1 + int(200 * self._rng.random())
            self._count(fault.kind)

    def _gateway_freeze(self, fault: Fault) -> None:
        if (gateway := self._gateway(fault)) is not None and gateway.running:
            gateway.freeze()
            self._frozen.append(gateway)
            self._later(fault.duration_s, self._thaw, gateway, fault.kind)
            self._count(fault.kind)

    def _region_cut(self, fault: Fault) -> None:
        """The region that has joined does not reach the store."""
        if self._virtual.doors:
            self._virtual.cut_off.add(self._context.joined)
            self._later(3.0 * fault.duration_s, self._virtual.cut_off.discard, self._context.joined)
            self._count(fault.kind)

    # -------------------------------------------------------------- membership

    def _no_place(self, fault: Fault) -> None:
        """A learner's node is gone, and for long there is no other."""
        until = min(self._context.options.storm_s, self._context.time.now + 15.0 + 30.0 * fault.strength)
        for learner in self._targets(fault)[:1]:
            self._virtual.places.lost_until[learner.name] = until
            self._kill(fault, [learner.name])

    def _node_away(self, fault: Fault) -> None:
        """A learner's node is cut off from everybody, and neither seen nor reached by the cluster."""
        for learner in self._targets(fault)[:1]:
            name, fault = learner.host.name, replace(fault, target=learner.name, duration_s=4.0 * fault.duration_s)
            links = [self._context.network.link(*pair) for pair in ((name, ORCHESTRATOR), (ORCHESTRATOR, name))]
            self._cut(fault, self._links(fault) + links)
            self._virtual.unseen_nodes.add(name)
            self._later(fault.duration_s, self._virtual.unseen_nodes.discard, name)

    def _scale_out(self, fault: Fault) -> None:
        for name in self._context.options.newcomers[: 1 + int(2 * fault.strength)]:
            if name not in self._virtual.controller.wanted:
                self._virtual.resize(self._context.options.place(name).pool, 1)
                self._count(fault.kind)

    def _drain(self, fault: Fault) -> None:
        name = pick(self._rng, self._learners) if fault.target == EVERYBODY else fault.target
        if fault.strength < 0.5:
            if self._virtual.preempt(name):
                self._count(fault.kind)
        elif self._virtual.resize(pool := self._context.options.place(name).pool, -1):
            self._count(fault.kind)
            self._later(fault.duration_s, self._virtual.restore, pool)

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
        if not self.calm:
            self._kill(fault, [each.name for each in self._targets(fault)[:1]])

    def _rejoin_storm(self, fault: Fault) -> None:
        """All but one die at once, and come back at once."""
        self._kill(fault, self._learners[1:])

    def _all_die(self, fault: Fault) -> None:
        self._kill(fault, sorted(self._virtual.learners))

    def _kill(self, fault: Fault, names: Iterable[str]) -> None:
        for name in names:
            if self._virtual.crash(name):
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

    def _bit_flip(self, fault: Fault) -> None:
        self._disturb(fault, "corrupt")

    def _batch_late(self, fault: Fault) -> None:
        for learner in self._targets(fault):
            learner.host.data_at = self._context.time.now + fault.duration_s
            self._count(fault.kind)

    def _bad_sample(self, fault: Fault) -> None:
        self._context.faults.to_spoil += 1

    def _wrong_manifest(self, fault: Fault) -> None:
        """Kill a learner, so that its next incarnation comes with another recipe."""
        for learner in self._targets(fault)[:1]:
            orchestrator = self._virtual.process
            orchestrator.deliver(orchestrator.shell._learners.misconfigure, learner.name, learner.incarnation)
            self._kill(fault, [learner.name])


def _spawn(process: Process, method: Callable[..., Coroutine[Any, Any, object]], *arguments: object) -> None:
    process.spawn(method(*arguments))


def striking(kind: str) -> Callable[[FaultSchedule, Fault], None]:
    """What a fault of this kind does: the schedule's method _KIND, unless its group has one for all."""
    if kind in TRIGGERS:
        return lambda schedule, fault: schedule.triggered.lay(fault)
    if kind in PROTOCOL:
        return lambda schedule, fault: getattr(schedule.protocol, kind)(fault)
    method: Callable[[FaultSchedule, Fault], None] = getattr(FaultSchedule, METHODS.get(kind, f"_{kind}"))
    return method
