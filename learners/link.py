"""A learner's link to the syncer and to other learners, as far as injected faults let it work."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from learners.fault_effects import FaultEffects
from learners.protocol.fact_buffer import FactBuffer
from outer.bulk import AtShard
from outer.numeric import codec as codecs
from outer.ports import Gone, Here, NoAnswer, Peer, Unreachable, now
from outer.protocol.messages import STOPPED, Attach, Donor, Report, SeekDonor, State, StateRequest, Welcome
from outer.relays import Elsewhere

REPORTS_MAX = 32  # on their way to the syncer; while as many are, none is added
REPORT_FACTS_MAX = 256  # that one report takes along
CALL_S = 10.0  # deadline for an answer from the syncer
LATE_S = 120.0  # for which a call waits while the link is down
SEND_S = 130.0  # for the last report: as long as a link that is down may hold it up, and a little more
FLUSH_S = 20.0  # for a loop's last facts to become durable; what is left is lost with the process
ATTACH_S = 45.0  # for a syncer that serves to answer an Attach; a call more may be under way
PAUSE_S = 0.2  # between two attempts to send facts
RELAY_S = 2.0  # for another learner to say whether it has a version, or will soon
RELAYS_MAX = 3  # learners that are asked for one version, before the syncer is asked again after a while

T = TypeVar("T")
Spawn = Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]
Found = tuple[int, str, Any, int] | None


class Version(NamedTuple):
    """A fragment's published value."""

    version: int
    digest: str  # as outer.numeric.codec.digest
    theta: NDArray[np.float32]  # [n], read-only
    snapshot: int  # the newest that the syncer had begun when it sent this


class Link:
    """Calls raise NoAnswer and TimeoutError. `spawn` starts a background task.

    Arrays that come are copied in one of `threads`, which lets go of what came, too: to free memory of the transport
    may take a while.
    """

    def __init__(
        self, name: str, incarnation: int, syncer: Peer | None, here: Here, faults: FaultEffects, threads: Executor,
        spawn: Spawn, facts: FactBuffer,
    ) -> None:  # fmt: skip
        self.name, self.incarnation, self.facts = name, incarnation, facts
        self._syncer, self._here, self._faults = syncer, here, faults
        self._replaced = asyncio.Event()  # set, and replaced, when another epoch of the syncer serves
        self._threads, self._spawn = threads, spawn
        self._newest: Report | None = None  # that waits to be sent
        self._reporting: asyncio.Task[None] | None = None
        self._reports: set[asyncio.Task[None]] = set()  # on their way
        self._delayed: deque[Report] = deque(maxlen=REPORTS_MAX // 2)  # held back while the link is down
        self._uploading = False  # facts are being sent, so reports take none along

    def use(self, syncer: Peer) -> None:
        """A new epoch of the syncer serves. What is on its way to the old one is given up."""
        self._syncer = syncer
        self._replaced.set()
        self._replaced = asyncio.Event()
        for each in self._reports:
            each.cancel()
        self._reports = set()

    @contextlib.asynccontextmanager
    async def up(self, deadline_s: float) -> AsyncIterator[None]:
        """Let a peer's call in once the link is up, and its answer out once the link is up. Raises TimeoutError."""
        deadline = now() + deadline_s
        await self._await_link(deadline)
        yield
        await self._await_link(deadline)

    async def _await_link(self, deadline: float) -> None:
        """Wait while a fault keeps the link down. Raises TimeoutError at the deadline, in the loop's seconds."""
        while (down_s := self._faults.link_down_s()) > 0.0:
            left_s = deadline - now()
            if left_s <= 0.0:
                raise TimeoutError("the link is down")
            await asyncio.sleep(min(down_s, left_s))

    async def _ask(self, peer: Peer | None, deadline_s: float, method: str, *arguments: Any) -> Any:
        """A peer's answer; None: the syncer's that serves once the link is up, which counts towards the deadline."""
        deadline = now() + deadline_s
        await self._await_link(deadline)
        peer = peer or self._syncer
        assert peer is not None, "a standby that was not promoted asks nobody"
        answer = await asyncio.wait_for(peer.ask(method, *arguments), deadline - now())
        await self._await_link(deadline)
        return answer

    async def _get(self, peer: Peer | None, deadline_s: float, method: str, *arguments: Any) -> Any:
        """An answer with arrays, in memory of our own."""
        came = [await self._ask(peer, deadline_s, method, *arguments)]  # the only reference goes to the thread
        return await in_thread(self._threads, lambda: owned(came.pop()))

    # -------------------------------------------------------------- to the syncer

    async def attach(self, message: Attach, patience_s: float) -> Welcome | str | None:
        """The syncer's answer, once it serves; a string is a refusal, None: it is gone, or another one serves."""
        asked = asyncio.ensure_future(self._attach(message, now() + patience_s))
        replaced = asyncio.ensure_future(self._replaced.wait())
        try:
            await asyncio.wait({asked, replaced}, return_when=asyncio.FIRST_COMPLETED)
            return asked.result() if asked.done() else None
        finally:
            asked.cancel()
            replaced.cancel()

    async def _attach(self, message: Attach, until: float) -> Welcome | str | None:
        while True:
            self.facts.rewind()  # this epoch of the syncer may not have what the one before was sent
            given = message, self.facts.pending(), self.facts.oldest, self._here.me
            try:
                answer: Welcome | str = await self._ask(None, CALL_S, "attach", *given)
                return answer
            except (TimeoutError, Unreachable):
                if now() >= until:
                    raise
                await asyncio.sleep(PAUSE_S)
            except Gone:
                return None

    def report(self, message: Report) -> None:
        """Send a report soon. Of several that wait only the newest goes out: it says all that those before it said."""
        self._newest = message
        if self._reporting is None or self._reporting.done():
            self._reporting = self._spawn(self._send_reports())

    async def _send_reports(self) -> None:
        while (message := self._newest) is not None:
            self._newest = None
            if self._faults.link_down_s() > 0.0:
                if message.phase != STOPPED:
                    self._delayed.append(message)
                    continue
                with contextlib.suppress(TimeoutError):  # no later report could take along what is held back
                    await self._await_link(now() + LATE_S)
            if self.facts.behind:
                self.upload()
            for each in (*self._delayed, message):
                if len(self._reports) < REPORTS_MAX or each.phase == STOPPED:
                    facts = [] if self._uploading else self.facts.pending(REPORT_FACTS_MAX)
                    sending = self._spawn(self._report(each, facts, self.facts.oldest))
                    self._reports.add(sending)
                    sending.add_done_callback(self._reports.discard)
            self._delayed.clear()

    async def _report(self, message: Report, facts: list[Any], oldest: int) -> None:
        """Facts go along, and the answer says which are durable."""
        assert self._syncer is not None
        try:
            self.facts.acknowledge(await self._syncer.ask("report", message, facts, oldest))
        except NoAnswer:  # it may be lost, and until its facts come again, nobody takes later ones
            self.facts.rewind()

    def upload(self) -> None:
        """Send the facts that are too many for one message, in the background."""
        if not self._uploading:
            self._uploading = True
            self._spawn(self._upload())

    async def _upload(self) -> None:
        try:
            while self.facts.behind:
                await self._send_facts(CALL_S)
        finally:
            self._uploading = False

    async def flush(self, patient: bool) -> None:
        """Wait until the last report is sent and the last facts are durable, for a limited time.

        `patient`: for as long as the syncer answers.
        """
        if self._reporting is not None:
            await asyncio.wait({self._reporting}, timeout=SEND_S)
        self.facts.rewind()
        deadline = now() + FLUSH_S
        while self.facts.recorded is None and (left_s := deadline - now()) > 0.0:
            if await self._send_facts(min(CALL_S, left_s)) and patient:
                deadline = now() + FLUSH_S  # it lives, and waits for its store

    async def _send_facts(self, deadline_s: float) -> bool:
        """Send the next facts and hear what is durable by then; returns whether the syncer answered.

        Pauses where nothing new is durable.
        """
        facts, before, answered = self.facts, self.facts.oldest, False
        given = self.name, self.incarnation, facts.pending(), before
        with contextlib.suppress(NoAnswer, TimeoutError):  # sent again, perhaps to another epoch of the syncer
            facts.acknowledge(await self._ask(None, deadline_s, "record", *given))
            answered = True
        if facts.oldest == before:
            facts.rewind()
            await asyncio.sleep(PAUSE_S)
        return answered

    async def record(self, learner: str, incarnation: int, facts: list[Any], oldest: int) -> bool:
        """Have the syncer write another learner's facts to the log. Whether they are durable."""
        durable: int = await self._ask(None, CALL_S, "record", learner, incarnation, facts, oldest)
        return not facts or durable >= facts[-1][0]

    async def seek(self, message: SeekDonor) -> tuple[Donor, Peer] | None:
        """Who can give its state; None if nobody can."""
        named: tuple[Donor, Peer] | None = await self._ask(None, CALL_S, "seek", message)
        return named

    # -------------------------------------------------------------- states and versions

    async def donate(self, donor: Peer, request: StateRequest) -> tuple[State, list[Any], int] | str:
        """The donor's state, facts and oldest fact's number; a string says why it cannot give them."""
        given: tuple[State, list[Any], int] | str = await self._get(donor, request.deadline_s, "donate", request)
        return given

    async def fetch(self, fragment: int, version: int, held: int, deadline_s: float, source: Any = None) -> Found:
        """(version, digest, value, snapshot) of a fragment, if the syncer has that version.

        The value is float32[n], or the successive deltas that lead to it from the version `held`. It comes from the
        syncer, from one of its shards, or as a Version from a learner of the same region. `source`: which of the latter
        a notice named; None: whom the syncer names.
        """
        failed = ""
        for _ in range(RELAYS_MAX):
            asked = fragment, version, held, self.name, failed
            answer, source = source or await self._get(None, deadline_s, "fetch", *asked), None
            if isinstance(answer, AtShard):
                return await self._from_shard(answer, fragment, version, held, deadline_s)
            if not isinstance(answer, Elsewhere):
                found: Found = answer
                return found
            if (given := await self._from_relay(answer, fragment, version, deadline_s)) is not None:
                return given
            failed = answer.learner
        return None

    async def _from_shard(self, named: AtShard, fragment: int, version: int, held: int, deadline_s: float) -> Found:
        """A version from the shard that has it; None if that dies: then the syncer does, and another follows."""
        try:
            *found, snapshot = await self._get(named.peer, deadline_s, "fetch", fragment, version, held, self.name)
        except (NoAnswer, TimeoutError):
            return None
        return (*found, max(snapshot, named.snapshot))

    async def _from_relay(self, named: Elsewhere, fragment: int, version: int, deadline_s: float) -> Version | None:
        """A version from another learner, once that has it; None if it dies, is silent, or does not get it."""
        deadline = now() + deadline_s
        try:
            while not (there := await self._ask(named.peer, RELAY_S, "holds", fragment, version)):
                if there is None or now() >= deadline:
                    return None
            left_s = max(RELAY_S, deadline - now())
            given: Version | None = await self._get(named.peer, left_s, "received", fragment)
        except (NoAnswer, TimeoutError):
            return None
        if given is None or given.version < version:
            return None
        digest = await in_thread(self._threads, codecs.digest, given.theta)
        return given._replace(snapshot=max(given.snapshot, named.snapshot)) if digest == given.digest else None


def in_thread(threads: Executor | None, work: Callable[..., T], *given: Any) -> asyncio.Future[T]:
    """The result of what blocks or computes for long."""
    return asyncio.get_running_loop().run_in_executor(threads, work, *given)


def owned(value: Any) -> Any:
    """The value, with copies of its arrays in this process's own memory."""
    if isinstance(value, np.ndarray):
        return np.array(value)
    if isinstance(value, State):
        return replace(value, payload=owned(value.payload))
    if isinstance(value, Version):
        return Version(*map(owned, value))
    return type(value)(map(owned, value)) if isinstance(value, (list, tuple)) else value
