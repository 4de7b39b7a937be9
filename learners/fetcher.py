"""Gets fragments and states from other processes, beside the training loop.

A failure on the way is an event for the machine, never an exception.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from learners import checkpoint_writer
from learners.checkpoint_writer import SavedPart
from learners.link import Link, Spawn, Version, in_thread
from learners.ports import DeviceValues
from learners.protocol import events_effects
from outer.config import SyncConfig
from outer.journal.object_store import Objects
from outer.numeric import codec as codecs
from outer.numeric.chain import VersionChain
from outer.ports import NoAnswer, now
from outer.protocol.leases import LinkRate, longest_s
from outer.protocol.link_estimate import LinkWindow
from outer.protocol.messages import State, StateRequest

NOTHING = -1
LATE_S = 2.0  # beyond what its link takes for a download, from when the learners of its region do not wait for it
COMES, STEPS = 3.0, 3  # a version that has less than so many downloads and steps left is as good as out of date
HOLDS_S = 1.0  # for a version to come before another learner hears that it is not here yet
AT_ONCE = 2  # downloads, beside which no large one begins
LARGE = 2**23  # bytes: a smaller download waits for the link's latency more than for its rate


class Fetcher:
    """`drive` hands the machine an event; `saved` is a part of a checkpoint to start from, and `store` has it.

    `threads` check what came and put it on the devices; `spawn` starts a background task.
    """

    def __init__(
        self,
        link: Link,
        drive: Callable[[events_effects.Event], None],
        spawn: Spawn,
        threads: Executor,
        sync: SyncConfig,
        store: Objects | None,
        saved: SavedPart | None,
    ) -> None:
        self.fragment_io: DeviceValues | None = None  # as soon as there is a model
        self.chain: VersionChain | None = None  # from then on, if the run has one
        self.received: dict[int, Version] = {}  # the newest of each fragment, from one epoch of the syncer
        self._link, self._drive, self._spawn, self._threads = link, drive, spawn, threads
        self._sync, self._store, self._saved = sync, store, saved
        self._rate, self._window = LinkRate(), LinkWindow()  # from the syncer
        self.round_s: Callable[[], float] = lambda: 0.0  # of H steps
        self._wanted: dict[int, events_effects.Fetch] = {}  # by fragment: the newest version asked for, not begun
        self._behind_at = 0.0  # when versions began to wait, or a download failed last
        self._busy: dict[int, float] = {}  # fragments under way: when they should be here, in the loop's seconds
        self._came = asyncio.Event()  # set, and replaced, when a version is here

    # -------------------------------------------------------------- a donor's state

    def recover(self, effect: events_effects.Recover) -> None:
        """Get the state of a donor that the syncer names."""
        self._spawn(self._recover(effect))

    async def _recover(self, effect: events_effects.Recover) -> None:
        donor, incarnation, state = "", 0, None
        try:
            if (named := await self._link.seek(effect.seek)) is None:
                state = await in_thread(self._threads, self._state_saved)
                reason = "" if state else "none"
            else:
                found, peer = named
                donor, incarnation = found.donor, found.donor_incarnation
                assert self.fragment_io is not None
                joiner, deadline_s = effect.seek, longest_s(effect.deadline_s, self.fragment_io.state_bytes)
                between = joiner.learner, joiner.incarnation, donor, incarnation
                request = StateRequest(found.epoch, *between, found.syncer_step, deadline_s)
                if isinstance(given := await self._link.donate(peer, request), str):
                    reason = given
                else:
                    state, facts, oldest = given
                    reason = await in_thread(self._threads, self.fragment_io.state_defect, state)
                    # If the donor died now, the log would lack the steps that this learner starts from.
                    if not await self._link.record(donor, incarnation, facts, oldest):
                        reason = reason or "not_durable"
        except NoAnswer as error:
            reason = str(error) or type(error).__name__
        except Exception as error:  # the joiner has to go on
            reason = type(error).__name__
        missed = events_effects.StateMissed(donor, incarnation, reason)
        self._drive(missed if reason or state is None else events_effects.StateArrived(state))

    def _state_saved(self) -> State | None:
        """The state in this learner's own checkpoint, when nobody can donate one and the checkpoint is sound."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # damage was reported where it was chosen
            if self._saved is not None and self._store is not None and self.fragment_io is not None:
                state = checkpoint_writer.read(self._store, self._saved).donor_state
                return None if self.fragment_io.state_defect(state) else state
        return None

    # -------------------------------------------------------------- versions

    def fetch(self, effect: events_effects.Fetch) -> None:
        """Download a version. Of versions that wait for the same fragment only the newest is downloaded."""
        self._behind_at = self._behind_at if self._wanted else now()
        self._wanted[effect.fragment] = max(effect, self._wanted.get(effect.fragment, effect), key=lambda e: e.version)
        self._begin()

    def _begin(self) -> None:
        """Begin as many downloads as the link should carry, the newest first: it is the last to be out of date. If
        most wait, as after a cut, the first that is in time, but for half a round only: a full link is always behind.
        """
        while waiting := [each for fragment, each in self._wanted.items() if fragment not in self._busy]:
            wanted, round_s = max(waiting, key=lambda each: each.version), self.round_s()
            if now() - self._behind_at < round_s / 2 and 2 * len(waiting) > (self._sync.fragments or 0):
                newest = max([wanted.version, *(each.version for each in self.received.values())])
                left = self._sync.round_steps * (1.0 - COMES * self._window.least_s / round_s) - STEPS
                in_time = (each for each in waiting if each.version >= newest - left)
                wanted = min(in_time, key=lambda each: each.version, default=wanted)
            most = min(self._window.size, AT_ONCE) if self._bytes(wanted.fragment) > LARGE else self._window.size
            if len(self._busy) >= most:
                return
            self._busy[wanted.fragment] = now() + self._rate.deadline_s(LATE_S, self._bytes(wanted.fragment))
            self._spawn(self._fetch(self._wanted.pop(wanted.fragment)))

    async def _fetch(self, wanted: events_effects.Fetch) -> None:
        """Download a version; forget what is wanted of its fragment, if that is nothing newer than what came."""
        try:
            result = await self._download(wanted)
            again = self._wanted.get(wanted.fragment)
            if again is not None and isinstance(result, events_effects.Fetched) and again.version <= result.version:
                del self._wanted[wanted.fragment]
            self._drive(result)
        finally:
            self._busy.pop(wanted.fragment, None)  # else nothing would fetch it any more
        self._begin()

    async def holds(self, fragment: int, version: int) -> bool | None:
        """Whether this version or a newer one is here; False: one comes in a while. None: none does, or it is late."""
        until = now() + HOLDS_S  # its notice may come, too
        while (newest := self.received.get(fragment)) is None or newest.version < version:
            left_s = min(until, self._busy.get(fragment, until)) - now()
            if left_s <= 0.0:
                comes = now() < self._busy[fragment] if fragment in self._busy else fragment in self._wanted
                return False if comes else None
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._came.wait(), left_s)
        return True

    def _bytes(self, fragment: int) -> int:
        return 0 if self.fragment_io is None else self.fragment_io.bytes_of(fragment)

    async def _download(self, wanted: events_effects.Fetch) -> events_effects.Fetched | events_effects.FetchFailed:
        """The fragment's newest value, put on the devices.

        `wanted.digest`: the checksum in the notice of this version, if it gave one.
        """
        fragment, version, moved, damaged = wanted.fragment, wanted.version, 0, False
        with contextlib.suppress(Exception):  # whatever it is, the machine has to hear
            while True:
                before, began, beside = self.received.get(fragment), now(), len(self._busy) - 1
                held = NOTHING if damaged or before is None else before.version
                deadline_s = self._rate.deadline_s(self._sync.transfer_s, self._bytes(fragment))
                answer = await self._link.fetch(fragment, version, held, deadline_s, wanted.source)
                if answer is None:
                    break
                newest, digest, payload, snapshot = answer
                whole = not isinstance(payload, list)
                came = payload.nbytes if whole else sum(each.nbytes for each in payload)
                took_s = None if isinstance(answer, Version) else now() - began  # None: from a learner nearby
                self._window.note(took_s, max(beside, len(self._busy) - 1), self.round_s())
                if took_s is not None:
                    self._rate.note(came, took_s)
                moved += came
                payload, found = await in_thread(self._threads, self._read, fragment, before, payload)
                if digest == found and (newest != version or wanted.digest in ("", digest)):
                    if fragment not in self.received or self.received[fragment].version < newest:
                        self.received[fragment] = Version(newest, digest, payload, snapshot)
                        self._came.set()
                        self._came = asyncio.Event()
                    if self.fragment_io is not None:
                        payload = await in_thread(self._threads, self.fragment_io.receive, fragment, payload)
                    return events_effects.Fetched(fragment, newest, payload, snapshot, moved)
                if whole:
                    return events_effects.FetchFailed(fragment, version, "bad_digest")
                damaged = True  # a delta, or what it is added to: the whole value next
        self._rate.lapse()
        self._behind_at = now()
        return events_effects.FetchFailed(fragment, version, "fetch_failed")

    def _read(self, fragment: int, before: Version | None, payload: Any) -> tuple[Any, str]:
        """A version, read-only float32[n], from what came, and its digest. If what came is no delta: `before`."""
        if isinstance(payload, list):
            assert self.chain is not None and before is not None
            try:
                payload = self.chain.extend(fragment, before.theta, payload)
            except ValueError:
                payload = before.theta
        else:
            payload.flags.writeable = False
        return payload, codecs.digest(payload)
