"""Progress leases: who is alive is decided by what training loops report, against the syncer's own clock."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Lease:
    phase: str
    renewed_at: float
    expires_at: float


class Leases:
    """At most one lease per learner. Expiry is noticed once, by `expire`."""

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}
        self._expired: set[str] = set()
        self._soonest = float("inf")  # no lease runs out before; renewals leave it behind until it is reached

    def renew(self, learner: str, phase: str, now: float, lease_s: float) -> float | None:
        """Renew or begin a lease. Returns for how long the learner was silent if its lease had expired."""
        before = self._leases.get(learner)
        self._leases[learner] = Lease(phase, now, now + lease_s)
        self._soonest = min(self._soonest, now + lease_s)
        if learner not in self._expired:
            return None
        self._expired.discard(learner)
        assert before is not None, "a lease that expired was once held"
        return now - before.renewed_at

    def end(self, learner: str) -> None:
        self._leases.pop(learner, None)
        self._expired.discard(learner)

    def expire(self, now: float) -> list[tuple[str, Lease]]:
        """The leases that have run out since the last call."""
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
        """Whether the learner's lease is valid, as of the last call of `expire`."""
        return learner in self._leases and learner not in self._expired

    @property
    def next_expiry(self) -> float | None:
        running = (lease.expires_at for learner, lease in self._leases.items() if learner not in self._expired)
        return min(running, default=None)
