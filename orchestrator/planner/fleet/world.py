"""Simulates a fleet with the production machines in orchestrator/simulation, and measures the outcome.

How long things take, what crosses the links, who dies and who comes is as the fleet's description says. A link carries
one transfer after the other: in sum it moves what fair sharing would; only the order differs. Sizes are in bytes. What
a fragment holds is not followed. The syncer never dies here. Tens of thousands of events a second, whatever the size of
the model.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappush
from typing import Any, Literal, NamedTuple

from learners.protocol.learner import Learner
from orchestrator.planner.fleet.description import NOTHING, Fleet, FleetFault, FleetLink
from orchestrator.planner.sizing.rates import encode_s
from orchestrator.planner.sizing.traffic import DOWN_BYTES, down_bytes
from orchestrator.simulation.context import Faults, SimContext, SimGroup, SimLearner
from orchestrator.simulation.learner_loop import LearnerLoop
from orchestrator.simulation.learner_process import LearnerProcess
from orchestrator.simulation.process import Host, Process
from orchestrator.simulation.supervisor import Supervisor
from orchestrator.simulation.syncer_process import SyncerProcess
from orchestrator.simulation.timeline import Timeline
from outer.numeric.formats import uplinks
from outer.protocol.events_effects import Merge, Merged, Publish
from outer.protocol.facts import Committed
from outer.protocol.link_ladder import Rung
from outer.protocol.messages import JOINING
from outer.protocol.syncer import Syncer

EXIT_S = 0.05
FREE = FleetLink()
PIECES = 64  # in which a learner's state is sent


# ------------------------------------------------------------------ durations


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
        self.look_s, self.exit_s, self.end_s, self.pack_s = fleet.look_s, 0.0, EXIT_S, 0.0
        self.steps: dict[str, list[Stepped]] = {}
        self.notice_s = timing.detect_s
        # The supervisor's messages take no time, and the syncer never dies.
        self.outage_s = self.retry_s = self.tell_s = self.begin_s = self.reattach_s = NOTHING
        self._fleet, self._time, self._timing = fleet, time, timing
        self._members = {member.name: member for member in fleet.members}
        self._ready_at: dict[str, float] = {}  # by learner: its hardware stands still until then

    def is_warm(self, name: str, incarnation: int) -> bool:
        """True if an incarnation is compiled and holds the first versions when it is asked for."""
        return incarnation == 1 and self._members[name].present

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
        done = begins + sample.seconds
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
        return self._timing.merge_s(self._fleet.fragments[fragment].size, payloads)

    def place(self, name: str, incarnation: int, happen: Callable[..., Any], *args: Any) -> None:
        replace_s = self._timing.replace_s() if incarnation > 1 else 0.0
        self._time.after(replace_s, happen, *args)


# ------------------------------------------------------------------ network


class LinkNetwork:
    """`moved`: bytes that have been sent over each link."""

    def __init__(self, links: Mapping[tuple[str, str], FleetLink]) -> None:
        self.moved: Counter[tuple[str, str]] = Counter()
        self._links = links
        self._free_at: dict[str | tuple[str, str], float] = {}

    def latency_s(self, source: str, target: str) -> float:
        """Seconds for a small message."""
        return self._links.get((source, target), FREE).latency_s

    def carry(self, now: float, size: float, source: str, target: str) -> float:
        """Send so many bytes now; returns when the last of them is there, in seconds of the same clock."""
        pair = (source, target)
        link = self._links.get(pair, FREE)
        self.moved[pair] += round(size)
        way = link.pipe or pair
        begins_at = max(now, self._free_at.get(way, 0.0))
        gone_at = begins_at + 8.0 * size / link.bits
        self._free_at[way] = gone_at
        return gone_at + link.latency_s


class Way(NamedTuple):
    """From one process to another. `learner` is the end that is no syncer, or the giver."""

    kind: Literal["up", "down", "peer"]  # down: a version comes once for all learners of another region
    learner: LearnerProcess
    source: str
    target: str
    latency_s: float


class FleetNetwork:
    """The links between a fleet's processes."""

    def __init__(self, fleet: Fleet, time: Timeline) -> None:
        self.state_size = fleet.state_bytes
        self.regions = LinkNetwork(fleet.links)
        self._fleet, self._time, self._syncer = fleet, time, fleet.syncer_region
        self._region = {member.name: member.region for member in fleet.members}
        self._warm = {member.name for member in fleet.members if member.present}
        self._here: dict[tuple[str, int], tuple[int, float]] = {}  # by region, fragment: a version, when it is there
        self._up = uplinks(fleet.sync, fleet.fragments)
        self._down_bytes = down_bytes(fleet.sync, fleet.fragments)
        self._whole = DOWN_BYTES * sum(each.size for each in fleet.fragments) / sum(self._down_bytes)

    def up_size(self, fragment: int, codec: str) -> float:
        return self._up.bytes(Rung(codec), fragment)

    def down_size(self, fragment: int) -> float:
        return self._down_bytes[fragment]

    def links(self, learner: LearnerProcess) -> tuple[Way, Way]:
        here, there = self._region[learner.name], self._syncer
        return self._way("up", learner, here, there), self._way("down", learner, there, here)

    def peer_links(self, one: LearnerProcess, other: LearnerProcess) -> tuple[Way, Way]:
        here, there = self._region[one.name], self._region[other.name]
        return self._way("peer", one, here, there), self._way("peer", other, there, here)

    def _way(self, kind: Literal["up", "down", "peer"], learner: LearnerProcess, source: str, target: str) -> Way:
        return Way(kind, learner, source, target, self.regions.latency_s(source, target))

    def carry(self, way: Way, size: float, target: Process, happen: Callable[..., Any], *args: Any) -> int:
        time = self._time
        if not size or args[0] is None:  # it has no such version
            heappush(time.queue, (time.now + way.latency_s, time.number(), target, happen, args))
        elif way.kind == "up":
            made_at = time.now + encode_s(self._fleet.sync.codec, size)
            there_at = self.regions.carry(made_at, size, way.source, way.target)
            time.reach(there_at - time.now, target, happen, *args)
        elif way.kind == "down":
            self._publish(way, size, target, happen, args)
        else:
            self._send_piece(way, size / PIECES, PIECES, target, happen, args)
        return 1

    def _publish(
        self, way: Way, size: float, target: Process, happen: Callable[..., Any], args: tuple[Any, ...]
    ) -> None:
        learner, time = way.learner, self._time
        if learner.machine.phase == JOINING and learner.incarnation == 1 and learner.name in self._warm:
            time.reach(0.0, target, happen, *args)  # it holds the first versions
            return
        version, (there, there_at) = args[0], self._here.get((way.target, args[0].fragment), (-1, 0.0))
        if way.target in ("", self._syncer) or version.number > there:
            size *= self._whole if learner.machine.phase == JOINING else 1.0  # it holds no version before
            there_at = self.regions.carry(time.now, size, way.source, way.target)
            self._here[way.target, version.fragment] = version.number, there_at
        time.reach(max(0.0, there_at - time.now), target, happen, *args)

    def _send_piece(
        self, way: Way, size: float, left: int, target: Process, happen: Callable[..., Any], args: tuple[Any, ...]
    ) -> None:
        """Piece by piece, so that fragments on the same link get their turn in between."""
        if not target.alive:
            return
        time, learner = self._time, way.learner
        there_at = self.regions.carry(time.now, size, way.source, way.target)
        if left > 1:  # the next leaves as soon as this one has left: the latency counts once
            wait_s = there_at - way.latency_s - time.now
            time.reach(wait_s, learner, self._send_piece, way, size, left - 1, target, happen, args)
        else:
            time.reach(there_at - time.now, target, happen, *args)


# ------------------------------------------------------------------ faults


class PlannedFaults(Faults):
    """Deaths and comings that the description plans, and random deaths."""

    def __init__(self, fleet: Fleet, time: Timeline) -> None:
        self._fleet, self._time = fleet, time
        self._mtbf_s = {member.name: member.mtbf_s for member in fleet.members}

    def arm(self, supervisor: Supervisor) -> None:
        """Schedule what is planned."""
        self._supervisor = supervisor
        for fault in self._fleet.faults:
            self._time.after(fault.at_s, self._inject, fault)

    def started(self, learner: LearnerProcess) -> None:
        death_s = self._fleet.death(self._mtbf_s[learner.name])
        if not math.isinf(death_s):
            self._time.reach(death_s, learner, self._supervisor.crash, learner.name)

    def _inject(self, fault: FleetFault) -> None:
        learner = self._supervisor.learners.get(fault.learner)
        if fault.kind == "join":
            self._supervisor.want(fault.learner)
        elif fault.kind == "leave":
            self._supervisor.unwant(fault.learner)
        elif learner is not None and learner.alive:
            self._supervisor.crash(fault.learner)


# ------------------------------------------------------------------ the world


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
        self.steps = self.durations.steps
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
        for fact in (each.record for each in group.records):
            if isinstance(fact, Committed):
                weighty = sum(one.weight > 0.0 for one in fact.participants)
                self.commits.append(CountedCommit(self.time.now, weighty, fact.tokens_committed))
        if self.context.recording:
            self.context.log.append(group)


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
        fleet, self._group = self._world.fleet, group
        commits = [each.record for each in group.records if isinstance(each.record, Committed)]
        takes_s = sum(fleet.timing.append_s(fleet.fragments[commit.fragment].size) for commit in commits)
        self._world.time.reach(takes_s, self._syncer, self._land, group)

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
        uptime=covered_s([(step.began, step.ended) for each in steps.values() for step in each]) / seconds
        if seconds
        else math.nan,
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


def covered_s(spans: Sequence[tuple[float, float]]) -> float:
    """The length of their union."""
    total, reached = 0.0, -math.inf
    for began, ended in sorted(spans):
        total += max(0.0, ended - max(began, reached))
        reached = max(reached, ended)
    return total
