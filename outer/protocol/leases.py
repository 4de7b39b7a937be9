"""Progress leases: a learner is alive while its training loop reports in time, by the syncer's own clock."""

from __future__ import annotations

from dataclasses import dataclass


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
        self._soonest = float("inf")  # lower bound on the next expiry; renewals do not raise it

    def renew(self, learner: str, phase: str, now: float, lease_s: float) -> float | None:
        """Start or renew a lease. If the old one had expired, returns how many seconds the learner was silent."""
        before = self._leases.get(learner)
        self._leases[learner] = Lease(phase, now, now + lease_s)
        self._soonest = min(self._soonest, now + lease_s)
        if learner not in self._expired:
            return None
        self._expired.discard(learner)
        assert before is not None, "an expired lease was held before"
        return now - before.renewed_at

    def end(self, learner: str) -> None:
        self._leases.pop(learner, None)
        self._expired.discard(learner)

    def expire(self, now: float) -> list[tuple[str, Lease]]:
        """(learner, lease) of every lease that expired since the last call."""
        if now < self._soonest:
            return []
        out = [
            (learner, lease)
            for learner, lease in self._leases.items()
            if now >= lease.expires_at and learner not in self._expired
        ]
        self._expired.update(learner for learner, _ in out)
        running = (lease.expires_at for learner, lease in self._leases.items() if learner not in self._expired)
        self._soonest = min(running, default=float("inf"))
        return out

    def get(self, learner: str) -> Lease | None:
        return self._leases.get(learner)

    def holds(self, learner: str) -> bool:
        """Whether the learner's lease is valid, as of the last call to `expire`."""
        return learner in self._leases and learner not in self._expired

    @property
    def next_expiry(self) -> float | None:
        running = (lease.expires_at for learner, lease in self._leases.items() if learner not in self._expired)
        return min(running, default=None)
