"""The ports of a fleet's simulation: how long things take, what crosses the links, who dies and who comes.

All as the fleet's description says. A link carries one transfer after the other: in sum it moves what fair sharing
would; only the order differs. Sizes are in bytes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from heapq import heappush
from typing import Any, NamedTuple

from orchestrator.planner.fleet.description import Fleet, FleetFault, FleetLink
from orchestrator.planner.sizing.rates import encode_s
from orchestrator.planner.sizing.traffic import DOWN_BYTES, down_bytes
from orchestrator.simulation.context import Faults
from orchestrator.simulation.learner_loop import LearnerLoop
from orchestrator.simulation.learner_process import LearnerProcess
from orchestrator.simulation.process import Process
from orchestrator.simulation.supervisor import Supervisor
from orchestrator.simulation.timeline import Timeline
from outer.numeric.formats import uplinks
from outer.protocol.link_ladder import Rung
from outer.protocol.messages import JOINING

EXIT_S = 0.05
FREE = FleetLink()
PIECES = 64  # in which a learner's state is sent


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

    def append_s(self, fragment: int) -> float:
        """Seconds to append one commit."""
        return self._timing.append_s(self._fleet.fragments[fragment].size)

    def place(self, name: str, incarnation: int, happen: Callable[..., Any], *args: Any) -> None:
        replace_s = self._timing.replace_s() if incarnation > 1 else 0.0
        self._time.after(replace_s, happen, *args)

    def retry_s(self) -> float:
        return 0.0

    # The supervisor's messages take no time, and the syncer never dies.
    outage_s = tell_s = begin_s = reattach_s = retry_s


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


class Way:
    """From one process to another. `learner` is the end that is no syncer, or the giver."""

    __slots__ = ("latency_s", "learner", "source", "target")

    def __init__(self, learner: LearnerProcess, source: str, target: str, latency_s: float) -> None:
        self.learner, self.source, self.target, self.latency_s = learner, source, target, latency_s


class Up(Way):
    """From a learner to the syncer."""


class Down(Way):
    """From the syncer to a learner. A version comes once for all learners of another region."""


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
        up = Up(learner, here, there, self.regions.latency_s(here, there))
        return up, Down(learner, there, here, self.regions.latency_s(there, here))

    def peer_links(self, one: LearnerProcess, other: LearnerProcess) -> tuple[Way, Way]:
        here, there = self._region[one.name], self._region[other.name]
        way = Way(one, here, there, self.regions.latency_s(here, there))
        return way, Way(other, there, here, self.regions.latency_s(there, here))

    def carry(self, way: Way, size: float, target: Process, happen: Callable[..., Any], *args: Any) -> int:
        time = self._time
        if not size or args[0] is None:  # it has no such version
            heappush(time.queue, (time.now + way.latency_s, time.number(), target, happen, args))
        elif type(way) is Up:
            made_at = time.now + encode_s(self._fleet.sync.codec, size)
            there_at = self.regions.carry(made_at, size, way.source, way.target)
            time.reach(there_at - time.now, target, happen, *args)
        elif type(way) is Down:
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
