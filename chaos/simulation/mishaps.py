"""Faults in what is said, and in how a run ends: old words again, processes slow to go, stops at any moment.

One method a kind, as in the weather, which calls them. Knows whom to tell, and nothing of what comes of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from chaos.simulation import conduct, confusion
from chaos.simulation.profile import EVERYBODY, Fault, pick
from chaos.simulation.setting import Setting
from chaos.simulation.supervisor import Supervisor
from chaos.simulation.unit import Unit
from learners.protocol.events_effects import Decline
from outer.protocol.messages import DRAINING, JOINING, STEPPING

ECHOES = 12
STOPS = 3
LINGERING_S = 60.0
URGE_S = 1.0


class Mishaps:
    """Once `calm`, nothing more comes of what was begun."""

    def __init__(self, setting: Setting, chance: Random, supervisor: Supervisor) -> None:
        self.calm = False
        self._setting, self._chance, self._supervisor = setting, chance, supervisor

    def _again_and_again(self, fault: Fault, times: int, happen: Callable[[Fault], None]) -> None:
        for number in range(times):
            self._setting.time.after(number * fault.duration_s / times, self._once, happen, fault)

    def _once(self, happen: Callable[[Fault], None], fault: Fault) -> None:
        if not self.calm:
            happen(fault)

    def _one_of(self, fault: Fault) -> str:
        return pick(self._chance, self._setting.options.learners) if fault.target == EVERYBODY else fault.target

    # -------------------------------------------------------------- words of long ago

    def echo(self, fault: Fault) -> None:
        self._again_and_again(fault, ECHOES, self._say_again)

    def _say_again(self, fault: Fault) -> None:
        name = self._one_of(fault)
        self._to_syncer(name)
        self._to_learner(name)

    def _to_syncer(self, name: str) -> None:
        """As of the incarnation that it holds for the newest."""
        server = self._supervisor.server
        if server is None or not server.running or server.deposed:
            return
        rows = server.machine.view(server.clock())
        incarnation = next((row["incarnation"] for row in rows if row["name"] == name), 0)
        if incarnation:
            event, reasons = pick(self._chance, confusion.to_syncer(name, incarnation, server.epoch))
            self._setting.fired["echo"] += 1
            conduct.refuses(self._setting.truth, server, event, server.drive(event), reasons)

    def _to_learner(self, name: str) -> None:
        """Its machine is to do nothing of it."""
        unit = self._supervisor.units.get(name)
        if unit is None or not unit.running or unit.machine.phase not in (JOINING, STEPPING, DRAINING):
            return
        if unit.welcomed:
            fragments = self._setting.options.fragments
            event = pick(self._chance, confusion.to_learner(*unit.key, unit.welcomed, fragments))
            self._setting.fired["echo"] += 1
            if done := [each for each in unit.machine.handle(unit.clock(), event) if not isinstance(each, Decline)]:
                self._setting.truth.broken(
                    "conduct.refuses", f"{name} {unit.incarnation} heard {event}, and did {done}"
                )

    # -------------------------------------------------------------- processes slow to go

    def linger(self, fault: Fault) -> None:
        """Whose loop has ended stays for a while, and hears on. One is told to end, by its host, until it has."""
        self._setting.flips["linger"] = (self._setting.time.now + LINGERING_S, 1.0)
        unit = self._supervisor.units.get(self._one_of(fault))
        if unit is not None and unit.machine.phase == STEPPING:
            self._urge(unit)
            self._setting.time.after(URGE_S / 2.0, self._supervisor.preempt, unit.name)  # which hears of it too

    def _urge(self, unit: Unit) -> None:
        if unit.running and not self.calm and unit.leave():
            self._setting.time.after(URGE_S, self._urge, unit)

    # -------------------------------------------------------------- the end of a run

    def stop(self, fault: Fault) -> None:
        """Several times, as people do."""
        self._again_and_again(fault, STOPS, self._stop)

    def _stop(self, fault: Fault) -> None:
        self._setting.fired[fault.kind] += 1
        self._supervisor.stop(f"somebody asked for it at {self._setting.time.now:.3f} s")

    def stop_committing(self, fault: Fault) -> None:
        """While the next commit is being written."""
        server = self._supervisor.server
        if server is not None:
            server.committing = partial(self._once, self._stop, fault)

    def crash_ending(self, fault: Fault) -> None:
        """The syncer dies while it tells everybody that the run is over."""
        server = self._supervisor.server
        if server is not None:
            server.dies_ending = 1 + int(6 * fault.strength)
