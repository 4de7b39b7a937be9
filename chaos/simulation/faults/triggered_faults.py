"""Faults that wait for a moment in a learner's life: it dies then, leaves, or is cut off.

Damage.moment calls `trapped` when a learner comes to such a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from chaos.simulation.ports.context import HostileContext
from chaos.simulation.ports.network import NetworkLink
from chaos.simulation.profile import EVERYBODY, Fault, pick
from orchestrator.simulation.orchestrator_process import VirtualCluster
from outer.protocol.messages import JOINING, STEPPING

LATE_S = 9.5  # a message to the syncer that takes so long is still handled


class Trigger(NamedTuple):
    """The moment that a kind waits for, and how long after it, at strength 1, it strikes."""

    moment: str
    after_s: float
    whom: str  # one: the fault's target; any: the first that comes to it; joiner: the one that has to join again


TRIGGERS = {
    "crash_joining": Trigger("joining", 0.1, "one"),
    "leave_joining": Trigger("joining", 0.1, "one"),
    "crash_transferring": Trigger("transferring", 0.02, "one"),
    "crash_answering": Trigger("answered", 0.0, "one"),
    "donor_dies": Trigger("giving", 0.1, "any"),
    "donor_leaves": Trigger("giving", 0.0, "any"),
    "state_late": Trigger("received", 0.0, "any"),
    "starved": Trigger("welcomed", 0.0, "joiner"),
}


class TriggeredFaults:
    """`cut` makes links carry nothing for a while. Once `calm` is set, nothing more strikes."""

    def __init__(
        self,
        context: HostileContext,
        rng: Random,
        virtual: VirtualCluster,
        cut: Callable[[Fault, list[NetworkLink]], None],
    ) -> None:
        self.calm = False
        self._context, self._rng, self._virtual, self._cut = context, rng, virtual, cut
        self._kinds: dict[tuple[str, str], str] = {}  # (learner, moment) -> the kind that waits for it
        context.faults.trapped = self._trapped

    def lay(self, fault: Fault) -> None:
        """Set a trap. Where it takes a joiner, a learner is killed so that it has to join again."""
        options, (moment, after_s, whom) = self._context.options, TRIGGERS[fault.kind]
        names: Sequence[str] = options.learners
        if whom == "one":
            names = [pick(self._rng, options.learners if fault.target == EVERYBODY else (fault.target,))]
        else:
            joiners = self.someone_rejoins(1)
            names = names if whom == "any" else joiners
        for name in names:
            self._context.faults.traps[name, moment] = after_s * fault.strength
            self._kinds[name, moment] = fault.kind
        if moment == "joining":
            self._rejoins(fault)

    def _rejoins(self, fault: Fault) -> None:
        """Kill the first target, if the trap is for that one."""
        learners = self._virtual.learners
        names = sorted(learners) if fault.target == EVERYBODY else [fault.target]
        for name in [name for name in names if name in learners and learners[name].alive][:1]:
            if (name, "joining") in self._context.faults.traps:
                self._virtual.crash(name)

    def someone_rejoins(self, count: int) -> list[str]:
        """Kill so many learners; returns those that have to join again."""
        learners = [self._virtual.learners[name] for name in sorted(self._virtual.learners)]
        stepping = [learner for learner in learners if learner.running and learner.phase in (STEPPING, JOINING)]
        return [learner.name for learner in stepping[-count:] if self._virtual.crash(learner.name)]

    def _trapped(self, name: str, moment: str) -> None:
        after_s = self._context.faults.traps.pop((name, moment), None)
        if after_s:
            self._context.time.after(after_s, self._spring, name, self._kinds[name, moment])
        elif after_s is not None:
            self._spring(name, self._kinds[name, moment])

    def _spring(self, name: str, kind: str) -> None:
        options, link = self._context.options, self._context.network.link
        if self.calm:
            return
        if kind == "state_late":  # before it can say that it has one
            late_s = min(LATE_S, options.sync.join_s + 1.0)
            self._cut(Fault(0.0, kind, name, late_s, 0.0), [link(name, "syncer")])
        elif kind == "starved":  # nothing comes for longer than it waits for a state
            self._cut(Fault(0.0, kind, name, options.start_s + 2.0, 1.0), [link("syncer", name)])
        elif kind in ("donor_leaves", "leave_joining"):
            learner = self._virtual.learners[name]
            self._context.fault_counts[kind] += learner.running
            learner.deliver(learner.leave)
        elif self._virtual.crash(name, detected=kind == "crash_answering"):
            self._context.fault_counts[kind] += 1
