"""Bytes between regions: a link carries one transfer after the other, which arrive after its latency.

In sum it moves what fair sharing would; only who is first differs. Knows neither senders nor messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from orchestrator.planner.fleet.description import Link

FREE = Link()


class Network:
    """`moved`: bytes that have been sent over each link."""

    def __init__(self, links: Mapping[tuple[str, str], Link]) -> None:
        self.moved: Counter[tuple[str, str]] = Counter()
        self._links = links
        self._free_at: dict[str | tuple[str, str], float] = {}

    def latency_s(self, source: str, target: str) -> float:
        """Of a message without weight."""
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
