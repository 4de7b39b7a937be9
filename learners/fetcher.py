"""Gets fragments and states from other processes, in threads beside the training loop.

A failure on the way is an event for the machine, never an exception. What comes is copied here: who frees memory of the
transport may wait for it, and the training loop must not.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from learners import checkpoint_writer
from learners.checkpoint_writer import SavedPart
from learners.protocol import events_effects
from learners.protocol.fact_buffer import FactBuffer
from learners.training.devices import cores
from outer.journal.object_store import Objects
from outer.numeric import codec as codecs
from outer.numeric.chain import VersionChain
from outer.protocol.leases import LinkRate, longest_s
from outer.protocol.messages import Attach, Donor, Report, SeekDonor, State, StateRequest, Welcome

if TYPE_CHECKING:
    from learners.fragment_io import FragmentIO


NOTHING = -1
LATE_S = 2.0  # beyond what its link takes for a download, from when the learners of its region do not wait for it


class Version(NamedTuple):
    """A fragment's published value."""

    version: int
    digest: str  # as outer.numeric.codec.digest
    theta: NDArray[np.float32]  # [n], read-only
    snapshot: int  # the newest that the syncer had begun when it sent this


class ReceivedVersions:
    """The newest version of each fragment, from one epoch of the syncer. Any thread may call it."""

    def __init__(self) -> None:
        self._newest: dict[int, Version] = {}
        self._lock = threading.Lock()

    def put(self, fragment: int, version: Version) -> None:
        """Keep it, if it is newer than what is here."""
        with self._lock:
            held = self._newest.get(fragment)
            if held is None or version.version > held.version:
                self._newest[fragment] = version

    def newest(self, fragment: int) -> Version | None:
        """The value of a fragment that is here, and its version."""
        return self._newest.get(fragment)

    def clear(self) -> None:
        """Another epoch serves, which may have lost versions that are here."""
        with self._lock:
            self._newest = {}


class SyncerLink(Protocol):
    """How an incarnation reaches the syncer and other learners. Calls raise the transport's own exceptions."""

    def attach(self, message: Attach, facts: FactBuffer) -> Welcome | str | None:
        """The syncer's answer; a string is a refusal, None means that the syncer is gone."""
        ...

    def report(self, message: Report, facts: FactBuffer) -> None:
        """Send and forget; facts go along, and the answers to earlier reports say which are durable."""
        ...

    def flush(self, learner: str, incarnation: int, facts: FactBuffer, patient: bool) -> None:
        """Wait until the last facts are durable, for a limited time; `patient`: for as long as the syncer answers."""
        ...

    def upload(self, learner: str, incarnation: int, facts: FactBuffer) -> None:
        """Send a backlog of facts that no single message could carry. Returns at once."""
        ...

    def record(self, learner: str, incarnation: int, facts: list[Any], oldest: int) -> bool:
        """Have the syncer write another learner's facts to the log. Whether they are durable."""
        ...

    def seek(self, message: SeekDonor) -> tuple[Donor, Any] | None:
        """Who can give its state, and its handle; None if nobody can."""
        ...

    def donate(self, donor: Any, request: StateRequest) -> tuple[State, list[Any], int] | str:
        """The donor's state, facts and oldest fact's number; a string says why it cannot give them."""
        ...

    def fetch(self, fragment: int, version: int, held: int, deadline_s: float) -> tuple[int, str, Any, int] | None:
        """(version, digest, value, snapshot) of a fragment, if the syncer has that version.

        The value is float32[n], or the successive deltas that lead to it from the version `held`; NOTHING: none is.
        From another learner it is a Version.
        """
        ...


class Fetcher:
    """`drive` hands the machine an event; `saved` is a part of a checkpoint to start from, and `store` has it."""

    def __init__(
        self,
        link: SyncerLink,
        drive: Callable[[events_effects.Event], None],
        transfer_s: float,
        store: Objects | None,
        saved: SavedPart | None,
    ) -> None:
        self.fragment_io: FragmentIO | None = None  # as soon as there is a model
        self.chain: VersionChain | None = None  # from then on, if the run has one
        self.received = ReceivedVersions()
        self._link, self._drive, self._transfer_s = link, drive, transfer_s
        self._store, self._saved = store, saved
        self._threads = ThreadPoolExecutor(2, "fetch", initializer=cores.leave)
        self._rate = LinkRate()  # from the syncer
        self._lock = threading.Lock()
        self._wanted: dict[int, events_effects.Fetch] = {}  # by fragment: the newest version asked for, not begun
        self._busy: dict[int, float] = {}  # fragments under way: when they should be here, in monotonic seconds

    def fetch(self, effect: events_effects.Fetch) -> None:
        """Download a version. Of versions that wait for the same fragment only the newest is downloaded."""
        fragment = effect.fragment
        with self._lock:
            waiting = self._wanted.get(fragment)
            if waiting is None or effect.version >= waiting.version:
                self._wanted[fragment] = effect
            if fragment in self._busy:
                return
            self._busy[fragment] = self._due(fragment)
        self._threads.submit(self._fetch, fragment)

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
                longest_s(effect.deadline_s, self._state_bytes()),
            )
            given = self._link.donate(handle, request)
            assert self.fragment_io is not None
            if isinstance(given, str):
                reason = given
            else:
                state, facts, oldest = given
                reason = self.fragment_io.state_defect(state)
                if not reason:
                    state = replace(state, payload=list(map(np.array, state.payload)))
                # If the donor died now, the log would lack the steps that this learner starts from.
                if not self._link.record(donor, incarnation, facts, oldest):
                    reason = reason or "not_durable"
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

    def _fetch(self, fragment: int) -> None:
        """Download what is wanted of a fragment, until that is nothing newer than what came."""
        newest = -1
        try:
            while (wanted := self._next(fragment, newest)) is not None:
                result = self._download(wanted)
                if isinstance(result, events_effects.Fetched):
                    newest = result.version
                self._drive(result)
        except BaseException:
            with self._lock:
                self._busy.pop(fragment, None)  # else nothing would fetch it any more
            raise

    def _next(self, fragment: int, newest: int) -> events_effects.Fetch | None:
        with self._lock:
            wanted = self._wanted.pop(fragment, None)
            if wanted is None or wanted.version <= newest:
                self._busy.pop(fragment, None)
                return None
            self._busy[fragment] = self._due(fragment)
            return wanted

    def _due(self, fragment: int) -> float:
        return time.monotonic() + self._rate.deadline_s(LATE_S, self._bytes(fragment))

    def holds(self, fragment: int, version: int) -> bool | None:
        """Whether this version or a newer one is here. None: it is not, and nothing of the fragment comes in time."""
        newest = self.received.newest(fragment)
        if newest is not None and newest.version >= version:
            return True
        with self._lock:
            return False if time.monotonic() < self._busy.get(fragment, 0.0) else None

    def _bytes(self, fragment: int) -> int:
        return 0 if self.fragment_io is None else self.fragment_io.bytes_of(fragment)

    def _state_bytes(self) -> int:
        return 0 if self.fragment_io is None else self.fragment_io.state_bytes

    def _download(self, wanted: events_effects.Fetch) -> events_effects.Fetched | events_effects.FetchFailed:
        """The fragment's newest value, put on the devices.

        `wanted.digest`: the checksum in the notice of this version, if it gave one.
        """
        fragment, version, moved, damaged = wanted.fragment, wanted.version, 0, False
        with contextlib.suppress(Exception):  # nothing reads this thread's exceptions, and the machine has to hear
            while True:
                before, began = self.received.newest(fragment), time.monotonic()
                held = NOTHING if damaged or before is None else before.version
                deadline_s = self._rate.deadline_s(self._transfer_s, self._bytes(fragment))
                answer = self._link.fetch(fragment, version, held, deadline_s)
                if answer is None:
                    break
                newest, digest, payload, snapshot = answer
                whole = not isinstance(payload, list)
                came = payload.nbytes if whole else sum(each.nbytes for each in payload)
                if not isinstance(answer, Version):  # else it came from a learner nearby
                    self._rate.note(came, time.monotonic() - began)
                moved += came
                if whole:
                    payload = np.array(payload)
                    payload.flags.writeable = False
                else:
                    assert before is not None
                    payload = self._extended(fragment, before.theta, payload)
                if digest == codecs.digest(payload) and (newest != version or wanted.digest in ("", digest)):
                    self.received.put(fragment, Version(newest, digest, payload, snapshot))
                    if self.fragment_io is not None:
                        payload = self.fragment_io.receive(fragment, payload)
                    return events_effects.Fetched(fragment, newest, payload, snapshot, moved)
                if whole:
                    return events_effects.FetchFailed(fragment, version, "bad_digest")
                damaged = True  # a delta, or what it is added to: the whole value next
        self._rate.lapse()
        return events_effects.FetchFailed(fragment, version, "fetch_failed")

    def _extended(self, fragment: int, before: Any, deltas: list[Any]) -> Any:
        """The version that deltas lead to, float32[n]; if one is no delta, `before`, whose digest is another."""
        assert self.chain is not None
        try:
            return self.chain.extend(fragment, before, deltas)
        except ValueError:
            return before
