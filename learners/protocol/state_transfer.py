"""Joiners that wait for this learner's state. Knows when each is to have it, not whether it can be given."""

from __future__ import annotations

from dataclasses import dataclass

from outer.protocol.messages import StateRequest


@dataclass(frozen=True)
class _Donation:
    request: StateRequest
    expires_at: float


class PendingTransfers:
    """A joiner is given to at the first boundary at which this learner has seen the joiner's clock."""

    def __init__(self) -> None:
        self._waiting: list[_Donation] = []

    @property
    def waiting(self) -> list[StateRequest]:
        return [donation.request for donation in self._waiting]

    def add(self, request: StateRequest, now: float) -> None:
        self._waiting.append(_Donation(request, now + request.deadline_s))

    def take(self, now: float, syncer_step: int) -> list[StateRequest]:
        """Whose turn it is, with `syncer_step` seen. Who has waited for too long is forgotten."""
        current = [donation for donation in self._waiting if now < donation.expires_at]
        self._waiting = [donation for donation in current if syncer_step < donation.request.syncer_step]
        return [donation.request for donation in current if syncer_step >= donation.request.syncer_step]
