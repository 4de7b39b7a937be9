"""Gets fragments and states from other processes, in threads beside the training loop.

A failure on the way is an event for the machine, never an exception.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

from learners import checkpoint_writer
from learners.checkpoint_writer import SavedPart
from learners.protocol import events_effects
from learners.protocol.fact_buffer import FactBuffer
from outer.journal.object_store import Objects
from outer.numeric import codec as codecs
from outer.protocol.messages import Attach, Donor, Report, SeekDonor, State, StateRequest, Welcome

if TYPE_CHECKING:
    from learners.fragment_io import FragmentIO


class Link(Protocol):
    """How an incarnation reaches the syncer and other learners. Calls raise the transport's own exceptions."""

    def attach(self, message: Attach, facts: FactBuffer) -> Welcome | str | None:
        """The syncer's answer; a string is a refusal, None means that the syncer is gone."""
        ...

    def report(self, message: Report, facts: FactBuffer) -> None:
        """Send and forget; the facts go along until they are acknowledged."""
        ...

    def flush(self, learner: str, incarnation: int, facts: FactBuffer) -> None:
        """Wait, briefly, until the last facts are recorded."""
        ...

    def record(self, learner: str, incarnation: int, facts: list[Any]) -> None:
        """Have the syncer write another learner's facts to the log."""
        ...

    def seek(self, message: SeekDonor) -> tuple[Donor, Any] | None:
        """Who can give its state, and its handle; None if nobody can."""
        ...

    def donate(self, donor: Any, request: StateRequest) -> tuple[State, list[Any]] | str:
        """The donor's state and facts; a string says why it cannot give them."""
        ...

    def fetch(self, fragment: int, version: int, deadline_s: float) -> tuple[int, str, Any, int] | None:
        """(version, SHA-256, float32[n], snapshot) of a fragment, if the syncer has that version."""
        ...


class Fetcher:
    """`drive` hands the machine an event; `saved` is a part of a checkpoint to start from, and `store` has it."""

    def __init__(
        self,
        link: Link,
        drive: Callable[[events_effects.Event], None],
        transfer_s: float,
        store: Objects | None,
        saved: SavedPart | None,
    ) -> None:
        self.fragment_io: FragmentIO | None = None  # as soon as there is a model
        self._link, self._drive, self._transfer_s = link, drive, transfer_s
        self._store, self._saved = store, saved
        self._threads = ThreadPoolExecutor(2, "fetch")

    def fetch(self, effect: events_effects.Fetch) -> None:
        self._threads.submit(self._fetch, effect.fragment, effect.version, effect.digest)

    def recover(self, effect: events_effects.Recover) -> None:
        self._threads.submit(self._recover, effect)

    def _recover(self, effect: events_effects.Recover) -> None:
        """Get the state of a donor that the syncer names; a failure on the way is a missed state, not an exception."""
        donor, incarnation = "", 0
        try:
            if (named := self._link.seek(effect.seek)) is None:
                self._drive(self._state_saved())
                return
            found, handle = named
            donor, incarnation = found.donor, found.donor_incarnation
            request = StateRequest(
                found.epoch,
                effect.seek.learner,
                effect.seek.incarnation,
                donor,
                incarnation,
                found.syncer_step,
                effect.deadline_s,
            )
            given = self._link.donate(handle, request)
            assert self.fragment_io is not None
            if isinstance(given, str):
                reason = given
            else:
                state, facts = given
                reason = self.fragment_io.state_defect(state)
                # If the donor died now, the log would lack the steps that this learner starts from.
                self._link.record(donor, incarnation, facts)
        except Exception as error:  # nothing reads this thread's exceptions, and the joiner has to go on
            reason = type(error).__name__
        if reason:
            self._drive(events_effects.StateMissed(donor, incarnation, reason))
        else:
            self._drive(events_effects.StateArrived(state))

    def _state_saved(self) -> events_effects.StateArrived | events_effects.StateMissed:
        """The state in this learner's own checkpoint, when nobody can donate one and the checkpoint is sound."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # damage was reported where it was chosen
            if self._saved is not None and self._store is not None and self.fragment_io is not None:
                state = checkpoint_writer.read(self._store, self._saved).donor_state
                if not self.fragment_io.state_defect(state):
                    return events_effects.StateArrived(state)
        return events_effects.StateMissed("", 0, "none")

    def _fetch(self, fragment: int, version: int, noticed: str) -> None:
        """Get a fragment's newest value; `noticed`: the checksum in the notice of this version, if it gave one."""
        result: events_effects.Event = events_effects.FetchFailed(fragment, version, "fetch_failed")
        with contextlib.suppress(Exception):  # nothing reads this thread's exceptions, and the machine has to hear
            answer = self._link.fetch(fragment, version, self._transfer_s)
            if answer is not None:
                newest, digest, payload, snapshot = answer
                sound = digest == codecs.digest(payload) and (newest != version or noticed in ("", digest))
                arrived = events_effects.Fetched(fragment, newest, payload, snapshot)
                result = arrived if sound else events_effects.FetchFailed(fragment, version, "bad_digest")
        self._drive(result)
