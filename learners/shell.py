"""One incarnation of a learner without its transport: the training loop, and the answers to its peers.

`run` is the training loop; the other public methods may be called from any thread while it steps. JAX is imported
inside `run` or, of a standby, inside `prepare`, with settings that fit the device.
"""

from __future__ import annotations

import math
import os
import queue
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from learners import checkpoint_writer
from learners.checkpoint_writer import CheckpointWriter
from learners.fault_effects import FaultEffects, flipped
from learners.fetcher import Fetcher, SyncerLink
from learners.preparation import Preparation
from learners.protocol import events_effects
from learners.protocol.fact_buffer import FactBuffer, read_clocks
from learners.protocol.facts import LoopFailed
from learners.protocol.learner import Learner
from learners.spec import LearnerSpec
from learners.step_runner import StepRunner
from learners.training.devices import cores
from outer.background import thread
from outer.numeric.chain import VersionChain
from outer.protocol.messages import (
    COMPILING,
    DRAINING,
    IMPORTING,
    STEPPING,
    STOPPED,
    Attach,
    Contribution,
    Drain,
    ReadRequest,
    Report,
    State,
    StateRequest,
)

if TYPE_CHECKING:
    from learners.training.island import Others

BEHIND = "behind"  # why a learner gives nothing: it has to upload its facts first
SEND_S = 130.0  # for the last report: as long as a link that is down may hold it up, and a little more
LEAVE_MARGIN_S = 30.0  # beyond the deadline to leave, for the step under way and the last facts

LOOP_EVENTS = (
    events_effects.Resume,
    events_effects.Boundary,
    events_effects.StepDone,
    events_effects.Waiting,
    events_effects.Staged,
)

T = TypeVar("T")


class SyncerRefused(Exception):
    """The syncer refuses this learner."""


class ReportSender:
    """Sends reports, and the facts that wait, in a thread of its own: the training loop goes on at once.

    Of several that wait only the newest goes out: it says all that those before it said. The thread makes no report
    itself, so a report stays a sign of life of the loop. `send` sends one; `begin` is called first in the thread.
    """

    def __init__(self, send: Callable[[Report], None], begin: Callable[[], None]) -> None:
        self._send, self._begin = send, begin
        self._changed = threading.Condition()
        self._newest: Report | None = None
        self._sending = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def put(self, report: Report) -> None:
        """Have this report sent. Raises what sending an earlier one raised."""
        with self._changed:
            if self._error is not None:
                raise self._error
            self._newest = report
            self._changed.notify_all()
            if self._thread is None:
                self._thread = thread("reports", self._run, self._fail)

    def finish(self, timeout_s: float) -> bool:
        """Wait until the last report is sent. False if it is not within `timeout_s` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._newest is None and not self._sending, timeout_s)

    def _run(self) -> None:
        self._begin()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._newest is not None)
                report, self._newest, self._sending = self._newest, None, True
            assert report is not None
            try:
                self._send(report)
            except BaseException as error:
                self._fail(error)
            finally:
                with self._changed:
                    self._sending = False
                    self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        self._error = error  # the loop raises it


class LearnerShell:
    """Drives the machine: hands it events, and does what its effects say."""

    def __init__(
        self, spec: LearnerSpec, link: SyncerLink, faults: FaultEffects, granted: Sequence[str] | None = None
    ) -> None:
        """`granted`: the GPUs that Ray grants this process, if Ray runs it."""
        assert spec.sync.fragments is not None
        self._spec, self._link, self._faults = spec, link, faults
        self._prepared = Preparation(spec, granted)
        self._facts = FactBuffer(time.time)
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._waiting: dict[tuple[Any, ...], Future[Any]] = {}  # peers' calls, by what they asked for
        self.fetcher = Fetcher(link, self._drive, spec.sync.transfer_s, spec.store, spec.saved)
        self._writer: CheckpointWriter | None = None
        self._reports = ReportSender(lambda report: link.report(report, self._facts), cores.leave)
        self._steps: StepRunner | None = None
        self._next: queue.SimpleQueue[events_effects.RunStep | events_effects.Hold | events_effects.Exit] = (
            queue.SimpleQueue()
        )
        self._machine: Learner | None = None
        self._failure: Exception | None = None  # of the machine, in any thread: the loop raises it
        self._exit_at = math.inf  # monotonic; when this process ends even if its loop does not
        self._ended: Future[str] | None = None  # once the loop has begun: why it ended

    # -------------------------------------------------------------- called by the actor

    @property
    def key(self) -> tuple[str, int]:
        """Learner and incarnation; 0: a standby that was not promoted."""
        return self._spec.name, self._spec.incarnation

    def prepare(self) -> None:
        """Import and compile ahead, in a standby."""
        self._prepared.ahead()

    def lead(self, address: str, others: Others) -> None:
        """Before `run`: this is rank 0 of an island, and reaches the others so."""
        self._prepared.meet(address, others)

    def promote(self, name: str, incarnation: int, core: int | None) -> None:
        """A standby is this incarnation from now on, and `run` follows. `core`: the one of this learner."""
        cores.move(core)
        self._spec = replace(self._spec, name=name, incarnation=incarnation, core=core)

    def run(self) -> str:
        """Train until the run ends; returns why it did. An exception is a fault of this incarnation.

        Called again, by another orchestrator, it waits for the same end.
        """
        if self._ended is not None:
            return self._ended.result()
        self._ended = Future()
        try:
            self._prepare()
            self._ended.set_result(self._loop())
        except BaseException as error:  # whatever a task raises
            step = self._machine.step if self._machine else 0
            self._facts.add(LoopFailed(step, traceback.format_exc()))
            self._flush()
            ordinary = isinstance(error, Exception)  # Ray takes an interruption for its own
            self._ended.set_exception(error if ordinary else RuntimeError(f"{type(error).__name__}: {error}"))
        return self._ended.result()

    def reattach(self) -> str:
        """Attach to a new epoch of the syncer. Returns why that refuses this learner; empty when it does not."""
        if self._machine is None:
            return ""
        self.fetcher.received.clear()
        try:
            self._drive(events_effects.Reattach())
        except SyncerRefused as refusal:
            return str(refusal)
        return ""

    def progress(self) -> tuple[bool, int | None]:
        """(whether the training loop is alive, the epoch that it is attached to), for the orchestrator."""
        with self._lock:
            machine = self._machine
            return (False, None) if machine is None else (machine.is_alive(time.monotonic()), machine.epoch)

    def deliver(self, message: events_effects.Event) -> None:
        """A message of the syncer has come in."""
        if isinstance(message, Drain):
            self._exit_after(message.deadline_s)
        self._drive(message)

    def read(self, request: ReadRequest) -> tuple[Contribution, list[Any], int] | str:
        """The fragment as of one completed step, and all facts that are not durable, with the oldest one's number.

        A string says why not: no_boundary came in time, or behind: more facts wait than a message carries.
        """
        came_at = time.monotonic()
        contribution = self._asked(request, _read_key(request), request.deadline_s)
        if contribution is None:
            return "no_boundary"
        contribution = self._prepared.fragment_io.encode(contribution)  # here, for it waits for the device
        if self._faults.corrupts():
            contribution = replace(contribution, payload=flipped(contribution.payload))
        if (facts := self._every_fact()) is None:
            return BEHIND
        return replace(contribution, held_s=time.monotonic() - came_at), *facts

    def _every_fact(self) -> tuple[list[Any], int] | None:
        """All facts that are not durable, and the oldest one's number; None, and their upload begins, if too many."""
        if (facts := self._facts.everything()) is None:
            self._link.upload(self._spec.name, self._spec.incarnation, self._facts)
            return None
        return facts, self._facts.oldest

    def donate(self, request: StateRequest) -> tuple[State, list[Any], int] | str:
        """The state as of one completed step, and facts as `read`; a string says why it cannot be had."""
        given = self._asked(request, _donation_key(request), request.deadline_s)
        if given is None or isinstance(given, str):
            return given or "timeout"
        effect, held = given
        state = self._prepared.fragment_io.pack(held, request, effect.step, effect.syncer_step, effect.versions)
        self._drive(events_effects.StateSent(request, effect.step, state.digest, state.size, effect.versions))
        return BEHIND if (facts := self._every_fact()) is None else (state, *facts)

    def _asked(self, request: ReadRequest | StateRequest, key: tuple[Any, ...], deadline_s: float) -> Any:
        """Hand a peer's question to the machine, and wait for `_answer`; None if none comes in time."""
        answer = self._waiting[key] = Future()
        try:
            self._drive(request)
            return answer.result(timeout=deadline_s)
        except FutureTimeout:
            return None
        finally:
            if self._waiting.get(key) is answer:  # else the same question came again, and waits
                del self._waiting[key]

    def _answer(self, key: tuple[Any, ...], given: Any) -> None:
        answer = self._waiting.get(key)
        if answer is not None and not answer.done():
            answer.set_result(given)

    def saved(self, snapshot: int, deadline_s: float) -> dict[str, Any] | None:
        """This learner's part of a checkpoint, for the manifest; None when it is not written in time.

        Raises OSError when the store does not take it.
        """
        return None if self._writer is None else self._writer.described(snapshot, deadline_s, self._may_save)

    def _may_save(self, snapshot: int) -> bool:
        with self._lock:
            return self._machine is not None and self._machine.may_save(snapshot)

    @property
    def held_versions(self) -> list[int]:
        """The version of each fragment that the syncer sent last; 0 where it sent none."""
        return [] if self._machine is None else self._machine.held_versions

    def held(self, fragment: int) -> tuple[int, Any]:
        """(version, float32[n]) of what the syncer sent last of a fragment, as it came."""
        assert self._machine is not None
        return self._machine.held_versions[fragment], self._prepared.fragment_io.base(fragment)

    def leave(self) -> None:
        """The host tells this process to end."""
        if self._machine is None or self._machine.phase not in (STEPPING, DRAINING, STOPPED):
            os._exit(0)  # it has nothing to lose yet, and its start may take longer than it has
        self._exit_after(self._spec.sync.drain_s)
        self._drive(events_effects.Leave())

    def _exit_after(self, deadline_s: float) -> None:
        """End this process some time after its deadline to leave: the loop may never come to a boundary again."""
        exit_at = time.monotonic() + deadline_s + LEAVE_MARGIN_S
        with self._lock:
            if exit_at >= self._exit_at:
                return  # a repeated request
            self._exit_at = exit_at
        timer = threading.Timer(deadline_s + LEAVE_MARGIN_S, os._exit, (0,))
        timer.daemon = True
        timer.start()

    # -------------------------------------------------------------- from process to first step

    def _prepare(self) -> None:
        spec, prepared = self._spec, self._prepared
        if spec.store is not None:
            self._writer = CheckpointWriter(spec.name, spec.incarnation, spec.store, lambda: self._facts.recorded)
        self._machine = Learner(
            name=spec.name,
            incarnation=spec.incarnation,
            config=spec.sync,
            fragments=spec.sync.fragments or 0,
            batch_size=spec.batch_size,
            span_steps=spec.data.span_steps,
            ahead_s=spec.data.ahead_s,
            start_s=spec.start_s,
        )
        part = None
        if spec.saved is not None and spec.saved.exact:
            assert spec.store is not None
            part = checkpoint_writer.read(spec.store, spec.saved)
            self._machine.resume(spec.saved.snapshot, part.resume_state)
            self._facts = FactBuffer(time.time, first=part.facts)
        self._drive(events_effects.Enter(IMPORTING))
        prepared.load()
        self.fetcher.fragment_io = prepared.fragment_io
        self.fetcher.chain = VersionChain.of(spec.sync.downlink, prepared.fragments)
        self._facts.add(prepared.device)
        self._drive(events_effects.Enter(COMPILING))
        prepared.compile()
        if part is not None:
            self._prepared.fragment_io.restore(part.header, part.arrays)
        self._drive(events_effects.Compiled(prepared.manifest))

    # -------------------------------------------------------------- the training loop

    def _loop(self) -> str:
        tokens = self._prepared.tokens_per_step
        self._steps = StepRunner(
            self._prepared.trainer,
            self._spec.batch_size,
            tokens,
            self._spec.slowdown,
            self._spec.sync.smoothing,
            self._faults,
            done=self._drive,
            waits=lambda: self._drive(events_effects.Waiting()),
            say=self._facts.add,
        )
        self._drive(events_effects.Resume())
        while True:
            if self._failure is not None:
                raise self._failure
            match self._next.get_nowait():
                case events_effects.Exit(reason):
                    self._flush(patient=self._writer is not None and self._writer.finishing)
                    if self._writer is not None:
                        self._writer.finish()
                    self._prepared.end()
                    if reason.startswith("failed"):
                        raise RuntimeError(reason)
                    return reason
                case events_effects.Hold(seconds):
                    if self._steps.busy:
                        self._steps.complete()
                    else:
                        self._changed.wait(seconds)
                        self._changed.clear()  # before looking, so that news after it wakes the next wait at once
                    self._drive(events_effects.Resume())
                case events_effects.RunStep() as run:
                    self._steps.run(run)
                    self._drive(events_effects.Boundary(tokens))

    def _drive(self, event: events_effects.Event) -> None:
        """Hand one event to the machine and carry out its effects. Any thread may call; only the loop runs steps."""
        assert self._machine is not None
        with self._lock:
            now, at = read_clocks()  # of what it measures and of its facts' dates alike, should it be frozen in here
            try:
                effects = self._machine.handle(now, event)
            except Exception as error:
                self._failure = error
                self._changed.set()
                raise
            for effect in effects:
                if isinstance(effect, events_effects.Emit):  # before another thread hands out what the fact is about
                    self._facts.add(effect.fact, at)
        for effect in effects:
            match effect:
                case events_effects.Send(message):
                    if isinstance(message, Attach):
                        self._attach(message)
                    else:
                        self._reports.put(message)
                case events_effects.Answer(contribution):
                    self._answer(_read_key(contribution), contribution)
                case events_effects.Fetch():
                    self.fetcher.fetch(effect)
                case events_effects.Recover():
                    self.fetcher.recover(effect)
                case events_effects.Save():
                    if self._writer is not None:
                        self._writer.save(effect, self._paused(self._prepared.fragment_io.snapshot))
                case events_effects.Donate(request):
                    self._answer(_donation_key(request), (effect, self._paused(self._prepared.fragment_io.capture)))
                case events_effects.Decline(request, reason):
                    self._answer(_donation_key(request), reason)
                case events_effects.Inherit(state):
                    self._prepared.fragment_io.inherit(state)
                case events_effects.Stage(fragments):
                    self._drive(events_effects.Staged(self._prepared.fragment_io.stage(fragments)))
                case events_effects.Apply():
                    self._prepared.fragment_io.apply(effect)
                case events_effects.RunStep() | events_effects.Hold() | events_effects.Exit():
                    self._next.put(effect)
        if not isinstance(event, LOOP_EVENTS):
            self._changed.set()

    def _paused(self, take: Callable[[], T]) -> T:
        """Take a snapshot in the training loop. The time for which that holds it up is no step's."""
        began = time.monotonic()
        taken = take()
        if self._steps is not None:
            self._steps.paused(time.monotonic() - began)
        return taken

    # -------------------------------------------------------------- to the syncer

    def _attach(self, message: Attach) -> None:
        welcome = self._link.attach(message, self._facts)
        if isinstance(welcome, str):
            raise SyncerRefused(f"the syncer refused this learner: {welcome}")
        if welcome is not None:  # else it attaches to the next epoch as soon as it hears of that
            self._drive(welcome)

    def _flush(self, patient: bool = False) -> None:
        self._reports.finish(SEND_S)
        self._link.flush(self._spec.name, self._spec.incarnation, self._facts, patient)


def _read_key(asked: ReadRequest | Contribution) -> tuple[Any, ...]:
    return "read", asked.epoch, asked.syncer_step, asked.attempt


def _donation_key(asked: StateRequest) -> tuple[Any, ...]:
    return "donation", asked.joiner, asked.joiner_incarnation
