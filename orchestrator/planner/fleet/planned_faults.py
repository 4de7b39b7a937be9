"""A fleet's faults: those that its description plans, and the random deaths of its learners."""

from __future__ import annotations

import math
from collections.abc import Callable

from orchestrator.eventlog.facts import FaultInjected
from orchestrator.planner.fleet.description import Fault, Fleet
from orchestrator.recipe.config import SYNCER
from orchestrator.simulation.context import Faults, SimContext
from orchestrator.simulation.learner_process import LearnerProcess
from orchestrator.simulation.supervisor import Supervisor
from orchestrator.simulation.timeline import Timeline


class PlannedFaults(Faults):
    """`started` is called with every learner's process once it is up."""

    def __init__(self, fleet: Fleet, time: Timeline, started: Callable[[str, LearnerProcess], None]) -> None:
        self._fleet, self._time, self._started = fleet, time, started
        self._mtbf_s = {member.name: member.mtbf_s for member in fleet.members}
        self._by_progress = [fault for fault in fleet.faults if fault.at_progress is not None]
        self._injected = 0

    def arm(self, context: SimContext, supervisor: Supervisor) -> None:
        """Schedule what is planned, the learners that come later included."""
        self._context, self._supervisor, fleet = context, supervisor, self._fleet
        self._facts = context.facts.setdefault(("chaos", 1), [])
        for member in fleet.members:
            if 0.0 < member.since_s < math.inf:
                self._time.after(member.since_s, supervisor.want, member.name)
        for fault in fleet.faults:
            if fault.at_progress is None:
                self._time.after(fault.at_s, self._inject, fault)
        if self._by_progress:
            self._time.after(fleet.look_s, self._look)

    def started(self, learner: LearnerProcess) -> None:
        self._started(learner.name, learner)
        death_s = self._fleet.death(self._mtbf_s[learner.name])
        if not math.isinf(death_s):
            self._time.reach(death_s, learner, self._supervisor.crash, learner.name)

    def _look(self) -> None:
        """Inject what waits for a share of the budget."""
        syncer = self._supervisor.syncer
        if syncer is not None and syncer.alive and not syncer.machine.finished:
            due = [fault for fault in self._by_progress if (fault.at_progress or 0.0) <= syncer.machine.progress]
            self._by_progress = [fault for fault in self._by_progress if fault not in due]
            for fault in due:
                self._inject(fault)
        if self._by_progress and not self._supervisor.over:
            self._time.after(self._fleet.look_s, self._look)

    def _inject(self, fault: Fault) -> None:
        supervisor = self._supervisor
        if fault.learner == SYNCER:
            syncer = supervisor.syncer
            if fault.kind == "kill" and syncer is not None and syncer.alive:
                self._record(fault, syncer.epoch)
                syncer.crash()
            return
        learner = supervisor.learners.get(fault.learner)
        if fault.kind == "join":
            supervisor.want(fault.learner)
        elif fault.kind == "leave":
            supervisor.unwant(fault.learner)
        elif learner is not None and learner.alive:
            self._record(fault, learner.incarnation)
            match fault.kind:
                case "kill":
                    supervisor.crash(fault.learner)
                case "freeze":
                    learner.freeze()
                    self._time.after(fault.duration_s, learner.thaw)
                case "slow" | "straggle" | "link" | "corrupt":
                    learner.harm(fault.kind, fault.duration_s, fault.delay_s, f"{learner.key}")

    def _record(self, fault: Fault, incarnation: int) -> None:
        self._injected += 1
        if self._context.recording:
            what = (fault.kind, fault.learner, incarnation, 0, fault.duration_s, fault.delay_s)
            self._facts.append((self._time.now, FaultInjected(self._injected, *what)))
