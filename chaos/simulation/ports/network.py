"""A hostile network: each message is delayed, and may be lost, doubled, overtaken, held back or slowed.

Each direction between two hosts is a link of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from heapq import heappush
from random import Random
from typing import Any

from chaos.simulation.ports.damage import Damage
from chaos.simulation.profile import ELEMENTS, Options
from orchestrator.simulation.context import Trace
from orchestrator.simulation.process import Process
from orchestrator.simulation.timeline import Timeline
from outer.numeric.formats import below, named

LOST_S = 3.0  # about so long until a caller hears that a message was lost


class NetworkLink:
    """One direction between two hosts, and its present faults."""

    __slots__ = (
        "cuts", "delay_s", "doubled", "faulty", "held", "holding", "jitter_s", "latency_s", "latest", "lost", "name",
        "slow_kind", "slow_s", "target",
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
    """Sizes are in fragments. `fault_counts` counts what faults did to messages; `faults` is told of every call."""

    def __init__(
        self,
        options: Options,
        time: Timeline,
        rng: Random,
        fault_counts: Counter[str],
        trace: Trace | None,
        faults: Damage,
    ) -> None:
        self._links: dict[tuple[str, str], NetworkLink] = {}
        self._time, self._random, self._fault_counts, self._trace = time, rng.random, fault_counts, trace
        self._latency_s, self._jitter_s = options.latency_s, options.jitter_s
        self._fragments, self.asking, self.answering = options.fragments, faults.asking, faults.answering
        whole = named(options.sync.codec).bytes(ELEMENTS)
        lower = {codec: named(codec).bytes(ELEMENTS) / whole for codec in below(options.sync.codec)}
        self._shares = {"": 1.0, **lower}  # of a fragment, by a contribution's codec
        self._delta = named(options.sync.downlink).bytes(ELEMENTS) / whole

    def link(self, source: str, target: str) -> NetworkLink:
        if (link := self._links.get((source, target))) is None:
            link = self._links[source, target] = NetworkLink(source, target, self._latency_s, self._jitter_s)
        return link

    def carry(
        self, source: Process, target: Process, method: str, answer: Any, happen: Callable[..., Any], *args: Any
    ) -> int:
        """Bring a question, without an answer, or an answer to a process. Returns how many copies are on their way."""
        link = self.link(source.host.name, target.host.name)
        delay_s = link.latency_s + link.jitter_s * self._random()
        if not link.faulty:
            time = self._time
            heappush(time.queue, (time.now + delay_s, time.number(), target, happen, args))
            return 1
        return self._carry_over_faulty(link, self._size(method, answer), delay_s, target, method, happen, args)

    def lost_s(self) -> float:
        return LOST_S * (0.2 + self._random())

    def _size(self, method: str, answer: Any) -> float:
        if answer is None or isinstance(answer, str):
            return 0.0
        if method == "read":
            return self._shares[answer[0].codec]
        if method == "fetch" and type(answer) is tuple and isinstance(answer[2], list):
            return len(answer[2]) * self._delta
        return {"fetch": 1.0, "received": 1.0, "donate": float(self._fragments)}.get(method, 0.0)

    def _carry_over_faulty(
        self,
        link: NetworkLink,
        size: float,
        delay_s: float,
        target: Process,
        method: str,
        happen: Callable[..., Any],
        args: tuple[Any, ...],
    ) -> int:
        random = self._random
        if link.cuts:
            self._note(link.cuts[-1], link, method)
            if link.holding:
                link.held.append((target, happen, args))
            return int(link.holding)
        if random() < link.lost:
            self._note("loss", link, method)
            return 0
        if size and link.slow_s:
            self._note(link.slow_kind, link, method)
            delay_s += size * link.slow_s
        copies = 1
        if random() < link.doubled:
            self._note("duplication", link, method)
            copies = 2
        for _ in range(copies):
            arrival = self._time.now + delay_s + link.delay_s * random()
            if link.delay_s and arrival < link.latest:
                self._note("reordering", link, method)
            link.latest = max(link.latest, arrival)
            self._time.reach(arrival - self._time.now, target, happen, *args)
        return copies

    def _note(self, kind: str, link: NetworkLink, method: str) -> None:
        """Count a fault that hit a message."""
        self._fault_counts[kind] += 1
        if self._trace is not None:
            self._trace(self._time.now, link.name, (kind, method))

    def mend(self, link: NetworkLink) -> None:
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
