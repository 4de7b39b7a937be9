"""One incarnation of a learner without its transport: the training loop, and the answers to its peers.

The methods of LearnerShell run in an event loop, and the training loop where `pace` has it. JAX is imported inside
`run` or, of a standby, inside `prepare`, with settings that fit the device.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from learners import checkpoint_writer
from learners.checkpoint_writer import CheckpointWriter
from learners.fault_effects import FaultEffects, flipped
from learners.fetcher import AT_ONCE, Fetcher
from learners.link import ATTACH_S, LATE_S, Link, Version, in_thread
from learners.ports import Device, Pace
from learners.protocol import events_effects
from learners.protocol.fact_buffer import FactBuffer, read_clocks
from learners.protocol.facts import LoopFailed
from learners.protocol.learner import Learner
from learners.spec import LearnerSpec
from learners.step_runner import StepRunner
from learners.training.devices import cores
from outer.background import Background
from outer.owner import Owner
from outer.ports import Here, NoAnswer, Peer, now
from outer.protocol import messages
from outer.protocol.messages import Attach, Contribution, Drain, ReadRequest, Report, State, StateRequest

BEHIND = "behind"  # why a learner gives nothing: it has to upload its facts first
LEAVE_MARGIN_S = 30.0  # beyond the deadline to leave, for the step under way and the last facts
RENEWALS, WORKS = 40, 0.0025  # four renewals a lease of a start; with a hundredth of a core in between, it works
ANSWERS_AT_ONCE, STATES_AT_ONCE = 4, 2  # threads that encode answers, and that pack states

LOOP_EVENTS = events_effects.Resume | events_effects.Boundary | events_effects.StepDone | events_effects.Waiting

T = TypeVar("T")


class SyncerRefused(Exception):
    """The syncer refuses this learner."""


class LearnerShell:
    """Drives the machine: hands it events, and does what its effects say.

    The machine is driven by the event loop and by the training loop. What an effect does to the devices is done by the
    one of them that drove; what it does to other processes, by the event loop.
    """

    _loop: asyncio.AbstractEventLoop | None = None  # from `run` on
    _home = 0  # likewise: its thread
    _address = ""  # where the ranks of an island meet
    _ended: asyncio.Future[str]  # likewise: why the training loop ended

    def __init__(
        self, spec: LearnerSpec, here: Here, syncer: Peer | None, faults: FaultEffects, device: Device, pace: Pace
    ) -> None:
        """`syncer`: None for a standby, until it is promoted."""
        assert spec.sync.fragments is not None
        self._spec, self._here, self._faults, self._device, self._pace = spec, here, faults, device, pace
        self._facts = FactBuffer(here.wall, monotonic=pace.now)
        self._owner = Owner()
        self._serves = 0  # the newest epoch of the syncer that it was told of
        self._background = Background(self._fail)
        spawn, threads = self._background.spawn, ThreadPoolExecutor(AT_ONCE, "fetch", initializer=cores.leave)
        self._link = Link(spec.name, spec.incarnation, syncer, here, faults, threads, spawn, self._facts)
        self._fetcher = Fetcher(self._link, self._drive, spawn, threads, spec.sync, spec.store, spec.saved)
        self._threads = ThreadPoolExecutor(ANSWERS_AT_ONCE, "answer", initializer=cores.leave)
        self._packers = ThreadPoolExecutor(STATES_AT_ONCE, "give", initializer=cores.leave)
        self._states = asyncio.Semaphore(STATES_AT_ONCE)
        self._inbox = asyncio.Lock()  # messages are handed in in their order, after the Welcome of their epoch
        self._promoted = asyncio.Event()
        self._lock = threading.Lock()  # of the machine; not held while anything is waited for
        self._outgoing: deque[Callable[[], object]] = deque()  # what the event loop is to do
        self._waiting: dict[tuple[Any, ...], asyncio.Future[Any]] = {}  # peers' calls, by what they asked for
        self._to_attach: Attach | None = None
        self._writer: CheckpointWriter | None = None
        self._steps: StepRunner | None = None
        self._next: deque[events_effects.RunStep | events_effects.Hold | events_effects.Exit] = deque()
        self._machine: Learner | None = None
        self._failure: BaseException | None = None  # of the machine or a task: the training loop raises it
        self._exit_at = math.inf  # loop's seconds; when this process ends even if its training loop does not

    # -------------------------------------------------------------- called by the orchestrator

    async def identify(self) -> dict[str, Any]:
        """Its process, learner and incarnation; 0: a standby that was not promoted."""
        return {**self._here.identity, "key": (self._spec.name, self._spec.incarnation)}

    async def prepare(self) -> None:
        """Import and compile ahead, in a standby."""
        await in_thread(self._pace.thread, self._device.ahead)

    async def stand_by(self, seconds: float) -> bool:
        """Wait to be promoted, but no longer than this; returns whether it was."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._promoted.wait(), seconds)
        return self._promoted.is_set()

    async def promote(self, number: int, name: str, incarnation: int, core: int | None, syncer: Peer) -> dict[str, Any]:
        """Make a standby this incarnation of this learner, and `run` follows. `core`: the one of this learner;
        `number`: the orchestrator's. Raises Superseded.
        """
        self._owner.require(number)
        if not self._promoted.is_set():  # else this comes twice, and it attaches: another `use` would end that
            cores.move(core)
            self._spec = replace(self._spec, name=name, incarnation=incarnation, core=core)
            self._link.name, self._link.incarnation = name, incarnation
            self._link.use(syncer)
            self._promoted.set()
        return await self.identify()

    async def lead(self, ranks: Sequence[Peer]) -> str:
        """Lead an island, as its rank 0, with these others. Returns where they meet.

        Asked again, by another orchestrator, it says the same.
        """
        self._address = self._address or self._meet(ranks)
        return self._address

    def _meet(self, ranks: Sequence[Peer]) -> str:
        """Say where to meet, and have the devices reach the others: a subclass can."""
        raise NotImplementedError

    async def run(self) -> str:
        """Train until the run ends; returns why it did. An exception is a fault of this incarnation.

        Called again, by another orchestrator, it waits for the same end.
        """
        if self._loop is None:
            self._loop, self._home = asyncio.get_running_loop(), threading.get_ident()
            self._ended = self._loop.create_future()
            try:
                self._ended.set_result(await self._live())
            except (asyncio.CancelledError, GeneratorExit):
                raise
            except BaseException as error:  # whatever a task raises
                step = self._machine.step if self._machine else 0
                self._facts.add(LoopFailed(step, traceback.format_exc()))
                await self._link.flush(patient=False)
                ordinary = isinstance(error, Exception)  # Ray takes an interruption for its own
                self._ended.set_exception(error if ordinary else RuntimeError(f"{type(error).__name__}: {error}"))
        return await asyncio.shield(self._ended)

    async def reattach(self, number: int, epoch: int, syncer: Peer) -> str:
        """This epoch of the syncer serves. Returns why it refuses this learner; empty when it does not.

        `number`: the orchestrator's. Raises Superseded.
        """
        self._owner.require(number)
        if epoch < self._serves:
            return ""  # overtaken on the way
        self._serves = epoch
        self._link.use(syncer)
        async with self._inbox:
            if self._machine is None:
                return ""
            self._fetcher.received.clear()  # another epoch may have lost versions that are here
            self._drive(events_effects.Reattach())
            try:
                await self._attach(ATTACH_S)
            except SyncerRefused as refusal:
                return str(refusal)
            except (NoAnswer, TimeoutError) as error:
                if self._machine.epoch is None:
                    self._fail(error)  # no lease would tell that it waits in vain
                # else this epoch is gone, too, or the orchestrator asks it again
        return ""

    async def progress(self) -> tuple[bool, int | None]:
        """(whether the training loop is alive, the epoch that it is attached to). It needs no link to the syncer."""
        with self._lock:
            machine = self._machine
            return (False, None) if machine is None else (machine.is_alive(self._pace.now()), machine.epoch)

    async def saved(self, snapshot: int, deadline_s: float) -> dict[str, Any] | None:
        """This learner's part of a checkpoint, for the manifest; None when it is not written in time.

        Raises OSError when the store does not take it.
        """
        return None if self._writer is None else await self._writer.described(snapshot, deadline_s, self._may_save)

    def _may_save(self, snapshot: int) -> bool:
        with self._lock:
            return self._machine is not None and self._machine.may_save(snapshot)

    async def disturb(self, kind: str, duration_s: float, delay_s: float, seed: str, expires_at: float) -> bool:
        """For chaos: suffer a fault from now on: see FaultEffects."""
        return self._faults.begin_by(self._here.wall(), kind, duration_s, delay_s, seed, expires_at)

    def leave(self) -> None:
        """The host tells this process to end. Any thread may call it, in the middle of anything."""
        if self._loop is None:
            self._here.end()
        else:
            self._loop.call_soon_threadsafe(self._leave)

    def _leave(self) -> None:
        if self._machine is None or self._machine.phase not in (messages.STEPPING, messages.DRAINING, messages.STOPPED):
            self._here.end()  # it has nothing to lose yet, and its start may take longer than it has
        else:
            self._exit_after(self._spec.sync.drain_s)
            self._drive(events_effects.Leave())

    def _exit_after(self, deadline_s: float) -> None:
        """End this process some time after its deadline to leave: its loop may never come to a boundary again."""
        exit_at = now() + deadline_s + LEAVE_MARGIN_S
        if exit_at < self._exit_at:  # else a repeated request
            self._exit_at = exit_at
            asyncio.get_running_loop().call_at(exit_at, self._here.end)

    # -------------------------------------------------------------- called by the syncer

    async def inbox(self, *sent: messages.Notice | messages.Grant | Drain | messages.Stop) -> None:
        """Messages in the order in which they were sent."""
        async with self._inbox, self._link.up(LATE_S):
            for message in sent:
                if isinstance(message, Drain):
                    self._exit_after(message.deadline_s)
                self._drive(message)

    async def read(self, request: ReadRequest) -> tuple[Contribution, list[Any], int] | str:
        """The fragment as of one completed step, and all facts that are not durable, with the oldest one's number.

        A string says why not: no_boundary came in time, or behind: more facts wait than a message carries.
        """
        async with self._link.up(LATE_S):
            came_at = now()
            contribution = await self._asked(request, _read_key(request), request.deadline_s)
            if contribution is None:
                return "no_boundary"
            contribution = await in_thread(self._threads, self._device.fragment_io.encode, contribution)
            if self._faults.corrupts():
                contribution = replace(contribution, payload=flipped(contribution.payload))
            facts = self._every_fact()
            return BEHIND if facts is None else (replace(contribution, held_s=now() - came_at), *facts)

    def _every_fact(self) -> tuple[list[Any], int] | None:
        """All facts that are not durable, and the oldest one's number; None, and their upload begins, if too many."""
        if (facts := self._facts.everything()) is None:
            self._link.upload()
            return None
        return facts, self._facts.oldest

    async def held_versions(self) -> list[int]:
        """For a syncer that has lost its journal: the version of each fragment that the last one sent; 0 for none."""
        if self._machine is None:
            return []
        known, bases = self._machine.held_versions, self._device.fragment_io.bases()
        return [version if version == base else 0 for version, (base, _) in zip(known, bases, strict=True)]

    async def held(self, fragment: int) -> tuple[int, Any]:
        """For a syncer that has lost its journal: (version, float32[n]) of what the last one sent, as it came."""
        return self._device.fragment_io.bases()[fragment]

    # -------------------------------------------------------------- called by other learners

    async def holds(self, fragment: int, version: int) -> bool | None:
        """See Fetcher.holds."""
        async with self._link.up(LATE_S):
            return await self._fetcher.holds(fragment, version)

    async def received(self, fragment: int) -> Version | None:
        """The newest version that is here."""
        async with self._link.up(LATE_S):
            return self._fetcher.received.get(fragment)

    async def donate(self, request: StateRequest) -> tuple[State, list[Any], int] | str:
        """The state as of one completed step, and facts as `read`; a string says why it cannot be had.

        The training loop is not held up.
        """
        async with self._states, self._link.up(request.deadline_s):
            given = await self._asked(request, _donation_key(request), request.deadline_s)
            if given is None or isinstance(given, str):
                return given or "timeout"
            effect, held = given
            as_of = effect.step, effect.syncer_step, effect.versions
            state = await in_thread(self._packers, self._device.fragment_io.pack, held, request, *as_of)
            self._drive(events_effects.StateSent(request, effect.step, state.digest, state.size, effect.versions))
            return BEHIND if (facts := self._every_fact()) is None else (state, *facts)

    async def _asked(self, request: ReadRequest | StateRequest, key: tuple[Any, ...], deadline_s: float) -> Any:
        """Hand a peer's question to the machine, and wait for `_answer`; None if none comes in time."""
        answer = self._waiting[key] = asyncio.get_running_loop().create_future()
        try:
            self._drive(request)
            await asyncio.wait({answer}, timeout=deadline_s)
            return answer.result() if answer.done() else None
        finally:
            if self._waiting.get(key) is answer:  # else the same question came again, and waits
                del self._waiting[key]

    def _answer(self, key: tuple[Any, ...], given: Any) -> None:
        answer = self._waiting.get(key)
        if answer is not None and not answer.done():
            answer.set_result(given)

    # -------------------------------------------------------------- from process to first step, and to the end

    async def _live(self) -> str:
        await self._prepare()
        await self._attach(max(ATTACH_S, self._spec.start_s))  # the syncer may be starting, too
        reason = await self._pace.run(self._train())
        await self._link.flush(patient=self._writer is not None and self._writer.finishing)
        if self._writer is not None:
            self._writer.finish()
        await in_thread(self._pace.thread, self._device.end)
        if reason.startswith("failed"):
            raise RuntimeError(reason)
        return reason

    async def _prepare(self) -> None:
        spec, device, part = self._spec, self._device, None
        machine = Learner(
            name=spec.name,
            incarnation=spec.incarnation,
            config=spec.sync,
            fragments=spec.sync.fragments or 0,
            batch_size=spec.batch_size,
            span_steps=spec.data.span_steps,
            ahead_s=spec.data.ahead_s,
            start_s=spec.start_s,
        )
        if spec.saved is not None and spec.saved.exact:
            assert spec.store is not None
            part = await in_thread(self._threads, checkpoint_writer.read, spec.store, spec.saved)
            machine.resume(spec.saved.snapshot, part.resume_state)
            self._facts = self._link.facts = FactBuffer(self._here.wall, part.facts, monotonic=self._pace.now)
        if spec.store is not None:
            self._writer = CheckpointWriter(spec.name, spec.incarnation, spec.store, self._facts)
        self._machine, self._fetcher.round_s = machine, lambda: machine.round_s
        self._drive(events_effects.Enter(messages.IMPORTING))
        await in_thread(self._pace.thread, device.load)
        self._fetcher.fragment_io = device.fragment_io
        self._fetcher.chain = device.chain
        self._facts.add(device.device)
        self._drive(events_effects.Enter(messages.COMPILING))
        await in_thread(self._pace.thread, device.compile)
        if part is not None:
            await in_thread(self._pace.thread, device.fragment_io.restore, part.header, part.arrays)
        self._drive(events_effects.Compiled(device.manifest))

    async def renew_start(self, waits: Callable[[], bool]) -> None:
        """Renew the lease of a start for as long as this process works, or waits for a rank, up to RENEWALS times."""
        for _ in range(RENEWALS):
            before = time.process_time()
            await asyncio.sleep(self._spec.start_s / 4)
            machine, works = self._machine, time.process_time() - before > WORKS * self._spec.start_s
            if (works or waits()) and machine is not None and machine.phase in (messages.IMPORTING, messages.COMPILING):
                self._drive(events_effects.Enter(machine.phase))

    async def _attach(self, patience_s: float) -> None:
        """Attach, where the machine has asked for it. Raises SyncerRefused, NoAnswer and TimeoutError."""
        message, self._to_attach = self._to_attach, None
        welcome = None if message is None else await self._link.attach(message, patience_s)
        if isinstance(welcome, str):
            raise SyncerRefused(f"the syncer refused this learner: {welcome}")
        if welcome is not None:  # else it attaches to the next epoch as soon as it hears of that
            self._drive(welcome)

    # -------------------------------------------------------------- the training loop

    async def _train(self) -> str:
        """Run steps until the machine ends; returns why it does. What this waits for, it waits for through `pace`."""
        self._steps = StepRunner(self._device, self._spec, self._faults, self._pace, self._drive, self._facts.add)
        self._drive(events_effects.Resume())
        while True:
            if self._failure is not None:
                raise self._failure
            match self._next.popleft():
                case events_effects.Exit(reason):
                    return reason
                case events_effects.Hold(seconds):
                    if self._steps.busy:
                        await self._steps.complete()
                    else:
                        await self._pace.wait(seconds)
                    self._drive(events_effects.Resume())
                case events_effects.RunStep() as run:
                    await self._steps.run(run)
                    self._drive(events_effects.Boundary(self._device.tokens_per_step))

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._pace.wake()

    # -------------------------------------------------------------- the machine and its effects

    def _drive(self, event: events_effects.Event) -> None:
        """Hand one event to the machine and carry out its effects, in order."""
        effects = deque(self._handled(event))
        while effects:
            effect = effects.popleft()
            if isinstance(effect, events_effects.Stage):  # what follows from the copies comes before what follows it
                staged = events_effects.Staged(self._device.fragment_io.stage(effect.fragments))
                effects.extendleft(reversed(self._handled(staged)))
            else:
                self._perform(effect)
        if threading.get_ident() == self._home:
            self._send_outgoing()
        elif self._outgoing:
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._send_outgoing)
        if not isinstance(event, LOOP_EVENTS):
            self._pace.wake()

    def _handled(self, event: events_effects.Event) -> list[events_effects.Effect]:
        """The effects of an event. Its facts are added here, before another thread hands out what they are about."""
        assert self._machine is not None
        with self._lock:
            # Of what the machine measures and of its facts' dates alike, should the process be frozen in here.
            at, wall = read_clocks(self._pace.now, self._here.wall)
            try:
                effects = self._machine.handle(at, event)
            except Exception as error:
                self._fail(error)
                raise
            for effect in effects:
                if isinstance(effect, events_effects.Emit):
                    self._facts.add(effect.fact, wall)
            return effects

    def _perform(self, effect: events_effects.Effect) -> None:
        """Carry out one effect, or put what it does to others among what goes out."""
        match effect:
            case events_effects.Apply():
                self._device.fragment_io.apply(effect)
            case events_effects.RunStep() | events_effects.Hold() | events_effects.Exit():
                self._next.append(effect)
            case events_effects.Inherit(state):
                self._device.fragment_io.inherit(state)
            case events_effects.Save():
                if self._writer is not None:
                    snapshot = self._paused(self._device.fragment_io.snapshot)
                    self._outgoing.append(partial(self._writer.save, effect, snapshot))
            case events_effects.Donate(request):
                given = effect, self._paused(self._device.fragment_io.capture)
                self._outgoing.append(partial(self._answer, _donation_key(request), given))
            case events_effects.Decline(request, reason):
                self._outgoing.append(partial(self._answer, _donation_key(request), reason))
            case events_effects.Answer(contribution):
                self._outgoing.append(partial(self._answer, _read_key(contribution), contribution))
            case events_effects.Fetch():
                self._outgoing.append(partial(self._fetcher.fetch, effect))
            case events_effects.Recover():
                self._outgoing.append(partial(self._fetcher.recover, effect))
            case events_effects.Send(Attach() as message):
                self._to_attach = message
            case events_effects.Send(Report() as message):
                self._outgoing.append(partial(self._link.report, message))

    def _send_outgoing(self) -> None:
        while self._outgoing:
            self._outgoing.popleft()()

    def _paused(self, take: Callable[[], T]) -> T:
        """Take a snapshot in the training loop. The time for which that holds it up is no step's."""
        if self._outgoing and self._loop is not None:
            self._loop.call_soon_threadsafe(self._send_outgoing)  # what comes before it does not wait for it
        began = self._pace.now()
        taken = take()
        if self._steps is not None:
            self._steps.paused(self._pace.now() - began)
        return taken


def _read_key(asked: ReadRequest | Contribution) -> tuple[Any, ...]:
    return "read", asked.epoch, asked.syncer_step, asked.attempt


def _donation_key(asked: StateRequest) -> tuple[Any, ...]:
    return "donation", asked.joiner, asked.joiner_incarnation
