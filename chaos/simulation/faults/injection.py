"""Injects the faults of a recipe's [chaos] into a simulated run, as the chaos actor does in a real one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chaos import plans
from chaos.faults import PlannedFault
from chaos.simulation import profile
from chaos.simulation.faults.schedule import FaultSchedule
from chaos.simulation.ports.context import HostileContext
from learners import fault_effects
from orchestrator.eventlog.facts import FaultHealed, FaultInjected, FaultSkipped
from orchestrator.lifecycle.controller import State
from orchestrator.recipe.config import ChaosConfig
from orchestrator.simulation.learner_process import LearnerProcess
from orchestrator.simulation.supervisor import Supervisor

POLL_S = 0.05
SCHEDULED = {  # the recipe's kinds that the schedule strikes with; at strength 0 each lasts as the recipe says
    "kill": "crash",
    "freeze": "freeze",
    "link": "cut_two_way",  # and what is held back arrives late
    "non_finite": "non_finite",
    "wrong_config": "wrong_manifest",
}


class Injection:
    """`seed` is used where [chaos] has none."""

    def __init__(
        self,
        context: HostileContext,
        supervisor: Supervisor,
        schedule: FaultSchedule,
        chaos: ChaosConfig,
        learners: Sequence[str],
        seed: int,
    ) -> None:
        self._context, self._supervisor, self._schedule = context, supervisor, schedule
        self._seed = seed
        self._waiting = plans.plan(chaos, learners, seed)
        self._random = plans.random_faults(chaos, learners, seed, len(self._waiting))
        self._next_random = next(self._random, None)
        self._first_step_at: float | None = None  # as first seen here
        self._facts = context.facts.setdefault(("chaos", 1), []) if chaos.active else []

    def start(self) -> None:
        """Poll until every fault is injected or the run is over."""
        syncer, time = self._supervisor.syncer, self._context.time
        if self._supervisor.finished_at is not None or not (self._waiting or self._next_random):
            return
        if syncer is not None and syncer.running:
            if self._first_step_at is None and syncer.machine.first_step_at is not None:
                self._first_step_at = time.now
            self._inject_due(syncer.machine.committed_step)
        time.after(POLL_S, self.start)

    def _inject_due(self, syncer_step: int) -> None:
        now_s = None if self._first_step_at is None else self._context.time.now - self._first_step_at
        now, self._waiting = plans.due(self._waiting, now_s, syncer_step)
        for fault in now:
            self._inject(fault)
        while self._next_random is not None and self._next_random.is_due(now_s, syncer_step):
            self._inject(self._next_random)
            self._next_random = next(self._random, None)

    def _inject(self, fault: PlannedFault) -> None:
        learner, states = self._supervisor.learners.get(fault.learner), self._supervisor.controller.units
        if learner is None or not learner.alive or states[fault.learner].state is not State.RUNNING:
            self._record(FaultSkipped(fault.kind, fault.learner, "it is not running"))
            return
        number = learner.incarnation
        self._strike(fault, learner)
        injected = (fault.identifier, fault.kind, fault.learner, number, number, fault.duration_s, fault.delay_s)
        self._record(FaultInjected(*injected))
        if fault.duration_s:
            self._context.time.after(fault.duration_s, self._record, FaultHealed(fault.identifier, fault.learner))

    def _strike(self, fault: PlannedFault, learner: LearnerProcess) -> None:
        if fault.kind in SCHEDULED:
            now = self._context.time.now
            self._schedule.strike(profile.Fault(now, SCHEDULED[fault.kind], fault.learner, fault.duration_s, 0.0))
            return
        assert fault.kind in fault_effects.KINDS
        learner.harm(fault.kind, fault.duration_s, fault.delay_s, f"{self._seed} fault {fault.identifier}")
        self._context.fault_counts[fault.kind] += 1

    def _record(self, fact: Any) -> None:
        if not self._supervisor.over:
            self._facts.append((self._context.time.now, fact))
