"""Progress leases: a learner is alive while its training loop reports in time, by the syncer's own clock.

And the deadlines of transfers, which follow their bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

SLOWEST_LINK = 4 * 2**20  # bytes/s; over a slower one, large transfers miss their deadlines
IN_FLOOR = 2**20  # bytes that the floor of a deadline is enough for
SMOOTHING = 0.1  # weight of a transfer that was faster than those before
MARGIN = 2.0  # a transfer may take so many times what the link's rate says


@dataclass(frozen=True)
class Lease:
    phase: str
    renewed_at: float
    expires_at: float


class Leases:
    """At most one lease per learner. `expire` reports each expiry once. Times are seconds of the shell's clock."""

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}
        self._expired: set[str] = set()
        self._queue: list[
            tuple[float, str]
        ] = []  # a heap: when each lease may run out; longer ones stay where they are
        self._queued: dict[str, float] = {}  # the time in the queue that counts for each learner

    def renew(self, learner: str, phase: str, now: float, lease_s: float) -> float | None:
        """Start or renew a lease. If the old one had expired, returns how many seconds the learner was silent."""
        before = self._leases.get(learner)
        self._leases[learner] = Lease(phase, now, now + lease_s)
        if now + lease_s < self._queued.get(learner, float("inf")):
            self._enqueue(learner, now + lease_s)
        if learner not in self._expired:
            return None
        self._expired.discard(learner)
        assert before is not None, "an expired lease was held before"
        return now - before.renewed_at

    def _enqueue(self, learner: str, at: float) -> None:
        self._queued[learner] = at
        heappush(self._queue, (at, learner))

    def end(self, learner: str) -> None:
        self._leases.pop(learner, None)
        self._expired.discard(learner)
        self._queued.pop(learner, None)

    def expire(self, now: float) -> list[tuple[str, Lease]]:
        """(learner, lease) of every lease that expired since the last call."""
        out = []
        while (at := self.next_expiry) is not None and at <= now:
            learner = heappop(self._queue)[1]
            del self._queued[learner]
            self._expired.add(learner)
            out.append((learner, self._leases[learner]))
        return out

    def get(self, learner: str) -> Lease | None:
        return self._leases.get(learner)

    def holds(self, learner: str) -> bool:
        """Whether the learner's lease is valid, as of the last call to `expire`."""
        return learner in self._leases and learner not in self._expired

    @property
    def next_expiry(self) -> float | None:
        """When the next lease runs out; None for none."""
        while self._queue:
            at, learner = self._queue[0]
            if self._queued.get(learner) == at:
                if self._leases[learner].expires_at <= at:
                    return at
                self._enqueue(learner, self._leases[learner].expires_at)  # it was renewed
            heappop(self._queue)
        return None


@dataclass
class LinkRate:
    """How long transfers over one link may take: a floor, and time for the bytes beyond the first MiB.

    A link counts as slow until a transfer was seen. A slower one counts at once, faster ones little by little.
    """

    byte_s: float = 0.0  # seconds a byte; 0 until known

    def note(self, size: int, seconds: float) -> None:
        """A transfer of `size` bytes took so long. A small one says nothing of the rate."""
        if size > IN_FLOOR:
            sample = seconds / size
            self.byte_s = max(sample, self.byte_s + SMOOTHING * (sample - self.byte_s)) if self.byte_s else sample

    def lapse(self) -> None:
        """A deadline has passed: what is known of the link may be out of date."""
        self.byte_s = 0.0

    def deadline_s(self, floor_s: float, size: int) -> float:
        """For a transfer of `size` bytes, in seconds: twice what it should take, and no more than `longest_s`."""
        longest = longest_s(floor_s, size)
        return min(floor_s + MARGIN * _counted(size) * self.byte_s, longest) if self.byte_s else longest


def longest_s(floor_s: float, size: int) -> float:
    """The deadline, in seconds, of a transfer of `size` bytes over the slowest link."""
    return floor_s + _counted(size) / SLOWEST_LINK


def _counted(size: int) -> int:
    return max(0, size - IN_FLOOR)
