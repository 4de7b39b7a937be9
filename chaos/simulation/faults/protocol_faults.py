"""Faults of the protocol and of a run's end: stale messages, processes slow to end, stops at any moment.

One method for each kind of fault. The schedule calls them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from chaos.simulation.ports import byzantine_messages
from chaos.simulation.ports.context import HostileContext
from chaos.simulation.profile import EVERYBODY, Fault, pick
from learners.protocol.events_effects import Decline
from orchestrator.simulation.learner_process import LearnerProcess
from orchestrator.simulation.orchestrator_process import VirtualCluster
from outer.protocol.messages import DRAINING, JOINING, STEPPING

ECHOES = 12
STOPS = 3
LINGERING_S = 60.0
URGE_S = 1.0


class ProtocolFaults:
    """Once `calm` is set, faults that have begun do nothing more."""

    def __init__(self, context: HostileContext, rng: Random, virtual: VirtualCluster) -> None:
        self.calm = False
        self._context, self._rng, self._virtual = context, rng, virtual

    def _repeat(self, fault: Fault, times: int, happen: Callable[[Fault], None]) -> None:
        for number in range(times):
            self._context.time.after(number * fault.duration_s / times, self._once, happen, fault)

    def _once(self, happen: Callable[[Fault], None], fault: Fault) -> None:
        if not self.calm:
            happen(fault)

    def _one_of(self, fault: Fault) -> str:
        return pick(self._rng, self._context.options.learners) if fault.target == EVERYBODY else fault.target

    # -------------------------------------------------------------- stale messages

    def echo(self, fault: Fault) -> None:
        self._repeat(fault, ECHOES, self._send_stale)

    def _send_stale(self, fault: Fault) -> None:
        name = self._one_of(fault)
        self._to_syncer(name)
        self._to_learner(name)

    def _to_syncer(self, name: str) -> None:
        """A stale message from the incarnation that the syncer takes for the newest. It must refuse it."""
        syncer = self._virtual.syncer
        if syncer is None or not syncer.serves:
            return
        rows = syncer.machine.view(syncer.clock())
        incarnation = next((row["incarnation"] for row in rows if row["name"] == name), 0)
        if incarnation:
            event, reasons = pick(self._rng, byzantine_messages.to_syncer(name, incarnation, syncer.epoch))
            self._context.fault_counts["echo"] += 1
            self._context.observer.refuses(syncer, event, syncer.drive(event), reasons)

    def _to_learner(self, name: str) -> None:
        """A stale message to a learner. Its machine must do nothing, or decline."""
        learner = self._virtual.learners.get(name)
        if learner is None or not learner.running or learner.phase not in (JOINING, STEPPING, DRAINING):
            return
        if learner.epoch is not None:
            fragments = self._context.options.fragments
            event = pick(self._rng, byzantine_messages.to_learner(*learner.key, learner.epoch, fragments))
            self._context.fault_counts["echo"] += 1
            handled = learner.machine.handle(learner.clock(), event)
            if done := [each for each in handled if not isinstance(each, Decline)]:
                self._context.oracle.broken(
                    "invariants.refuses", f"{name} {learner.incarnation} heard {event}, and did {done}"
                )

    # -------------------------------------------------------------- processes slow to go

    def linger(self, fault: Fault) -> None:
        """Processes stay after their loop has ended, and handle messages. One is told to leave until it has."""
        self._context.faults.flips["linger"] = (self._context.time.now + LINGERING_S, 1.0)
        learner = self._virtual.learners.get(self._one_of(fault))
        if learner is not None and learner.phase == STEPPING:
            self._urge(learner)
            self._context.time.after(URGE_S / 2.0, self._virtual.preempt, learner.name)  # its node says so, too

    def _urge(self, learner: LearnerProcess) -> None:
        if learner.running and not self.calm:
            learner.deliver(learner.leave)
            self._context.time.after(URGE_S, self._urge, learner)

    # -------------------------------------------------------------- the end of a session, and of a run

    def suspend(self, fault: Fault) -> None:
        """Stop the run as people do, and resume it. At times the store is full meanwhile."""
        store = self._context.store
        if fault.strength < 0.4:
            store.full = True
            self._context.time.after(4.0 * fault.duration_s, setattr, store, "full", False)
        self._context.fault_counts[fault.kind] += self._virtual.suspend(f"suspended at {self._context.time.now:.3f} s")

    def stop(self, fault: Fault) -> None:
        """Stop the run, several times, as people do."""
        self._repeat(fault, STOPS, self._stop)

    def _stop(self, fault: Fault) -> None:
        self._context.fault_counts[fault.kind] += 1
        self._virtual.stop(f"requested at {self._context.time.now:.3f} s")

    def stop_committing(self, fault: Fault) -> None:
        """Stop the run while the next commit is being written."""
        syncer = self._virtual.syncer
        if syncer is not None:
            self._context.faults.committing[syncer.epoch] = partial(self._once, self._stop, fault)

    def crash_ending(self, fault: Fault) -> None:
        """The syncer dies while it tells the learners that the run is over."""
        syncer = self._virtual.syncer
        if syncer is not None:
            self._context.faults.dies_ending[syncer.epoch] = 1 + int(6 * fault.strength)
