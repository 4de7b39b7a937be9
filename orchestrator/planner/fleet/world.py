"""Simulates a fleet with the production machines in orchestrator/simulation, and measures the outcome.

What a fragment holds is not followed. The syncer never dies here. Tens of thousands of events a second, whatever the
size of the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from learners.protocol.learner import Learner
from orchestrator.planner.fleet.description import Fleet
from orchestrator.planner.fleet.ports import FleetDurations, FleetNetwork, PlannedFaults, Stepped
from orchestrator.simulation.context import Observer, SimContext, SimGroup, SimLearner
from orchestrator.simulation.learner_process import LearnerProcess
from orchestrator.simulation.process import Host
from orchestrator.simulation.supervisor import Supervisor
from orchestrator.simulation.syncer_process import SyncerProcess
from orchestrator.simulation.timeline import Timeline
from outer.numeric.formats import uplinks
from outer.protocol.events_effects import Merge, Merged, Publish
from outer.protocol.facts import Committed
from outer.protocol.syncer import Syncer


class CountedCommit(NamedTuple):
    """One commit, as far as it is counted."""

    at: float  # virtual seconds
    participants: int  # with a weight above 0
    tokens_committed: int  # with it


class World:
    """One per simulation. `commits` are in order; `steps` are by learner."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.time = fleet, Timeline()
        self.commits: list[CountedCommit] = []
        self.durations = FleetDurations(fleet, self.time)
        self.network = FleetNetwork(fleet, self.time)
        faults = PlannedFaults(fleet, self.time)
        self.context = SimContext(
            time=self.time,
            network=self.network,
            durations=self.durations,
            sync=fleet.sync,
            specs={
                member.name: SimLearner(Host(member.pool), member.batch_size, member.pool, member.region or None)
                for member in fleet.members
            },
            manifest={},
            model=CountingModel(),
            make_learner=self._learner,
            make_values=lambda key: NoValues(),
            make_journal=lambda syncer, durable, refused: TimedJournal(self, syncer),
            faults=faults,
            observer=CommitCounter(self.time, self.commits),
            recording=fleet.recorded,
            fetches_newest=True,
            fetchers=len(fleet.fragments),  # links are what limits them
        )
        self.supervisor = Supervisor(self.context, self._first, self._begin_epoch)
        faults.arm(self.supervisor)

    @property
    def learners(self) -> dict[str, LearnerProcess]:
        """The newest incarnation of each."""
        return self.supervisor.learners

    @property
    def steps(self) -> dict[str, list[Stepped]]:
        return self.durations.steps

    @property
    def _first(self) -> list[str]:
        """Learners that are wanted from the start."""
        return [member.name for member in self.fleet.members if member.present]

    def _learner(self, name: str, incarnation: int) -> Learner:
        fleet = self.fleet
        return Learner(
            name=name,
            incarnation=incarnation,
            config=fleet.sync,
            fragments=len(fleet.fragments),
            batch_size=self.context.specs[name].batch_size,
            span_steps=fleet.span_steps,
            start_s=fleet.timing.start_s,
            ahead_s=fleet.ahead_s,
        )

    def _begin_epoch(self, epoch: int) -> SyncerProcess:
        fleet = self.fleet
        batch_sizes = {member.name: member.batch_size for member in fleet.members}
        machine = Syncer(
            epoch=epoch,
            config=fleet.sync,
            fragments=fleet.fragments,
            learners={name: batch_sizes[name] for name in self._first},
            quorum=fleet.quorum,
            span_steps=fleet.span_steps,
            budget=fleet.budget,
            manifest={},
            ahead_s=fleet.ahead_s,
            uplinks=uplinks(fleet.sync, fleet.fragments),
        )
        values = [Number(number, fragment) for fragment, number in enumerate(machine.versions)]
        return SyncerProcess(self.context, Host("syncer"), epoch, machine, values, self.supervisor.on_syncer_death)

    def run(self, until_s: float, warm_up_s: float = 0.0) -> ForecastOutcome:
        """Run for so long, or until the budget is reached. Figures leave out the warm-up. Called once."""
        time, supervisor = self.time, self.supervisor
        supervisor.start()
        finished_at = None
        while time.now < until_s and not supervisor.over:
            time.run(min(until_s, time.now + self.fleet.look_s))
            if finished_at is None and supervisor.syncer is not None and supervisor.syncer.machine.finished:
                finished_at = supervisor.syncer.machine.moved_at
        stop = time.now if finished_at is None else finished_at
        return _outcome(self, warm_up_s, stop, finished_at)

    def durable(self, group: SimGroup) -> None:
        """A group is in the journal."""
        if self.context.recording:
            self.context.log.append(group)


class CommitCounter(Observer):
    """Appends every commit to `commits`, unless an earlier epoch has recorded it."""

    def __init__(self, time: Timeline, commits: list[CountedCommit]) -> None:
        self._time, self._commits = time, commits

    def emitted(self, syncer: SyncerProcess, fact: Any) -> None:
        if type(fact) is Committed and fact.epoch == syncer.epoch:
            weighty = sum(one.weight > 0.0 for one in fact.participants)
            self._commits.append(CountedCommit(self._time.now, weighty, fact.tokens_committed))


class Number(NamedTuple):
    """A version without its value."""

    number: int
    fragment: int


class CountingModel:
    """Merges nothing into the next version."""

    def merged(self, syncer: SyncerProcess, effect: Merge) -> Merged:
        return Merged(effect.syncer_step, Number(effect.syncer_step, effect.fragment), "", 1.0, True)

    def published(self, syncer: SyncerProcess, effect: Publish) -> Any:
        return effect.proposal


class NoValues:
    """A learner's fragments, which hold nothing."""

    def __init__(self) -> None:
        self.step = 0

    def copies(self, fragments: tuple[int, ...]) -> dict[int, Any]:
        return dict.fromkeys(fragments)

    def read(self, contribution: Any) -> None: ...
    def apply(self, effect: Any) -> None: ...
    def packed(self, poisoned: bool) -> None: ...
    def gave(self, step: int, payload: Any) -> None: ...
    def inherit(self, state: Any) -> None: ...


class TimedJournal:
    """Commits take time, in order. Whatever else waits is written along with them."""

    def __init__(self, world: World, syncer: SyncerProcess) -> None:
        self._world, self._syncer = world, syncer
        self._group: SimGroup | None = None  # under way

    def put(self, group: SimGroup) -> None:
        world, self._group = self._world, group
        commits = [each.record for each in group.records if isinstance(each.record, Committed)]
        takes_s = sum(world.durations.append_s(commit.fragment) for commit in commits)
        world.time.reach(takes_s, self._syncer, self._land, group)

    def _land(self, group: SimGroup) -> None:
        self._group = None
        self._world.durable(group)
        self._syncer.on_durable(group)

    def finish(self, group: SimGroup) -> None:
        for each in (self._group, group):
            if each is not None:
                self._world.durable(each)
        self._group = None

    def crash(self) -> None:
        """The group under way is lost with its process."""


# ------------------------------------------------------------------ the outcome


@dataclass(frozen=True)
class ForecastOutcome:
    """Figures of one simulation. Goodput is of the learners present from the start, participation of all members."""

    seconds: float  # from the end of the warm-up
    goodput: float  # full steps' time stepped; one with slices missing counts in proportion
    uptime: float  # share of the time in which at least one learner stepped
    participation: float  # contributions of weight > 0 / (commits x learners); NaN without a commit
    commits: int
    merges_per_step: float  # commits for each step of a learner, on average
    steps: dict[str, int]  # by learner
    useful_s: dict[str, float]  # of stepping, by learner
    tokens_committed: int
    finished_at: float | None  # when the budget was reached


def simulate(fleet: Fleet, until_s: float, warm_up_s: float = 0.0) -> tuple[ForecastOutcome, World]:
    """Simulate a fleet in a world of its own, as `World.run` does."""
    world = World(fleet)
    return world.run(until_s, warm_up_s), world


def _outcome(world: World, start: float, stop: float, finished_at: float | None) -> ForecastOutcome:
    seconds = max(0.0, stop - start)
    steps = {name: [_cut(step, start, stop) for step in all_] for name, all_ in world.steps.items()}
    wanted_s = sum(seconds for member in world.fleet.members if member.present)
    useful_s = {name: sum(step.share * (step.ended - step.began) for step in each) for name, each in steps.items()}
    done = {name: [step for step in each if start < step.ended <= stop] for name, each in world.steps.items()}
    counted = {name: len(each) for name, each in done.items()}
    merges = [commit for commit in world.commits if start <= commit.at <= stop]
    before = max((merge.tokens_committed for merge in world.commits if merge.at < start), default=0)
    possible = len(merges) * len(world.fleet.members)
    mean_steps = sum(counted.values()) / max(1, len(world.fleet.members))
    return ForecastOutcome(
        seconds=seconds,
        goodput=sum(useful_s.values()) / wanted_s if wanted_s else math.nan,
        uptime=covered_s([span for each in steps.values() for span in _spans(each)]) / seconds if seconds else math.nan,
        participation=sum(merge.participants for merge in merges) / possible if possible else math.nan,
        commits=len(merges),
        merges_per_step=len(merges) / mean_steps if mean_steps else math.nan,
        steps=counted,
        useful_s=useful_s,
        tokens_committed=merges[-1].tokens_committed - before if merges else 0,
        finished_at=finished_at,
    )


def _cut(step: Stepped, start: float, stop: float) -> Stepped:
    """The part of it that lies in the window."""
    began, ended = max(start, step.began), min(stop, step.ended)
    return step._replace(began=began, ended=max(began, ended))


def _spans(steps: Sequence[Stepped]) -> list[tuple[float, float]]:
    """The intervals in which a learner was stepping: steps that follow each other without a pause are one."""
    spans: list[tuple[float, float]] = []
    for step in steps:
        if spans and step.began <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], step.ended))
        else:
            spans.append((step.began, step.ended))
    return spans


def covered_s(spans: Sequence[tuple[float, float]]) -> float:
    """The length of their union."""
    total, reached = 0.0, -math.inf
    for began, ended in sorted(spans):
        total += max(0.0, ended - max(began, reached))
        reached = max(reached, ended)
    return total
