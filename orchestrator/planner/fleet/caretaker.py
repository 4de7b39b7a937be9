"""Keeps a simulated fleet alive by the production controller: starts, restarts, joins, leaves, and the syncer's epochs.

It never fails, and hears of everything after the times that the fleet's description gives.
"""

from __future__ import annotations

import math
from typing import Any

from orchestrator.eventlog.facts import FaultInjected, LearnerLost, LearnerRequested, LearnerStarted, SyncerLost
from orchestrator.lifecycle import controller
from orchestrator.planner.fleet.description import Fault, Member
from orchestrator.planner.fleet.server import Server
from orchestrator.planner.fleet.unit import Unit
from orchestrator.planner.fleet.world import World
from orchestrator.recipe.config import SYNCER
from outer.protocol import events_effects, recovery
from outer.protocol.recovery import Entry

EXIT_S = 0.05


class Caretaker:
    """One per simulation."""

    def __init__(self, world: World) -> None:
        fleet = world.fleet
        self.server: Server | None = None
        self._world, self._time = world, world.time
        self._members = {member.name: member for member in fleet.members}
        self._facts = world.facts.setdefault(("orchestrator", 1), [])
        self._chaos = world.facts.setdefault(("chaos", 1), [])
        there = [member.name for member in fleet.members if not member.since_s]
        timing = fleet.timing
        self._controller = controller.Controller(there, backoff_s=timing.backoff_s, hang_s=timing.hang_s)
        self._ahead = [fault for fault in fleet.faults if fault.at_progress is not None]
        self._entries: list[Entry] = []
        self._dead: set[tuple[str, int]] = set()

    @property
    def over(self) -> bool:
        """The budget is reached, and everybody has left."""
        finished = self.server is not None and bool(self.server.machine.finished)
        return finished and not any(unit.alive for unit in self._world.units.values())

    def start(self) -> None:
        self._next_epoch()
        self._advance()
        self._time.after(self._world.fleet.look_s, self._poll)
        for member in self._members.values():
            if 0.0 < member.since_s < math.inf:
                self._time.after(member.since_s, self._want, member.name)
        for fault in self._world.fleet.faults:
            if fault.at_progress is None:
                self._time.after(fault.at_s, self._strike, fault)

    # -------------------------------------------------------------- looking after everybody

    def _poll(self) -> None:
        server = self.server
        if server is not None and server.alive and not server.machine.finished:
            for row in server.machine.view(self._time.now):
                if not row["alive"] and row["lease_age_s"] is not None:
                    self._act(self._controller.silent(row["name"], row["incarnation"], row["lease_age_s"]))
            self._advance()
            due = [fault for fault in self._ahead if (fault.at_progress or 0.0) <= server.machine.progress]
            self._ahead = [fault for fault in self._ahead if fault not in due]
            for fault in due:
                self._strike(fault)
        if not self.over:
            self._time.after(self._world.fleet.look_s, self._poll)

    def _advance(self) -> None:
        self._act(self._controller.advance(self._time.now))

    def _act(self, actions: list[controller.Action]) -> None:
        for action in actions:
            match action:
                case controller.Start(name):
                    self._start(self._members[name])
                case controller.Drain():
                    self._drain(action)
                case controller.End(name):
                    self._world.units[name].die()
                    self._time.after(EXIT_S, self._lost, name, action.incarnation, "lease_expired")

    # -------------------------------------------------------------- one learner after another

    def _start(self, member: Member) -> None:
        before = self._world.units.get(member.name)
        incarnation = 1 if before is None else before.incarnation + 1
        self._controller.started(member.name, incarnation)
        unit = self._world.units[member.name] = Unit(self._world, member, incarnation, self._ended)
        self._say(LearnerRequested(member.name, incarnation, member.pool, member.region or None))
        self._expect(unit)
        timing, warm = self._world.fleet.timing, self._world.fleet.warm and incarnation == 1 and not member.since_s
        process_s = 0.0 if warm else timing.process_s()
        replace_s = timing.replace_s() if incarnation > 1 else 0.0
        self._time.reach(replace_s, unit, self._world.crowd.work, process_s, unit, self._up, unit, warm)

    def _expect(self, unit: Unit) -> None:
        if self.server is not None and self.server.alive:
            self.server.drive(self._announced(unit))

    def _announced(self, unit: Unit) -> events_effects.Expect:
        member, start_s = unit.member, self._world.fleet.timing.start_s
        return events_effects.Expect(unit.name, unit.incarnation, start_s, member.batch_size, member.region)

    def _up(self, unit: Unit, warm: bool) -> None:
        unit.server = self.server
        self._say(LearnerStarted(unit.name, unit.incarnation, unit.incarnation, unit.member.pool))
        self._controller.answered(unit.name, unit.incarnation)
        death_s = self._world.fleet.death(unit.member.mtbf_s)
        if not math.isinf(death_s):
            self._time.reach(death_s, unit, self._kill, unit)
        unit.begin(warm)

    def _kill(self, unit: Unit) -> None:
        if unit.alive:
            unit.die()
            self._time.after(self._world.fleet.timing.detect_s(), self._lost, unit.name, unit.incarnation, "died")

    def _lost(self, name: str, incarnation: int, cause: str) -> None:
        if self._controller.lost(self._time.now, name, incarnation) is None:
            return
        self._say(LearnerLost(name, incarnation, cause, cause))
        self._bury(name, incarnation, {"died": "killed"}.get(cause, cause))

    def _ended(self, unit: Unit, reason: str) -> None:
        self._time.after(EXIT_S, self._settle, unit, reason)

    def _settle(self, unit: Unit, reason: str) -> None:
        """A learner's loop has returned."""
        if reason.startswith("failed"):
            self._lost(unit.name, unit.incarnation, "failed")
        elif reason.startswith("drained"):
            self._left(unit.name, unit.incarnation)
        else:
            self._controller.finished(unit.name, unit.incarnation)

    def _left(self, name: str, incarnation: int) -> None:
        if (name, incarnation) not in self._dead:
            self._controller.left(name, incarnation)
            self._bury(name, incarnation, "drained")

    def _bury(self, name: str, incarnation: int, reason: str) -> None:
        self._dead.add((name, incarnation))
        if self.server is not None and self.server.alive:
            self.server.drive(events_effects.Fence(name, incarnation, reason))
            if not self.server.machine.finished:
                self._advance()

    # -------------------------------------------------------------- coming and going

    def _want(self, name: str) -> None:
        self._controller.want(name)
        self._advance()

    def _unwant(self, name: str) -> None:
        if name in self._controller.wanted:
            self._act(self._controller.unwant(name, "not wanted any more"))

    def _drain(self, action: controller.Drain) -> None:
        """One that was not told to leave has nothing to lose, and is ended at once."""
        if self.server is None or not self.server.alive:
            return
        drain_s = self._world.fleet.sync.drain_s
        self.server.drive(events_effects.DrainRequested(action.learner, action.incarnation, action.reason, drain_s))
        unit = self._world.units[action.learner]
        if not unit.steps_on:
            unit.die()
            self._time.after(EXIT_S, self._left, unit.name, unit.incarnation)

    # -------------------------------------------------------------- faults

    def _strike(self, fault: Fault) -> None:
        if fault.learner == SYNCER:
            if fault.kind == "kill":
                self._kill_syncer(fault)
            return
        unit = self._world.units.get(fault.learner)
        if fault.kind in ("join", "leave"):
            (self._want if fault.kind == "join" else self._unwant)(fault.learner)
        elif unit is not None and unit.alive:
            self._tell(fault, unit.incarnation)
            match fault.kind:
                case "kill":
                    self._kill(unit)
                case "freeze":
                    unit.freeze()
                    self._time.after(fault.duration_s, unit.thaw)
                case "slow" | "straggle" | "link" | "corrupt":
                    unit.disturbance.begin(fault.kind, fault.duration_s, fault.delay_s, f"{unit.key}")

    def _tell(self, fault: Fault, incarnation: int) -> None:
        if self._world.fleet.recorded:
            number, pid = len(self._chaos) + 1, 0
            told = FaultInjected(number, fault.kind, fault.learner, incarnation, pid, fault.duration_s, fault.delay_s)
            self._chaos.append((self._time.now, told))

    # -------------------------------------------------------------- the syncer

    def _kill_syncer(self, fault: Fault) -> None:
        if self.server is not None and self.server.alive:
            self._tell(fault, self.server.epoch)
            self.server.die()
            self._time.after(self._world.fleet.timing.outage_s(), self._next_epoch)

    def _next_epoch(self) -> None:
        """From what the journal holds; then whoever lives is told of it."""
        world, before = self._world, self.server
        recovered = recovery.recover(self._entries, len(world.fleet.fragments)) if before is not None else None
        if before is not None:
            self._say(SyncerLost(before.epoch, "died", ""))
        self.server = server = Server(world, before.epoch + 1 if before is not None else 1, recovered, self._entries)
        server.start()
        if before is None:
            return
        living = [unit for unit in world.units.values() if (unit.name, unit.incarnation) not in self._dead]
        server.drive(events_effects.Living(tuple(map(self._announced, living))))
        for unit in living:
            if unit.alive:
                self._time.reach(0.0, unit, unit.reattach, server)
        self._advance()

    def _say(self, fact: Any) -> None:
        if self._world.fleet.recorded:
            self._facts.append((self._time.now, fact))
