"""Joining: where a new learner gets its state, and which joiners wait for this learner's state.

A joiner asks up to DONORS_MAX peers for their state. If none gives it, it starts from the syncer's fragments with fresh
inner optimizer moments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from learners.protocol.adoption import Adoption
from learners.protocol.events_effects import Effect, Emit, Inherit, Recover, StateMissed
from learners.protocol.facts import DonorFailed, StateReceived
from outer.protocol.leases import longest_s
from outer.protocol.messages import SeekDonor, State, StateRequest, Welcome

if TYPE_CHECKING:
    from outer.config import SyncConfig

TRANSFERS_MAX = 64  # joiners that wait for this learner's state; more are declined
DONORS_MAX = 2  # peers to ask before starting from the syncer's fragments


class Joining:
    """One incarnation's choices between Welcome and its first step. `syncer_step`: the newest it knows."""

    def __init__(self, learner: str, incarnation: int, config: SyncConfig, adoption: Adoption) -> None:
        self.source = ""  # peer | syncer; empty while undecided
        self._learner, self._incarnation = learner, incarnation
        self._config = config
        self._adoption = adoption
        self._welcome = Welcome(0, 0, 0.0, ())  # replaced by the syncer's; a notice follows for every later commit
        self._attached_at: float | None = None
        self._failed: tuple[str, ...] = ()  # donors that did not give their state
        self._state: State | None = None  # a peer's state, until it is loaded

    def attach(self, now: float, welcome: Welcome) -> list[Effect]:
        """Look for a state to start from. A Welcome of a later epoch changes nothing that is under way."""
        first, self._welcome = self._attached_at is None, welcome
        if not first:
            return []
        self._attached_at = now
        if self._config.overlap == "strict" or self._config.recover == "syncer":
            return self._take_snapshot()
        return [self._seek()]

    def miss(self, now: float, event: StateMissed, syncer_step: int) -> list[Effect]:
        """Ask another donor; after DONORS_MAX failures, or without a donor, start from the syncer's fragments."""
        if self.source:
            return []
        if not event.donor:
            return self._take_snapshot()
        self._failed = (*self._failed, event.donor)
        another = len(self._failed) < DONORS_MAX and not self._took_too_long(now, syncer_step, 0)
        failed = Emit(DonorFailed(event.donor, event.donor_incarnation, event.reason))
        return [failed, *([self._seek()] if another else self._take_snapshot())]

    def receive(self, now: float, state: State, syncer_step: int) -> list[Effect]:
        """Keep a peer's state for the next boundary."""
        if self.source:
            return []
        if self._took_too_long(now, syncer_step, state.size):
            return [Emit(DonorFailed(state.donor, state.donor_incarnation, "too_old")), *self._take_snapshot()]
        self.source, self._state = "peer", state
        return []

    def inherit(self, now: float) -> list[Effect]:
        """Load a peer's state, at a boundary."""
        if (state := self._state) is None:
            return []
        self._state = None
        origin = (state.donor, state.donor_incarnation, state.step, state.digest, state.size)
        return [Inherit(state), Emit(StateReceived("peer", *origin, self.seconds(now), state.versions))]

    def snapshot(self, now: float) -> StateReceived:
        """The fact to log once every fragment from the syncer is adopted."""
        return StateReceived("syncer", "", 0, 0, "", 0, self.seconds(now))

    def _seek(self) -> Effect:
        seek = SeekDonor(self._learner, self._incarnation, self._welcome.epoch, self._failed)
        # Two donors in a row must answer before a state is too old, or the second would never be asked.
        return Recover(seek, min(self._config.transfer_s, self._config.join_s / 3.0))

    def _take_snapshot(self) -> list[Effect]:
        """Fetch every fragment from the syncer. Newer versions that a notice brought stay."""
        self.source = "syncer"
        return self.fetch_missing()

    def fetch_missing(self) -> list[Effect]:
        """Fetch the fragments that are neither here nor requested."""
        return [*self._adoption.fetch_missing(self._welcome.versions)]

    def _took_too_long(self, now: float, syncer_step: int, size: int) -> bool:
        """Whether a peer's state may be too old: over H syncer steps, and over join_s and time for its bytes."""
        passed = syncer_step - self._welcome.syncer_step
        return passed > self._config.round_steps and self.seconds(now) > longest_s(self._config.join_s, size)

    def seconds(self, now: float) -> float:
        """Seconds since the Welcome; 0 before it."""
        return round(now - self._attached_at, 6) if self._attached_at is not None else 0.0


# ------------------------------------------------------------------ the donor's side: requests for this learner's state


@dataclass(frozen=True)
class _PendingTransfer:
    request: StateRequest
    expires_at: float


class PendingTransfers:
    """Requests that wait for a boundary at which this learner knows the joiner's syncer step."""

    def __init__(self) -> None:
        self._waiting: list[_PendingTransfer] = []

    @property
    def full(self) -> bool:
        return len(self._waiting) >= TRANSFERS_MAX

    @property
    def waiting(self) -> list[StateRequest]:
        return [transfer.request for transfer in self._waiting]

    def add(self, request: StateRequest, now: float) -> None:
        self._waiting.append(_PendingTransfer(request, now + request.deadline_s))

    def due(self, syncer_step: int) -> bool:
        """Whether a request can be answered at `syncer_step`."""
        return any(syncer_step >= transfer.request.syncer_step for transfer in self._waiting)

    def ready(self, now: float, syncer_step: int) -> list[StateRequest]:
        """Remove and return the requests that can be answered at `syncer_step`. Expired requests are dropped."""
        current = [transfer for transfer in self._waiting if now < transfer.expires_at]
        self._waiting = [transfer for transfer in current if syncer_step < transfer.request.syncer_step]
        return [transfer.request for transfer in current if syncer_step >= transfer.request.syncer_step]
