"""A fleet's network: bytes between regions, and the links between its processes.

A link carries one transfer after the other. In sum it moves what fair sharing would; only the order differs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from heapq import heappush
from typing import Any

from orchestrator.planner.fleet.description import Fleet, Link
from orchestrator.planner.sizing.rates import encode_s
from orchestrator.planner.sizing.traffic import DOWN_BYTES, down_bytes
from orchestrator.simulation.learner_process import LearnerProcess
from orchestrator.simulation.process import Process
from orchestrator.simulation.timeline import Timeline
from outer.numeric.uplinks import uplinks
from outer.protocol.links.adapting import Rung
from outer.protocol.messages import JOINING

FREE = Link()
PIECES = 64  # in which a learner's state is sent


class Network:
    """`moved`: bytes that have been sent over each link."""

    def __init__(self, links: Mapping[tuple[str, str], Link]) -> None:
        self.moved: Counter[tuple[str, str]] = Counter()
        self._links = links
        self._free_at: dict[str | tuple[str, str], float] = {}

    def latency_s(self, source: str, target: str) -> float:
        """Of a small message."""
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

    def scatter(self, now: float, size: float, source: str, targets: Sequence[str]) -> float:
        """Send an equal part to each; returns when all of it is there."""
        return max(self.carry(now, size / len(targets), source, target) for target in targets)

    def gather(self, now: float, size: float, sources: Sequence[str], target: str) -> float:
        """Have an equal part sent by each; returns when all of it is there."""
        return max(self.carry(now, size / len(sources), source, target) for source in sources)


class Way:
    """From one process to another. `learner` is the end whose own link may be down."""

    __slots__ = ("latency_s", "learner", "source", "target")

    def __init__(self, learner: LearnerProcess, source: str, target: str, latency_s: float) -> None:
        self.learner, self.source, self.target, self.latency_s = learner, source, target, latency_s


class Up(Way):
    """From a learner to the syncer. A contribution goes to every shard."""


class Down(Way):
    """From the syncer to a learner. A version comes from every shard, once for all learners of another region."""


class FleetNetwork:
    """Sizes are in bytes."""

    def __init__(self, fleet: Fleet, time: Timeline) -> None:
        self.state_size = fleet.state_bytes
        self.regions = Network(fleet.links)
        self._fleet, self._time, self._syncer = fleet, time, fleet.syncer_region
        self._shards = fleet.shards or (fleet.syncer_region,)
        self._region = {member.name: member.region for member in fleet.members}
        self._warm = {member.name for member in fleet.members if fleet.warm and not member.since_s}
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
        time, learner = self._time, way.learner
        down_s = learner.link_down_s if learner.effects is not None else 0.0
        if not size or args[0] is None:  # it has no such version
            heappush(time.queue, (time.now + (down_s + way.latency_s), time.number(), target, happen, args))
        elif type(way) is Up:
            made_at = time.now + down_s + encode_s(self._fleet.sync.codec, size)
            there_at = self.regions.scatter(made_at, size, way.source, self._shards)
            time.reach(there_at - time.now, target, happen, *args)
        elif type(way) is Down:
            self._publish(way, size, time.now + down_s, target, happen, args)
        else:
            self._send_piece(way, size / PIECES, PIECES, target, happen, args)
        return 1

    def _publish(
        self, way: Way, size: float, at: float, target: Process, happen: Callable[..., Any], args: tuple[Any, ...]
    ) -> None:
        learner, time = way.learner, self._time
        if learner.machine.phase == JOINING and learner.incarnation == 1 and learner.name in self._warm:
            time.reach(0.0, target, happen, *args)  # it holds the first versions
            return
        version, (there, there_at) = args[0], self._here.get((way.target, args[0].fragment), (-1, 0.0))
        if way.target in ("", *self._shards) or version.number > there:
            size *= self._whole if learner.machine.phase == JOINING else 1.0  # it holds no version before
            there_at = self.regions.gather(at, size, self._shards, way.target)
            self._here[way.target, version.fragment] = version.number, there_at
        time.reach(max(at, there_at) - time.now, target, happen, *args)

    def _send_piece(
        self, way: Way, size: float, left: int, target: Process, happen: Callable[..., Any], args: tuple[Any, ...]
    ) -> None:
        """Piece by piece, so that fragments on the same link get their turn in between."""
        if not target.alive:
            return
        time, learner = self._time, way.learner
        there_at = self.regions.carry(time.now + learner.link_down_s, size, way.source, way.target)
        if left > 1:  # the next leaves as soon as this one has left: the latency counts once
            wait_s = there_at - way.latency_s - time.now
            time.reach(wait_s, learner, self._send_piece, way, size, left - 1, target, happen, args)
        else:
            time.reach(there_at - time.now, target, happen, *args)
