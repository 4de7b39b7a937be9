"""A hostile network: each message is delayed, and may be lost, doubled, overtaken, held back or slowed.

Each direction between two hosts is a link of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from heapq import heappush
from random import Random
from typing import Any

from chaos.simulation.profile import Options
from orchestrator.simulation.context import Trace
from orchestrator.simulation.learner_process import LearnerProcess
from orchestrator.simulation.process import Process
from orchestrator.simulation.timeline import Timeline
from outer.config import SyncConfig
from outer.numeric.formats import named
from outer.protocol.fragments import Fragment
from outer.protocol.link_ladder import Uplinks

CODECS = ("", "bf16", "int8")  # about half the size of the one before


def uplinks(sync: SyncConfig, fragments: Sequence[Fragment]) -> Uplinks:
    """The bytes of contributions, for the syncer."""
    sizes = tuple(tuple(named(codec or sync.codec).bytes(each.size) for each in fragments) for codec in CODECS)
    return Uplinks(CODECS, sizes)


class Link:
    """One direction between two hosts, and its present faults."""

    __slots__ = (
        "cuts",
        "delay_s",
        "doubled",
        "faulty",
        "held",
        "holding",
        "jitter_s",
        "latency_s",
        "latest",
        "lost",
        "name",
        "slow_kind",
        "slow_s",
        "target",
    )  # fmt: skip

    def __init__(self, source: str, target: str, latency_s: float, jitter_s: float) -> None:
        self.name, self.target = f"{source}>{target}", target
        self.latency_s, self.jitter_s = latency_s, jitter_s
        self.latest = 0.0  # arrival of what was sent before
        self.held: list[tuple[Process, Callable[..., Any], tuple[Any, ...]]] = []
        self.faulty = False
        self.cuts: list[str] = []  # the kinds of faults that cut it, while they do
        self.holding = False  # what is sent into a cut comes late; else never
        self.lost = self.doubled = 0.0  # share of messages
        self.delay_s = 0.0  # further delay, up to this
        self.slow_s = 0.0  # for each unit of size
        self.slow_kind = "slow_link"  # the fault that makes it so

    def update(self) -> None:
        """Note whether any fault is under way."""
        self.faulty = bool(self.cuts) or max(self.lost, self.doubled, self.delay_s, self.slow_s) > 0.0


class HostileNetwork:
    """Sizes are in fragments. `fault_counts` counts what faults did to messages."""

    def __init__(
        self, options: Options, time: Timeline, rng: Random, fault_counts: Counter[str], trace: Trace | None
    ) -> None:
        self.state_size = options.fragments
        self._links: dict[tuple[str, str], Link] = {}
        self._time, self._random, self._fault_counts, self._trace = time, rng.random, fault_counts, trace
        self._latency_s, self._jitter_s = options.latency_s, options.jitter_s

    def up_size(self, fragment: int, codec: str) -> float:
        return 0.5 ** CODECS.index(codec)

    def down_size(self, fragment: int) -> float:
        return 1.0

    def links(self, learner: LearnerProcess) -> tuple[Link, Link]:
        return self.link(learner.name, "syncer"), self.link("syncer", learner.name)

    def peer_links(self, one: LearnerProcess, other: LearnerProcess) -> tuple[Link, Link]:
        return self.link(one.name, other.name), self.link(other.name, one.name)

    def link(self, source: str, target: str) -> Link:
        if (source, target) not in self._links:
            self._links[source, target] = Link(source, target, self._latency_s, self._jitter_s)
        return self._links[source, target]

    def carry(self, link: Link, size: float, target: Process, happen: Callable[..., Any], *args: Any) -> int:
        """Bring a message to a process. Returns how many copies are on their way."""
        delay_s = link.latency_s + link.jitter_s * self._random()
        if not link.faulty:
            time = self._time
            heappush(time.queue, (time.now + delay_s, time.number(), target, happen, args))
            return 1
        return self._carry_over_faulty(link, size, delay_s, target, happen, args)

    def _carry_over_faulty(
        self,
        link: Link,
        size: float,
        delay_s: float,
        target: Process,
        happen: Callable[..., Any],
        args: tuple[Any, ...],
    ) -> int:
        random = self._random
        if link.cuts:
            self._note(link.cuts[-1], link, args)
            if link.holding:
                link.held.append((target, happen, args))
                return 1
            return 0
        if random() < link.lost:
            self._note("loss", link, args)
            return 0
        if size and link.slow_s:
            self._note(link.slow_kind, link, args)
            delay_s += size * link.slow_s
        copies = 1
        if random() < link.doubled:
            self._note("duplication", link, args)
            copies = 2
        for _ in range(copies):
            arrival = self._time.now + delay_s + link.delay_s * random()
            if link.delay_s and arrival < link.latest:
                self._note("reordering", link, args)
            link.latest = max(link.latest, arrival)
            self._time.reach(arrival - self._time.now, target, happen, *args)
        return copies

    def _note(self, kind: str, link: Link, args: tuple[Any, ...]) -> None:
        """Count a fault that hit a message."""
        self._fault_counts[kind] += 1
        if self._trace is not None:
            self._trace(self._time.now, link.name, (kind, *args))

    def mend(self, link: Link) -> None:
        """Send on what was held back, if nothing cuts the link any more."""
        link.update()
        if not link.cuts:
            held, link.held = link.held, []
            for target, happen, args in held:
                self._time.reach(link.latency_s + link.jitter_s * self._random(), target, happen, *args)

    def heal(self) -> None:
        """End all faults."""
        for link in self._links.values():
            link.cuts, link.holding = [], False
            link.lost = link.doubled = link.delay_s = link.slow_s = 0.0
            self.mend(link)
