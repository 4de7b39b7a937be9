"""Which learner of a region gets a version from the syncer; the region's others get it from that learner.

So a version crosses each link between regions once. The syncer actor asks at every notice, and at every fetch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from outer.ports import Peer


@dataclass(frozen=True)
class Elsewhere:
    """The answer to a learner that asked the syncer for a version: another one of its region has it, or will."""

    learner: str
    peer: Peer
    snapshot: int  # the newest that the syncer has begun


class Relays:
    """Each learner's region, and the newest relay of each fragment in each region, in one epoch."""

    def __init__(self, home: str) -> None:
        """`home`: the syncer's region, whose learners need no relay; empty: unknown, and every region has relays."""
        self._home = home
        self._regions: dict[str, str] = {}
        self._sent: Counter[str] = Counter()
        self._newest: dict[tuple[str, int], tuple[int, str]] = {}  # by region and fragment: version, learner
        self._failed: set[str] = set()  # who gave another nothing, and has not asked since

    def count(self, learner: str, size: int) -> None:
        """The syncer has sent a learner this many bytes of versions."""
        self._sent[learner] += size

    def sent(self, by_shards: Mapping[str, int]) -> dict[str, int]:
        """Bytes of versions sent so far, by learner; `by_shards`: what shards have sent."""
        return dict(self._sent + Counter(by_shards))

    def expect(self, learner: str, region: str) -> None:
        """A new incarnation of this learner starts: it holds nothing. `region`: empty for none."""
        self._regions[learner] = region
        self._newest = {place: relay for place, relay in self._newest.items() if relay[1] != learner}

    def region(self, learner: str) -> str:
        """A learner's region; empty for none."""
        return self._regions.get(learner, "")

    def source(self, learner: str, fragment: int, wanted: int, newest: int, failed: str, asks: bool = True) -> str:
        """The learner from which `learner` gets the version `wanted` or a newer one; empty for the syncer.

        `newest`: what the syncer sends. `failed`: the relay that was named before and did not give it. `asks`: else it
        is told, and may be frozen.
        """
        if failed in self._regions:
            self._failed.add(failed)
        if asks:
            self._failed.discard(learner)
        region = self.region(learner)
        if region in ("", self._home):
            return ""
        version, relay = self._newest.get((region, fragment), (-1, ""))
        if version >= wanted and relay not in (learner, failed):
            return relay
        if learner not in self._failed:
            self._newest[region, fragment] = newest, learner
        return ""
