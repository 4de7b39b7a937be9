"""Forecasts a fleet: a virtual run of the production shells with calm ports and the durations of its description.

What crosses the links and who dies is the description's, too. A link carries one transfer after the other:
in sum it moves what fair sharing would; only the order differs. Sizes are in bytes. What a fragment holds is not
followed. The syncer never dies here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from learners.config import DataConfig
from orchestrator.planner.fleet.description import NOTHING, Fleet, FleetLink
from orchestrator.planner.sizing.rates import encode_s
from orchestrator.planner.sizing.traffic import DOWN_BYTES, down_bytes
from orchestrator.simulation.context import Faults, Key, Model, Observer, SimContext, SimLearner, SimProposal
from orchestrator.simulation.learner_process import LearnerProcess
from orchestrator.simulation.objects import MemoryObjects
from orchestrator.simulation.orchestrator_process import VirtualCluster
from orchestrator.simulation.peers import Network
from orchestrator.simulation.process import Host, Process
from orchestrator.simulation.syncer_process import SyncerProcess
from orchestrator.simulation.timeline import Timeline
from outer.config import OuterConfig
from outer.journal.groups import Logged
from outer.numeric.formats import uplinks
from outer.protocol.facts import Committed
from outer.protocol.fragments import Fragment
from outer.protocol.manifest import manifest
from outer.protocol.messages import JOINING
from outer.spec import SyncerSpec

EXIT_S = 0.05
FREE = FleetLink()
FETCHING = "fetch", "holds", "received"
PIECES = 64  # in which a learner's state is sent


# ------------------------------------------------------------------ durations


def warm(key: Key) -> bool:
    """Whether an incarnation is compiled and holds the first versions when it is asked for: each learner's first."""
    return key[1] == 1


class Stepped(NamedTuple):
    """One step, in virtual seconds, and what it is worth. The last one of a learner may be in flight."""

    began: float
    ended: float
    share: float


class FleetDurations:
    """`steps` are all steps so far, by learner, in order."""

    def __init__(self, fleet: Fleet, time: Timeline) -> None:
        timing = fleet.timing
        self.backoff_s, self.hang_s, self.start_s = timing.backoff_s, timing.hang_s, timing.start_s
        self.unreachable_s = timing.unreachable_s
        self.look_s, self.end_s = fleet.look_s, EXIT_S
        self.steps: dict[str, list[Stepped]] = {}
        self.notice_s = timing.detect_s
        self.outage_s = self.begin_s = NOTHING  # the syncer never dies
        self._fleet, self._time, self._timing = fleet, time, timing
        self._members = {member.name: member for member in fleet.members}
        self._ready_at: dict[str, float] = {}  # by learner: its hardware stands still until then

    def job(self, kind: str, func: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[float, float]:
        timing, sizes, name = self._timing, self._fleet.fragments, getattr(func, "__name__", "")
        seconds = 0.0
        if kind == "journal" and name == "write":
            records = [item.entry.record for item in arguments[0] if isinstance(item, Logged)]
            seconds = sum(timing.append_s(sizes[each.fragment].size) for each in records if isinstance(each, Committed))
        elif name == "propose":
            seconds = timing.merge_s(sizes[arguments[0]].size, len(arguments[1]))
        elif name in ("load", "compile") and not warm(func.__self__.key):  # type: ignore[attr-defined]
            seconds = timing.import_s() if name == "load" else timing.compile_s()
        return seconds, 0.0

    def step_until(self, learner: LearnerProcess, begins_at: float) -> float:
        name = learner.name
        member, begins_at = self._members[name], max(begins_at, self._ready_at.get(name, 0.0))
        sample = member.step_model.sample(begins_at)
        done = begins_at + sample.seconds
        if sample.stall_s:
            self._ready_at[name] = done + sample.stall_s
        self.steps.setdefault(name, []).append(Stepped(begins_at, done, sample.share))
        return done

    def died(self, learner: LearnerProcess) -> None:
        """A step in flight is lost."""
        steps = self.steps.get(learner.name)
        if steps and steps[-1].ended > self._time.now:
            steps.pop()

    def place_s(self, again: bool) -> float:
        return self._timing.replace_s() if again else 0.0


# ------------------------------------------------------------------ network


class LinkNetwork:
    """`moved`: bytes that have been sent over each link."""

    def __init__(self, links: Mapping[tuple[str, str], FleetLink]) -> None:
        self.moved: Counter[tuple[str, str]] = Counter()
        self._links = links
        self._free_at: dict[tuple[str, str], float] = {}

    def latency_s(self, source: str, target: str) -> float:
        """Seconds for a small message."""
        return self._links.get((source, target), FREE).latency_s

    def carry(self, now: float, size: float, source: str, target: str) -> float:
        """Send so many bytes now; returns when the last of them is there, in seconds of the same clock."""
        pair = (source, target)
        link = self._links.get(pair, FREE)
        self.moved[pair] += round(size)
        begins_at = max(now, self._free_at.get(pair, 0.0))
        gone_at = begins_at + 8.0 * size / link.bits
        self._free_at[pair] = gone_at
        return gone_at + link.latency_s


class FleetNetwork(Network):
    """The links between a fleet's processes. What is small takes their latency, and nothing is lost."""

    def __init__(self, fleet: Fleet, time: Timeline) -> None:
        self.regions = LinkNetwork(fleet.links)
        self._fleet, self._time = fleet, time
        self._region = {member.name: member.region for member in fleet.members}
        self._up = uplinks(fleet.sync, fleet.fragments)
        self._down_bytes = down_bytes(fleet.sync, fleet.fragments)
        self._whole = DOWN_BYTES * sum(each.size for each in fleet.fragments) / sum(self._down_bytes)

    def carry(
        self, source: Process, target: Process, method: str, answer: Any, happen: Callable[..., Any], *args: Any
    ) -> int:
        here, there = (self._region.get(each.key[0], self._fleet.syncer_region) for each in (source, target))
        if method in FETCHING and any(map(self._begins, (source, target))):
            self._time.reach(0.0, target, happen, *args)  # it holds the first versions
            return 1
        size = self._size(target, method, answer) if isinstance(answer, tuple) else 0.0
        if method == "donate" and size:
            self._send_piece(source, here, there, size / PIECES, PIECES, target, happen, args)
        elif size:
            coding_s = encode_s(self._fleet.sync.codec, size) if method == "read" else 0.0
            there_at = self.regions.carry(self._time.now + coding_s, size, here, there)
            self._time.reach(there_at - self._time.now, target, happen, *args)
        else:
            self._time.reach(self.regions.latency_s(here, there), target, happen, *args)
        return 1

    def _size(self, target: Process, method: str, answer: tuple[Any, ...]) -> float:
        if method == "read":
            return self._up.bytes(answer[0].codec, answer[0].fragment)
        if method == "donate":
            return self._fleet.state_bytes
        if method not in ("fetch", "received"):
            return 0.0
        size = self._down_bytes[int(answer[2][0])]
        return size if _phase(target) != JOINING else self._whole * size  # it holds no version before

    def _begins(self, process: Process) -> bool:
        return _phase(process) == JOINING and warm(process.key)

    def _send_piece(
        self,
        source: Process,
        here: str,
        there: str,
        size: float,
        left: int,
        target: Process,
        happen: Callable[..., Any],
        args: tuple[Any, ...],
    ) -> None:
        """Piece by piece, so that fragments on the same link get their turn in between."""
        if not target.alive:
            return
        time = self._time
        there_at = self.regions.carry(time.now, size, here, there)
        if left > 1:  # the next leaves as soon as this one has left: the latency counts once
            wait_s = there_at - self.regions.latency_s(here, there) - time.now
            time.reach(wait_s, source, self._send_piece, source, here, there, size, left - 1, target, happen, args)
        else:
            time.reach(there_at - time.now, target, happen, *args)


def _phase(process: Process) -> str:
    return process.phase if isinstance(process, LearnerProcess) else ""


# ------------------------------------------------------------------ faults


class Deaths(Faults):
    """Each incarnation dies when the description says."""

    def __init__(self, fleet: Fleet, time: Timeline) -> None:
        self._fleet, self._time = fleet, time
        self._mtbf_s = {member.name: member.mtbf_s for member in fleet.members}

    def started(self, learner: LearnerProcess) -> None:
        death_s = self._fleet.death(self._mtbf_s[learner.name])
        if not math.isinf(death_s):
            self._time.reach(death_s, learner, learner.die)


# ------------------------------------------------------------------ the world


class CountedCommit(NamedTuple):
    """One commit, as far as it is counted."""

    at: float  # virtual seconds
    participants: int  # with a weight above 0
    tokens_committed: int  # with it


class Commits(Observer):
    """Counts them once they are durable."""

    def __init__(self) -> None:
        self.counted: list[CountedCommit] = []

    def emitted(self, syncer: SyncerProcess, fact: Any) -> None:
        if isinstance(fact, Committed):
            weighty = sum(one.weight > 0.0 for one in fact.participants)
            self.counted.append(CountedCommit(syncer.time.now, weighty, fact.tokens_committed))


class WholeLog(MemoryObjects):
    """Keeps what no segment has taken over: there are none."""

    def remove(self, name: str) -> None: ...


class World:
    """One per simulation. `commits` are in order; `steps` are by learner."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.time = fleet, Timeline()
        self.durations, self.network = FleetDurations(fleet, self.time), FleetNetwork(fleet, self.time)
        commits = Commits()
        self.steps, self.commits = self.durations.steps, commits.counted
        self.context = SimContext(
            time=self.time,
            network=self.network,
            durations=self.durations,
            sync=fleet.sync.model_copy(update={"fragments": len(fleet.fragments)}),
            data=DataConfig(span_steps=fleet.span_steps, ahead_s=fleet.ahead_s),
            specs={
                member.name: SimLearner(
                    Host(member.pool), member.batch_size, member.pool, member.region or None, member.tokens
                )
                for member in fleet.members
            },
            manifest=manifest({}, fleet.fragments, "", None),
            model=CountingModel(fleet.fragments),
            make_values=lambda key: NoValues(),
            store=WholeLog(),
            faults=Deaths(fleet, self.time),
            observer=commits,
        )
        context = self.context
        spec = SyncerSpec(
            epoch=0,
            sync=context.sync,
            outer=OuterConfig(),
            learners={member.name: member.batch_size for member in fleet.members},
            quorum=fleet.quorum,
            span_steps=fleet.span_steps,
            ahead_s=fleet.ahead_s,
            budget=fleet.budget,
            shared={},
            code="",
            store=context.store,
            region=fleet.syncer_region,
        )
        self.cluster = VirtualCluster(context, spec.learners, spec, Host("syncer"))

    @property
    def learners(self) -> dict[str, LearnerProcess]:
        """The newest incarnation of each."""
        return self.cluster.learners

    def run(self, until_s: float, warm_up_s: float = 0.0) -> ForecastOutcome:
        """Run for so long, or until the budget is reached. Figures leave out the warm-up. Called once."""
        time, cluster = self.time, self.cluster
        cluster.start()
        finished_at = None
        while time.now < until_s and not cluster.over:
            time.run(min(until_s, time.now + self.fleet.look_s))
            syncer = cluster.syncer
            if finished_at is None and syncer is not None and syncer.serves and syncer.machine.finished:
                finished_at = syncer.machine.moved_at
        stop = time.now if finished_at is None else finished_at
        outcome = _outcome(self, warm_up_s, stop, finished_at)
        time.close()  # only now: who is stopped takes back the step under way
        return outcome


# ------------------------------------------------------------------ values that nobody follows


class Number(NamedTuple):
    """A version without its value."""

    number: int


class CountingModel(Model):
    """Merges nothing into the next version. A value is the numbers of its fragment and version."""

    task: Mapping[str, Any] = {}

    def __init__(self, fragments: tuple[Fragment, ...]) -> None:
        self.fragments = fragments

    def origin(self, fragment: int) -> NDArray[Any]:
        return np.array([fragment, 0], np.float32)

    def received(self, theta: NDArray[Any]) -> Number:
        return Number(int(theta[1]))

    def merged(
        self, syncer: Any, fragment: int, version: int, base: NDArray[Any], payloads: Sequence[Any], weights: Any
    ) -> SimProposal:
        return SimProposal(fragment, [np.array([fragment, version], np.float32)])


class NoValues:
    """A learner's fragments, which hold nothing."""

    step = 0

    def copies(self, fragments: tuple[int, ...]) -> dict[int, Any]:
        return dict.fromkeys(fragments)

    def read(self, contribution: Any) -> None: ...
    def apply(self, effect: Any) -> None: ...
    def bases(self) -> tuple[()]: ...  # type: ignore[empty-body]
    def packed(self, poisoned: bool) -> None: ...
    def gave(self, step: int, payload: Any) -> None: ...
    def inherit(self, state: Any) -> None: ...


# ------------------------------------------------------------------ the outcome


@dataclass(frozen=True)
class ForecastOutcome:
    """Figures of one simulation. Goodput and participation are of all members."""

    seconds: float  # from the end of the warm-up
    goodput: float  # full steps' time stepped; one with slices missing counts in proportion
    uptime: float  # share of the time in which at least one learner stepped
    participation: float  # contributions of weight > 0 / (commits x learners); NaN without a commit
    commits: int
    steps: dict[str, int]  # by learner
    tokens_committed: int
    finished_at: float | None  # when the budget was reached
    round_steps: float | None  # inner steps of the median learner in its newest round


def simulate(fleet: Fleet, until_s: float, warm_up_s: float = 0.0) -> tuple[ForecastOutcome, World]:
    """Simulate a fleet in a world of its own, as `World.run` does."""
    world = World(fleet)
    return world.run(until_s, warm_up_s), world


def _outcome(world: World, start: float, stop: float, finished_at: float | None) -> ForecastOutcome:
    seconds = max(0.0, stop - start)
    steps = {name: [_cut(step, start, stop) for step in all_] for name, all_ in world.steps.items()}
    wanted_s = seconds * len(world.fleet.members)
    useful_s = sum(step.share * (step.ended - step.began) for each in steps.values() for step in each)
    done = {name: [step for step in each if start < step.ended <= stop] for name, each in world.steps.items()}
    counted = {name: len(each) for name, each in done.items()}
    merges = [commit for commit in world.commits if start <= commit.at <= stop]
    before = max((merge.tokens_committed for merge in world.commits if merge.at < start), default=0)
    possible = len(merges) * len(world.fleet.members)
    syncer = world.cluster.syncer
    rows = syncer.machine.view(world.time.now) if syncer is not None else []
    rounds = [row["round_steps"] for row in rows if row["round_steps"] is not None]
    return ForecastOutcome(
        seconds=seconds,
        goodput=useful_s / wanted_s if wanted_s else math.nan,
        uptime=covered_s([(step.began, step.ended) for each in steps.values() for step in each]) / seconds
        if seconds
        else math.nan,
        participation=sum(merge.participants for merge in merges) / possible if possible else math.nan,
        commits=len(merges),
        steps=counted,
        tokens_committed=merges[-1].tokens_committed - before if merges else 0,
        finished_at=finished_at,
        round_steps=median(rounds) if rounds else None,
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
