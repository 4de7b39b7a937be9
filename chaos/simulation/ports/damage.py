"""The effects of the faults under way: on payloads, on the syncer between two effects, on who comes when.

The fault schedule sets what is to be harmed; the processes ask at the places where a fault can strike.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from chaos.simulation.checks.oracle import Oracle
from chaos.simulation.ports import byzantine_messages
from chaos.simulation.ports.storage import Store
from chaos.simulation.profile import Options
from learners.fault_effects import flipped
from learners.link import Version
from orchestrator.simulation.context import Faults, Key
from orchestrator.simulation.learner_process import LearnerProcess
from orchestrator.simulation.process import Process
from orchestrator.simulation.syncer_process import SyncerProcess
from orchestrator.simulation.timeline import Timeline
from outer.protocol.events_effects import Append
from outer.protocol.facts import Finished, SnapshotTaken
from outer.protocol.messages import DRAINING, STEPPING, Contribution, State


class Damage(Faults):
    """`rng` is the hosts' stream."""

    def __init__(
        self, options: Options, time: Timeline, oracle: Oracle, rng: Random, fault_counts: Counter[str], store: Store
    ) -> None:
        self.acknowledged: dict[Key, int] = {}  # by learner: the last fact that it was told to be durable
        self.flips: dict[str, tuple[float, float]] = {}  # kind -> (until, share) of what is damaged
        self.traps: dict[tuple[str, str], float] = {}  # (learner, moment) -> it dies so much later
        self.trapped: Callable[[str, str], None] = lambda name, moment: None
        self.to_spoil = 0  # batches that come: the first sample of each cannot be read, now or ever
        self.bad: set[int] = set()  # samples
        self.dies_writing: set[int] = set()  # epochs that die as soon as something is on its way to the store
        self.dies_ending: dict[int, int] = {}  # epoch -> it dies so many effects after it has said that the run is over
        self.committing: dict[int, Callable[[], None]] = {}  # epoch -> happens once, while a commit is being written
        self._options, self._time, self._oracle, self._rng, self._counts = options, time, oracle, rng, fault_counts
        self._store, self.carried_max = store, options.carried_max

    def heal(self, syncer: SyncerProcess | None) -> None:
        """Nothing is to be harmed any more."""
        self.to_spoil = 0
        self.traps.clear()
        self.flips.clear()
        if syncer is not None:
            for points in (syncer.shell._points, *(part._points for part in syncer.parts)):
                points.die = lambda: None
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

    def finite(self, state: State) -> bool:
        return not state.payload.poisoned

    # -------------------------------------------------------------- calls

    def asking(self, source: Process, target: Process, method: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of a call as they really leave."""
        if self.traps:
            for who, which, moment in ((source, "attach", "joining"), (source, "fetch", "transferring")):
                if method == which:
                    self.moment(who, moment)
            if method == "donate":
                self.moment(target, "giving")
        if self.flips and method == "report" and arguments[0].phase in (STEPPING, DRAINING) and self.damages("garbled"):
            return (byzantine_messages.shortened(arguments[0], self._rng), *arguments[1:])
        return arguments

    def answering(self, source: Process, target: Process, method: str, arguments: tuple[Any, ...], answer: Any) -> Any:
        """The answer of a call as it really leaves."""
        if method == "report":
            self._told((arguments[0].learner, arguments[0].incarnation), answer)
        elif method == "record":
            self._told((arguments[0], arguments[1]), answer)
        if self.traps:
            for who, which, moment in (
                (target, "attach", "welcomed"),
                (source, "read", "answered"),
                (target, "donate", "received"),
            ):
                if method == which and not isinstance(answer, str):
                    self.moment(who, moment)
        if not self.flips or (type(answer) is not tuple and not isinstance(answer, Version)):
            return answer
        if method == "read":
            return (self._contributed(answer[0]), *answer[1:])
        if method == "fetch" and self.damages("fetch_damage"):
            whole = not isinstance(answer[2], list)
            return (*answer[:2], flipped(answer[2]) if whole else [*map(flipped, answer[2])], answer[3])
        if isinstance(answer, Version) and self.damages("fetch_damage"):
            return answer._replace(theta=flipped(answer.theta))
        if method == "donate" and self.damages("state_damage"):
            return (replace(answer[0], digest="damaged", payload=answer[0].payload.damaged()), *answer[1:])
        return answer

    def _told(self, key: Key, durable: int) -> None:
        if durable > self.acknowledged.get(key, -1):
            self.acknowledged[key] = durable

    def _contributed(self, contribution: Contribution) -> Contribution:
        if math.isfinite(contribution.payload[0]) and self.damages("garbled"):
            return byzantine_messages.garbled(contribution, self._options.fragments, self._rng, self._oracle)
        return contribution

    def moment(self, process: Process, moment: str) -> None:
        """A process has come to a moment at which a fault may strike; it does so right after that."""
        self._time.after(0.0, self.trapped, process.key[0], moment)

    def outlives(self, kind: str) -> bool:
        self._time.after(0.0, self._store.whole)
        return kind in ("journal", "") and self._store.outlives()

    # -------------------------------------------------------------- the syncer

    def emitted(self, syncer: SyncerProcess, fact: Any) -> None:
        ends = isinstance(fact, Finished) or (isinstance(fact, SnapshotTaken) and fact.final)
        if ends and syncer.epoch in self.dies_ending:
            syncer.crash_at = syncer.performed + self.dies_ending[syncer.epoch]
            self._counts["crash_ending"] += 1

    def _die_writing(self, syncer: SyncerProcess) -> None:
        self._counts["syncer_crash"] += syncer.alive
        syncer.die()

    def appended(self, syncer: SyncerProcess, effect: Append) -> None:
        if syncer.epoch in self.dies_writing:
            self.dies_writing.remove(syncer.epoch)
            syncer.time.after(0.0, self._die_writing, syncer)  # the write begins within this moment
        if effect.proposal is not None and syncer.epoch in self.committing:
            syncer.time.after(0.0, self.committing.pop(syncer.epoch))
