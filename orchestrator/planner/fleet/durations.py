"""How long things take in a fleet, as its description says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from orchestrator.planner.fleet.description import Fleet
from orchestrator.simulation.learner_loop import LearnerLoop
from orchestrator.simulation.timeline import Timeline

EXIT_S = 0.05


class Stepped(NamedTuple):
    """One step, in virtual seconds, and what it is worth. The last one of a learner may be under way."""

    began: float
    ended: float
    share: float
    tokens: int


class FleetDurations:
    """`steps` are all steps so far, by learner, in order."""

    def __init__(self, fleet: Fleet, time: Timeline) -> None:
        timing = fleet.timing
        self.backoff_s, self.hang_s, self.start_s = timing.backoff_s, timing.hang_s, timing.start_s
        self.unreachable_s = timing.unreachable_s
        self.look_s, self.exit_s, self.end_s, self.pack_s = fleet.look_s, 0.0, EXIT_S, timing.pack_s
        self.steps: dict[str, list[Stepped]] = {}
        self.notice_s, self.outage_s = timing.detect_s, timing.outage_s
        self._fleet, self._time, self._timing = fleet, time, timing
        self._members = {member.name: member for member in fleet.members}
        self._shards = len(fleet.shards or (fleet.syncer_region,))
        self._ready_at: dict[str, float] = {}  # by learner: its hardware stands still until then

    def is_warm(self, name: str, incarnation: int) -> bool:
        """Whether an incarnation is compiled and holds the first versions when it is asked for."""
        return self._fleet.warm and incarnation == 1 and not self._members[name].since_s

    def startup(self, learner: LearnerLoop) -> tuple[float, float]:
        if self.is_warm(*learner.key):
            return 0.0, 0.0
        return self._timing.import_s(), self._timing.compile_s()

    def work(self, seconds: float, learner: LearnerLoop, happen: Callable[..., Any], *args: Any) -> None:
        self._time.reach(seconds, learner, happen, *args)

    def step(self, learner: LearnerLoop, number: int) -> tuple[float, int]:
        name = learner.name
        member, begins = self._members[name], max(self._time.now, self._ready_at.get(name, 0.0))
        sample = member.step_model.sample(begins)
        delay_s = learner.effects.delay_s() if learner.effects is not None else 0.0
        done = begins + sample.seconds + delay_s
        if sample.stall_s:
            self._ready_at[name] = done + sample.stall_s
        tokens = member.tokens if sample.share == 1.0 else round(sample.share * member.tokens)
        self.steps.setdefault(name, []).append(Stepped(begins, done, sample.share, tokens))
        return done, tokens

    def died(self, learner: LearnerLoop) -> None:
        """A step under way is lost."""
        steps = self.steps.get(learner.name)
        if steps and steps[-1].ended > self._time.now:
            steps.pop()

    def merge_s(self, fragment: int, payloads: int) -> float:
        return self._timing.merge_s(self._elements(fragment), payloads)

    def append_s(self, fragment: int) -> float:
        """Of one commit."""
        return self._timing.append_s(self._elements(fragment))

    def _elements(self, fragment: int) -> int:
        """On each shard."""
        return self._fleet.fragments[fragment].size // self._shards

    def place(self, name: str, incarnation: int, happen: Callable[..., Any], *args: Any) -> None:
        replace_s = self._timing.replace_s() if incarnation > 1 else 0.0
        self._time.after(replace_s, happen, *args)

    def retry_s(self) -> float:
        return 0.0

    tell_s = begin_s = reattach_s = retry_s  # the supervisor's messages take no time
