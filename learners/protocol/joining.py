"""From the Welcome to the first step: whose state a learner starts from. Knows nothing of boundaries or phases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from learners.protocol.adoption import Adoption
from learners.protocol.events_effects import Effect, Emit, Inherit, Recover, StateMissed
from learners.protocol.facts import DonorFailed, StateReceived
from outer.protocol.messages import SeekDonor, State, StateRequest, Welcome

if TYPE_CHECKING:
    from outer.config import SyncConfig

DONORS_MAX = 2  # peers asked for their state before the syncer's snapshot is taken


class Joining:
    """One incarnation's way in. `syncer_step` is the newest that it has heard of."""

    def __init__(self, learner: str, incarnation: int, config: SyncConfig, adoption: Adoption) -> None:
        self.source = ""  # peer | syncer, once it is decided
        self._learner, self._incarnation = learner, incarnation
        self._config = config
        self._adoption = adoption
        self._welcome = Welcome(0, 0, 0.0, ())  # until the syncer's comes; every later commit is noticed
        self._attached_at: float | None = None
        self._failed: tuple[str, ...] = ()  # donors that gave nothing
        self._state: State | None = None  # a peer's, until it is loaded

    def attach(self, now: float, welcome: Welcome) -> list[Effect]:
        """Look for a state to start from. With another epoch, what is under way goes on."""
        first, self._welcome = self._attached_at is None, welcome
        if not first:
            return []
        self._attached_at = now
        if self._config.overlap == "strict" or self._config.recover == "syncer":
            return self._take_snapshot()
        return [self._seek()]

    def miss(self, now: float, event: StateMissed, syncer_step: int) -> list[Effect]:
        """Another donor, or after the second failure, or with nobody whole, the syncer's snapshot."""
        if self.source:
            return []
        if not event.donor:
            return self._take_snapshot()
        self._failed = (*self._failed, event.donor)
        another = len(self._failed) < DONORS_MAX and not self._took_too_long(now, syncer_step)
        failed = Emit(DonorFailed(event.donor, event.donor_incarnation, event.reason))
        return [failed, *([self._seek()] if another else self._take_snapshot())]

    def receive(self, now: float, state: State, syncer_step: int) -> list[Effect]:
        """Keep a peer's state for the next boundary."""
        if self.source:
            return []
        if self._took_too_long(now, syncer_step):
            return [Emit(DonorFailed(state.donor, state.donor_incarnation, "too_old")), *self._take_snapshot()]
        self.source, self._state = "peer", state
        return []

    def inherit(self, now: float) -> list[Effect]:
        """Load what a peer gave, at a boundary."""
        if (state := self._state) is None:
            return []
        self._state = None
        origin = (state.donor, state.donor_incarnation, state.step, state.digest, state.size)
        return [Inherit(state), Emit(StateReceived("peer", *origin, self.seconds(now), state.versions))]

    def snapshot(self, now: float) -> StateReceived:
        """What to say once all of it is adopted."""
        return StateReceived("syncer", "", 0, 0, "", 0, self.seconds(now))

    def _seek(self) -> Effect:
        seek = SeekDonor(self._learner, self._incarnation, self._welcome.epoch, self._failed)
        # Two donors in a row must fit in the time after which a state is too old, or the second is never asked.
        return Recover(seek, min(self._config.transfer_s, self._config.join_s / 3.0))

    def _take_snapshot(self) -> list[Effect]:
        """Every fragment from the syncer, with fresh moments. What a notice has brought meanwhile stays."""
        self.source = "syncer"
        return self.fetch_missing()

    def fetch_missing(self) -> list[Effect]:
        """What of the snapshot is neither here nor on its way."""
        return [*self._adoption.fetch_missing(self._welcome.versions)]

    def _took_too_long(self, now: float, syncer_step: int) -> bool:
        """What a peer had when this learner attached may be too old by now."""
        passed = syncer_step - self._welcome.syncer_step
        return passed > self._config.round_steps and self.seconds(now) > self._config.join_s

    def seconds(self, now: float) -> float:
        """Since the Welcome; 0 before it."""
        return round(now - self._attached_at, 6) if self._attached_at is not None else 0.0


# ------------------------------------------------------------------ the donor's side


@dataclass(frozen=True)
class _PendingTransfer:
    request: StateRequest
    expires_at: float


class PendingTransfers:
    """A joiner is given to at the first boundary at which this learner has seen the joiner's clock."""

    def __init__(self) -> None:
        self._waiting: list[_PendingTransfer] = []

    @property
    def waiting(self) -> list[StateRequest]:
        return [transfer.request for transfer in self._waiting]

    def add(self, request: StateRequest, now: float) -> None:
        self._waiting.append(_PendingTransfer(request, now + request.deadline_s))

    def ready(self, now: float, syncer_step: int) -> list[StateRequest]:
        """Whose turn it is, with `syncer_step` seen. Who has waited for too long is forgotten."""
        current = [transfer for transfer in self._waiting if now < transfer.expires_at]
        self._waiting = [transfer for transfer in current if syncer_step < transfer.request.syncer_step]
        return [transfer.request for transfer in current if syncer_step >= transfer.request.syncer_step]
