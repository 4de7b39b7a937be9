"""The network between hosts: each message is delayed, and may be lost, doubled, overtaken, held back or slowed.

Every direction of every pair of hosts is a link of its own. Knows neither senders nor messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from heapq import heappush
from random import Random
from typing import Any

from chaos.simulation.hosts import Process
from chaos.simulation.trace import Trace
from orchestrator.simulation.timeline import Timeline


class Link:
    """One direction between two hosts, and what it suffers from at present."""

    __slots__ = (
        "cuts", "delay_s", "doubled", "held", "holding", "jitter_s", "latency_s", "latest", "lost", "name", "slow_s",
        "troubled",
    )  # fmt: skip

    def __init__(self, source: str, target: str, latency_s: float, jitter_s: float) -> None:
        self.name = f"{source}>{target}"
        self.latency_s, self.jitter_s = latency_s, jitter_s
        self.latest = 0.0  # arrival of what was sent before
        self.held: list[tuple[Process, Callable[..., Any], tuple[Any, ...]]] = []
        self.troubled = False
        self.cuts: list[str] = []  # the kinds of faults that cut it, while they do
        self.holding = False  # what is sent into a cut comes late; else never
        self.lost = self.doubled = 0.0  # share of messages
        self.delay_s = 0.0  # further delay, up to this
        self.slow_s = 0.0  # for each unit of size

    def judge(self) -> None:
        """Whether anything is wrong with it."""
        self.troubled = bool(self.cuts) or max(self.lost, self.doubled, self.delay_s, self.slow_s) > 0.0


class Network:
    """Sizes are in fragments: small messages have none. `fired` counts what faults did to messages."""

    def __init__(self, time: Timeline, chance: Random, fired: Counter[str], latency_s: float, jitter_s: float) -> None:
        self.links: dict[tuple[str, str], Link] = {}
        self.trace: Trace | None = None
        self._time, self._chance, self._fired = time, chance.random, fired
        self._latency_s, self._jitter_s = latency_s, jitter_s

    def link(self, source: str, target: str) -> Link:
        if (source, target) not in self.links:
            self.links[source, target] = Link(source, target, self._latency_s, self._jitter_s)
        return self.links[source, target]

    def carry(self, link: Link, size: float, target: Process, happen: Callable[..., Any], *args: Any) -> int:
        """Bring it to that process. Returns how many copies are on their way."""
        delay_s = link.latency_s + link.jitter_s * self._chance()
        if not link.troubled:
            time = self._time
            heappush(time.queue, (time.now + delay_s, time.number(), target, happen, args))
            return 1
        return self._struggle(link, size, delay_s, target, happen, args)

    def _struggle(
        self,
        link: Link,
        size: float,
        delay_s: float,
        target: Process,
        happen: Callable[..., Any],
        args: tuple[Any, ...],
    ) -> int:
        chance = self._chance
        if link.cuts:
            self._note(link.cuts[-1], link, args)
            if link.holding:
                link.held.append((target, happen, args))
                return 1
            return 0
        if chance() < link.lost:
            self._note("loss", link, args)
            return 0
        if size and link.slow_s:
            self._note("slow_link", link, args)
            delay_s += size * link.slow_s
        copies = 1
        if chance() < link.doubled:
            self._note("duplication", link, args)
            copies = 2
        for _ in range(copies):
            arrival = self._time.now + delay_s + link.delay_s * chance()
            if link.delay_s and arrival < link.latest:
                self._note("reordering", link, args)
            link.latest = max(link.latest, arrival)
            self._time.reach(arrival - self._time.now, target, happen, *args)
        return copies

    def _note(self, kind: str, link: Link, args: tuple[Any, ...]) -> None:
        """A fault did something to a message."""
        self._fired[kind] += 1
        if self.trace is not None:
            message = getattr(args[-2] if len(args) > 1 else args[-1], "message", None) or args[-1]
            self.trace.line(self._time.now, link.name, "", kind, type(message).__name__)

    def mend(self, link: Link) -> None:
        """What was held back goes on, if nothing cuts the link any more."""
        link.judge()
        if not link.cuts:
            held, link.held = link.held, []
            for target, happen, args in held:
                self._time.reach(link.latency_s + link.jitter_s * self._chance(), target, happen, *args)

    def heal(self) -> None:
        """Nothing is wrong with any link any more."""
        for link in self.links.values():
            link.cuts, link.holding = [], False
            link.lost = link.doubled = link.delay_s = link.slow_s = 0.0
            self.mend(link)


class Call:
    """A question that waits for its answer, until its deadline. Question and answer are messages like any other."""

    __slots__ = (
        "_answered", "_back", "_failed", "_network", "caller", "done", "message", "repeats",
    )  # fmt: skip

    def __init__(
        self,
        network: Network,
        caller: Process,
        back: Link,
        message: Any,
        answered: Callable[[Any], None],
        failed: Callable[[str], None],
        repeats: bool = False,
    ) -> None:
        self.caller, self.message = caller, message
        self.done = False
        self.repeats = repeats  # what comes late, or again, is heard too
        self._network, self._back, self._answered, self._failed = network, back, answered, failed

    def reply(self, size: float, answer: Any) -> None:
        """From where it was asked."""
        self._network.carry(self._back, size, self.caller, self._arrive, answer)

    def died(self) -> None:
        """Whom it was put to is dead: the caller's own system tells it so."""
        self._network.carry(self._back, 0.0, self.caller, self._fail, "ActorDiedError")

    def expire(self) -> None:
        """The caller's deadline."""
        if not self.done:
            self.caller.take(self._fail, "GetTimeoutError")

    def _fail(self, reason: str) -> None:
        if not self.done:
            self.done = True
            self._failed(reason)

    def _arrive(self, answer: Any) -> None:
        if self.repeats or not self.done:
            self.done = True
            self._answered(answer)


def ask(
    network: Network,
    caller: Process,
    target: Process,
    links: tuple[Link, Link],
    handler: Callable[[Call], None],
    message: Any,
    deadline_s: float,
    answered: Callable[[Any], None],
    failed: Callable[[str], None],
    repeats: bool = False,
) -> None:
    """Put a question to a process; `links` are the way there and back. One of the two callbacks is called once."""
    call = Call(network, caller, links[1], message, answered, failed, repeats)
    network.carry(links[0], 0.0, target, handler, call)
    caller.time.after(deadline_s / caller.host.rate, call.expire)
