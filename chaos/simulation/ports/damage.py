"""The effects of the faults under way: on payloads, on the syncer between two effects, on who comes when.

The fault schedule sets what is to be harmed; the processes ask at the places where a fault can strike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from chaos.simulation.checks.oracle import Oracle
from chaos.simulation.ports import byzantine_messages
from chaos.simulation.profile import OTHER_MANIFEST, Options
from orchestrator.simulation.context import Faults
from orchestrator.simulation.learner_process import LearnerProcess
from orchestrator.simulation.syncer_process import SyncerProcess
from orchestrator.simulation.timeline import Timeline
from outer.protocol.events_effects import Append
from outer.protocol.facts import Finished
from outer.protocol.messages import DRAINING, STEPPING, Contribution, Report, State


class Damage(Faults):
    """`rng` is the hosts' stream."""

    def __init__(
        self, options: Options, time: Timeline, oracle: Oracle, rng: Random, fault_counts: Counter[str]
    ) -> None:
        self.flips: dict[str, tuple[float, float]] = {}  # kind -> (until, share) of what is damaged
        self.traps: dict[tuple[str, str], float] = {}  # (learner, moment) -> it dies so much later
        self.trapped: Callable[[str, str], None] = lambda learner, moment: None
        self.to_spoil = 0  # batches that come: the first sample of each cannot be read, now or ever
        self.bad: set[int] = set()  # samples
        self.misled: set[str] = set()  # whose next incarnation comes with another recipe
        self.dies_writing: set[int] = set()  # epochs that die as soon as something is on its way to the store
        self.dies_ending: dict[int, int] = {}  # epoch -> it dies so many effects after it has said that the run is over
        self.committing: dict[int, Callable[[], None]] = {}  # epoch -> happens once, while a commit is being written
        self._options, self._time, self._oracle, self._rng, self._counts = options, time, oracle, rng, fault_counts

    def heal(self, syncer: SyncerProcess | None) -> None:
        """Nothing is to be harmed any more."""
        self.to_spoil = 0
        self.traps.clear()
        self.flips.clear()
        if syncer is not None:
            syncer.crash_at = float("inf")
            self.dies_writing.discard(syncer.epoch)
            self.dies_ending.pop(syncer.epoch, None)

    def damages(self, kind: str) -> bool:
        if not self.flips:
            return False
        until, share = self.flips.get(kind, (0.0, 0.0))
        if self._time.now >= until or self._rng.random() >= share:
            return False
        self._counts[kind] += 1
        return True

    # -------------------------------------------------------------- learners

    def spoils(self, learner: LearnerProcess, start: int) -> bool:
        if self.to_spoil:
            self.to_spoil -= 1
            self.bad.add(start)
        if not self.bad.intersection(range(start, start + self._options.batch[learner.name])):
            return False
        self._counts["bad_sample"] += 1
        self._oracle.spoilt.append(learner.key)
        return True

    def reported(self, learner: LearnerProcess, report: Report) -> Report:
        if self.flips and report.phase in (STEPPING, DRAINING):
            return byzantine_messages.shortened(report, self._rng) if self.damages("garbled") else report
        return report

    def contributed(self, learner: LearnerProcess, contribution: Contribution) -> tuple[Contribution, str]:
        if learner.poisoned:
            self._counts["non_finite"] += 1
            return contribution, "non_finite"
        if self.damages("bit_flip"):
            return contribution, "bad_digest"
        if self.damages("garbled"):
            contribution, reason = byzantine_messages.garbled(contribution, self._options.fragments, self._rng)
            self._oracle.garbled[id(contribution.payload)] = (contribution.payload, reason)
        return contribution, ""

    def finite(self, state: State) -> bool:
        return not state.payload.poisoned

    def moment(self, learner: LearnerProcess, moment: str) -> None:
        if self.traps:
            self.trapped(learner.name, moment)

    def started(self, learner: LearnerProcess) -> None:
        if learner.name in self.misled:
            self.misled.remove(learner.name)
            self._counts["wrong_manifest"] += 1
            learner.manifest = OTHER_MANIFEST

    # -------------------------------------------------------------- the syncer

    def emitted(self, syncer: SyncerProcess, fact: Any) -> None:
        if self.dies_ending and isinstance(fact, Finished) and syncer.epoch in self.dies_ending:
            syncer.crash_at = syncer.performed + self.dies_ending[syncer.epoch]
            self._counts["crash_ending"] += 1

    def appended(self, syncer: SyncerProcess, effect: Append) -> None:
        if syncer.epoch in self.dies_writing:
            self.dies_writing.remove(syncer.epoch)
            syncer.crash_at = syncer.performed + 1
        if effect.proposal is not None and syncer.epoch in self.committing:
            syncer.time.reach(0.0, syncer, self.committing.pop(syncer.epoch))
