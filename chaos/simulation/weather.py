"""Faults, as they are done to the run: one method a kind. What each really did is counted in `fired`.

Whatever has a duration heals by itself; `heal` ends all of it at once. Knows the parts that it harms, and nothing of
what they owe each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from chaos.simulation.ambushes import Ambushes
from chaos.simulation.hosts import Host, Process
from chaos.simulation.mishaps import Mishaps
from chaos.simulation.network import Link
from chaos.simulation.profile import EVERYBODY, Fault, between, pick
from chaos.simulation.setting import Setting
from chaos.simulation.storage import Store
from chaos.simulation.supervisor import Supervisor
from chaos.simulation.unit import Unit
from outer.protocol.events_effects import Tick

FLAPS = 4


class Weather:
    """Strength is 0 to 1; durations are virtual seconds."""

    def __init__(
        self, setting: Setting, chance: Random, hosts: Mapping[str, Host], store: Store, supervisor: Supervisor
    ) -> None:
        self.calm = False  # no fault any more
        self._setting, self._chance, self._hosts = setting, chance, hosts
        self._store, self._supervisor = store, supervisor
        self._learners = setting.options.learners
        self._frozen: list[Process] = []
        self.mishaps = Mishaps(setting, chance, supervisor)
        self.ambushes = Ambushes(setting, chance, supervisor, self._cut)
        for fault in setting.options.faults:
            setting.time.at(fault.at, self.strike, fault)

    def strike(self, fault: Fault) -> None:
        if self.calm or self._supervisor.finished_at is not None:
            return
        if (trace := self._setting.trace) is not None:
            detail = f"{fault.kind} for {fault.duration_s:.2f} s, strength {fault.strength:.2f}"
            trace.line(self._setting.time.now, fault.target, "", "fault", detail)
        STRIKES[fault.kind](self, fault)

    def heal(self) -> None:
        """From here on nothing goes wrong, and what is wrong ends."""
        self.calm = self.mishaps.calm = self.ambushes.calm = True
        self._setting.traps.clear()
        self._setting.flips.clear()
        self._setting.network.heal()
        self._store.heal()
        for host in self._hosts.values():
            host.slowdown = 1.0
        for process in self._frozen:
            self._thaw(process)
        if self._supervisor.server is not None:
            self._supervisor.server.crash_at = float("inf")
            self._supervisor.server.crash_writing = False
            self._supervisor.server.dies_ending = 0
        if self._supervisor.finished_at is None:
            for name in self._setting.options.learners:
                self._supervisor.want(name)

    def _fire(self, kind: str) -> None:
        self._setting.fired[kind] += 1

    def _later(self, seconds: float, happen: Callable[..., None], *args: object) -> None:
        self._setting.time.after(seconds, happen, *args)

    def _targets(self, fault: Fault) -> list[Unit]:
        """Living learners that it is meant for."""
        units = self._supervisor.units
        names = sorted(units) if fault.target == EVERYBODY else [fault.target]
        return [units[name] for name in names if name in units and units[name].alive]

    # -------------------------------------------------------------- the network

    def _links(self, fault: Fault) -> list[Link]:
        network = self._setting.network
        names = self._learners if fault.target == EVERYBODY else (fault.target,)
        links = [network.link(*pair) for name in names for pair in ((name, "syncer"), ("syncer", name))]
        if len(names) == 1:
            peers = [name for name in self._learners if name not in names]
            links += [network.link(*pair) for peer in peers for pair in ((names[0], peer), (peer, names[0]))]
        return links

    def _share(self, fault: Fault, name: str, value: float) -> None:
        for link in self._links(fault):
            setattr(link, name, value)
            link.judge()
            self._later(fault.duration_s, self._unshare, link, name)

    def _unshare(self, link: Link, name: str) -> None:
        setattr(link, name, 0.0)
        self._setting.network.mend(link)

    def _loss(self, fault: Fault) -> None:
        self._share(fault, "lost", 0.05 + 0.5 * fault.strength)

    def _duplication(self, fault: Fault) -> None:
        self._share(fault, "doubled", 0.1 + 0.6 * fault.strength)

    def _reordering(self, fault: Fault) -> None:
        self._share(fault, "delay_s", 0.05 + 1.5 * fault.strength * fault.strength)

    def _slow_link(self, fault: Fault) -> None:
        self._share(fault, "slow_s", 0.05 + 3.0 * fault.strength * fault.strength)

    def _cut(self, fault: Fault, links: list[Link]) -> None:
        holding = fault.strength < 0.5
        for link in links:
            link.cuts.append(fault.kind)
            link.holding = holding
            link.judge()
            self._later(fault.duration_s, self._uncut, link, fault.kind)

    def _uncut(self, link: Link, kind: str) -> None:
        if kind in link.cuts:
            link.cuts.remove(kind)
            self._setting.network.mend(link)

    def _cut_one_way(self, fault: Fault) -> None:
        self._cut(fault, self._links(fault)[int(2 * self._chance.random()) :: 2])

    def _cut_two_way(self, fault: Fault) -> None:
        self._cut(fault, self._links(fault))

    def _flapping(self, fault: Fault) -> None:
        short = fault.duration_s / FLAPS
        for number in range(FLAPS):
            once = Fault(0.0, fault.kind, fault.target, short * between(self._chance, 0.2, 0.8), fault.strength)
            self._later(number * short, self._cut_again, once)

    def _cut_again(self, fault: Fault) -> None:
        if not self.calm:
            self._cut_two_way(fault)

    # -------------------------------------------------------------- hosts

    def _crash(self, fault: Fault) -> None:
        for unit in self._targets(fault)[:1]:
            if self._supervisor.crash(unit.name):
                self._fire("crash")

    def _freeze(self, fault: Fault) -> None:
        for unit in self._targets(fault):
            self._put_on_ice(unit, fault)

    def _put_on_ice(self, process: Process, fault: Fault) -> None:
        if process.running:
            process.freeze()
            self._frozen.append(process)
            self._later(fault.duration_s * (1.0 + 3.0 * fault.strength), self._thaw, process, fault.kind)

    def _thaw(self, process: Process, kind: str = "freeze") -> None:
        if process.thaw() and kind == "freeze":
            self._fire(kind)

    def _slow(self, fault: Fault) -> None:
        for unit in self._targets(fault):
            unit.host.slowdown = 1.5 + 5.0 * fault.strength
            self._later(fault.duration_s, self._speed_up, unit.host)

    def _speed_up(self, host: Host) -> None:
        host.slowdown = 1.0

    def _wall_skew(self, fault: Fault) -> None:
        for host in self._hosts_of(fault):
            host.wall_s += 600.0 * (fault.strength - 0.5)
            self._fire(fault.kind)

    def _wall_jump(self, fault: Fault) -> None:
        for host in self._hosts_of(fault):
            host.wall_s += 20.0 * (fault.strength - 0.5)
            host.jumped = True

    def _clock_rate(self, fault: Fault) -> None:
        for host in self._hosts_of(fault):
            host.set_rate(self._setting.time.now, 1.0 + 0.06 * (fault.strength - 0.5))
            self._fire(fault.kind)

    def _clock_jump(self, fault: Fault) -> None:
        for host in self._hosts_of(fault):
            host.offset_s += 0.5 + 15.0 * fault.strength * fault.strength
            self._fire(fault.kind)
        server = self._supervisor.server
        if server is not None:  # what its timers wait for is due, for all that it knows
            server.take(server.tell, Tick())

    def _hosts_of(self, fault: Fault) -> list[Host]:
        return [
            self._hosts[name] for name in (self._learners if fault.target == EVERYBODY else ("syncer", fault.target))
        ]

    # -------------------------------------------------------------- storage and syncer

    def _store_slow(self, fault: Fault) -> None:
        self._store.slow_s = 0.05 + 2.0 * fault.strength
        self._later(fault.duration_s, setattr, self._store, "slow_s", 0.0)

    def _store_failing(self, fault: Fault) -> None:
        self._store.failing = 0.2 + 0.7 * fault.strength
        self._later(fault.duration_s, setattr, self._store, "failing", 0.0)

    def _store_full(self, fault: Fault) -> None:
        self._store.full = True
        self._later(fault.duration_s, setattr, self._store, "full", False)

    def _store_torn(self, fault: Fault) -> None:
        self._store.tearing = True
        self._syncer_dies_writing()

    def _store_lost(self, fault: Fault) -> None:
        self._store.losing = True
        self._syncer_dies_writing()

    def _store_stale(self, fault: Fault) -> None:
        self._store.stale = True
        self._syncer_crash(fault)

    def _syncer_dies_writing(self) -> None:
        """As soon as something is on its way to the store."""
        server = self._supervisor.server
        if server is not None:
            server.crash_writing = True

    def _syncer_crash(self, fault: Fault) -> None:
        server = self._supervisor.server
        if server is not None and server.alive:
            server.crash_at = server.performed + 1 + int(12 * fault.strength)

    def _zombie(self, fault: Fault) -> None:
        """Frozen for so long that another takes its place, then back."""
        server = self._supervisor.server
        if server is not None and server.running:
            server.freeze()
            self._frozen.append(server)
            self._later(7.0 + fault.duration_s, self._thaw, server, fault.kind)

    # -------------------------------------------------------------- membership

    def _scale_out(self, fault: Fault) -> None:
        for name in self._setting.options.newcomers[: 1 + int(2 * fault.strength)]:
            if name not in self._supervisor.controller.wanted:
                self._supervisor.want(name)
                self._fire(fault.kind)

    def _drain(self, fault: Fault) -> None:
        name = pick(self._chance, self._learners) if fault.target == EVERYBODY else fault.target
        if fault.strength < 0.5:
            if self._supervisor.preempt(name):
                self._fire(fault.kind)
        elif self._supervisor.unwant(name):
            self._fire(fault.kind)
            self._later(fault.duration_s, self._supervisor.want, name)

    def _leave(self, fault: Fault) -> None:
        for unit in self._targets(fault)[:1]:
            if unit.running:
                self._fire(fault.kind)
                if not unit.leave():
                    self._supervisor.crash(unit.name)

    def _flap(self, fault: Fault) -> None:
        """Dies again and again."""
        for number in range(FLAPS):
            self._later(number * (1.0 + fault.duration_s), self._strike_one, fault)

    def _strike_one(self, fault: Fault) -> None:
        for unit in self._targets(fault)[:1]:
            if not self.calm and self._supervisor.crash(unit.name):
                self._fire(fault.kind)

    def _rejoin_storm(self, fault: Fault) -> None:
        """All but one die at once, and come back at once."""
        for name in self._learners[1:]:
            if self._supervisor.crash(name):
                self._fire(fault.kind)

    def _all_die(self, fault: Fault) -> None:
        for name in sorted(self._supervisor.units):
            if self._supervisor.crash(name):
                self._fire(fault.kind)

    def _two_joiners(self, fault: Fault) -> None:
        """Two that join while only few can give."""
        if len(self.ambushes.someone_rejoins(2)) == 2:
            self._fire(fault.kind)

    # -------------------------------------------------------------- payloads

    def _damage(self, fault: Fault) -> None:
        self._setting.flips[fault.kind] = (self._setting.time.now + 2.0 * fault.duration_s, 0.2 + 0.8 * fault.strength)

    def _state_damage(self, fault: Fault) -> None:
        self._setting.flips[fault.kind] = (self._setting.time.now + 60.0, 1.0)
        self.ambushes.someone_rejoins(1)

    def _non_finite(self, fault: Fault) -> None:
        for unit in self._targets(fault)[:1]:
            unit.poison()

    def _wrong_manifest(self, fault: Fault) -> None:
        """Its next incarnation comes with another recipe; so that there is one, this one ends."""
        for unit in self._targets(fault)[:1]:
            self._supervisor.misled[unit.name] = True
            self._supervisor.crash(unit.name)


def _ambush(weather: Weather, fault: Fault) -> None:
    weather.ambushes.lay(fault)


STRIKES: dict[str, Callable[[Weather, Fault], None]] = {
    "loss": Weather._loss,
    "duplication": Weather._duplication,
    "reordering": Weather._reordering,
    "cut_one_way": Weather._cut_one_way,
    "cut_two_way": Weather._cut_two_way,
    "flapping": Weather._flapping,
    "slow_link": Weather._slow_link,
    "crash": Weather._crash,
    "crash_joining": _ambush,
    "crash_transferring": _ambush,
    "crash_answering": _ambush,
    "freeze": Weather._freeze,
    "slow": Weather._slow,
    "wall_skew": Weather._wall_skew,
    "wall_jump": Weather._wall_jump,
    "clock_rate": Weather._clock_rate,
    "clock_jump": Weather._clock_jump,
    "storage_slow": Weather._store_slow,
    "storage_failing": Weather._store_failing,
    "storage_full": Weather._store_full,
    "storage_torn": Weather._store_torn,
    "storage_lost": Weather._store_lost,
    "storage_stale": Weather._store_stale,
    "syncer_crash": Weather._syncer_crash,
    "zombie": Weather._zombie,
    "scale_out": Weather._scale_out,
    "drain": Weather._drain,
    "leave": Weather._leave,
    "flap": Weather._flap,
    "rejoin_storm": Weather._rejoin_storm,
    "all_die": Weather._all_die,
    "donor_dies": _ambush,
    "two_joiners": Weather._two_joiners,
    "bit_flip": Weather._damage,
    "fetch_damage": Weather._damage,
    "state_damage": Weather._state_damage,
    "non_finite": Weather._non_finite,
    "wrong_manifest": Weather._wrong_manifest,
    "overflow": Weather._damage,
    "garbled": Weather._damage,
    "echo": lambda weather, fault: weather.mishaps.echo(fault),
    "linger": lambda weather, fault: weather.mishaps.linger(fault),
    "donor_leaves": _ambush,
    "state_late": _ambush,
    "starved": _ambush,
    "stop": lambda weather, fault: weather.mishaps.stop(fault),
    "stop_committing": lambda weather, fault: weather.mishaps.stop_committing(fault),
    "crash_ending": lambda weather, fault: weather.mishaps.crash_ending(fault),
}
