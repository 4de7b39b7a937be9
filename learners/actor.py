"""A learner unit as a Ray actor: the training loop and its inbox, a thin shell around the signals.

`run` is the training loop and returns when it ends. `inbox` and `read` answer in threads of their own while it
steps. JAX is imported inside `run`, in the phase that is named after it, with settings that fit the device.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import os
import queue
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import ray

from learners import checkpoint_writer
from learners.checkpoint_writer import CheckpointWriter, SavedPart
from learners.config import DataConfig, InnerConfig, WarmStart
from learners.fault_effects import FaultEffects, flipped
from learners.protocol import events_effects
from learners.protocol.fact_buffer import FactBuffer
from learners.protocol.facts import LoopFailed, Spoiled
from learners.protocol.learner import Learner
from learners.training.device import fit
from outer.config import SyncConfig
from outer.journal.object_store import Objects
from outer.numeric import codec as codecs
from outer.protocol.manifest import code_digest, manifest
from outer.protocol.messages import (
    COMPILING,
    DRAINING,
    IMPORTING,
    STEPPING,
    STOPPED,
    Attach,
    Contribution,
    Donor,
    Drain,
    Grant,
    Notice,
    ReadRequest,
    Report,
    State,
    StateRequest,
    Stop,
    Welcome,
)
from outer.protocol.quorum import Average

if TYPE_CHECKING:
    from learners.fragment_io import FragmentIO
    from learners.training.trainer import Trainer

REPORTS_MAX = 32  # on their way to the syncer; while as many are, none is added
CALL_S = 10.0  # deadline for an answer from the syncer
ATTACH_ATTEMPTS_MAX = 5


@dataclass(frozen=True)
class LearnerSpec:
    """Everything an incarnation is made from."""

    name: str
    incarnation: int
    task: str
    model: Mapping[str, Any]
    data: DataConfig
    inner: InnerConfig
    sync: SyncConfig  # with P resolved
    seed: int
    batch_size: int
    slowdown: float
    start_s: float
    shared: Mapping[str, Any]
    code: str
    core: int | None  # of this host, to be pinned to; None on clusters
    accelerated: bool  # the pool asks for GPUs or TPUs
    warm_start: WarmStart | None = None
    store: Objects | None = None  # where snapshots are kept
    saved: SavedPart | None = None  # what an earlier process has left there
    devices: int | None = 1  # local ones that a step is spread over; None: all
    model_parallel: int = 1


GROUPS = {
    "loop": 1,
    "inbox": 1,
    "read": 4,
    "give": 2,
    "keep": 1,
    "chaos": 1,
}  # concurrency groups: the loop never queues behind its inbox


class Refused(Exception):
    """The syncer does not let this learner in."""


class LearnerActor:
    """One incarnation of one learner unit."""

    def __init__(self, spec: LearnerSpec, outer: Any) -> None:
        if (code := code_digest()) != spec.code:
            raise RuntimeError(f"this node runs other sources ({code}) than the run was started with ({spec.code})")
        assert spec.sync.fragments is not None
        self._spec, self._outer = spec, outer
        self._outbox = FactBuffer(time.time)
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._answers: dict[tuple[int, int], Future[Contribution]] = {}  # by syncer step and attempt
        self._gifts: dict[tuple[str, int], Future[tuple[events_effects.Donate, list[Any]] | str]] = {}  # by joiner
        self._fetcher = ThreadPoolExecutor(2, "fetch")
        self._saver = None
        if spec.store is not None:
            self._saver = CheckpointWriter(spec.name, spec.incarnation, spec.store, lambda: self._outbox.recorded)
        self._reports: deque[Any] = deque()
        self._disturbance = FaultEffects(time.monotonic)
        self._held: deque[Report] = deque(maxlen=REPORTS_MAX // 2)  # behind a link that is down
        self._tokens_per_step = 0
        self._compute_s = Average(spec.sync.smoothing)
        self._trainer: Trainer | None = None
        self._fragment_io: FragmentIO | None = None
        self._next: queue.SimpleQueue[events_effects.RunStep | events_effects.Hold | events_effects.Exit] = (
            queue.SimpleQueue()
        )
        self._machine: Learner | None = None
        self._ended: Future[str] | None = None  # once it has begun: why the loop has ended
        signal.signal(signal.SIGTERM, self._on_sigterm)  # Ray runs constructors in the main thread

    def __repr__(self) -> str:
        return self._spec.name  # how the dashboard and log lines call this actor

    # -------------------------------------------------------------- called by the orchestrator

    def identify(self) -> dict[str, Any]:
        return {"pid": os.getpid(), "node": ray.get_runtime_context().get_node_id()}

    @ray.method(concurrency_group="loop")
    def run(self) -> str:
        """Train until the run ends; returns why it did. An exception is a fault of this incarnation.

        Called again, by another orchestrator, it waits for that end and tells the same.
        """
        if self._ended is not None:
            return self._ended.result()
        self._ended = Future()
        try:
            self._prepare()
            self._ended.set_result(self._loop())
        except Exception as error:
            step = self._machine.step if self._machine else 0
            self._outbox.add(LoopFailed(step, traceback.format_exc()))
            self._flush()
            self._ended.set_exception(error)
        return self._ended.result()

    @ray.method(concurrency_group="inbox")
    def reattach(self, outer: Any) -> str:
        """Another epoch of the syncer serves. Returns why it does not let this learner in; empty when it does."""
        self._outer = outer
        self._reports = deque()  # those on their way were to whom is gone
        if self._machine is None:
            return ""
        try:
            self._drive(events_effects.Reattach())
        except Refused as refusal:
            return str(refusal)
        except ray.exceptions.RayError:
            pass  # it is gone, too: another follows
        return ""

    # -------------------------------------------------------------- called by the syncer

    @ray.method(concurrency_group="inbox")
    def inbox(self, message: Notice | Grant | Drain | Stop) -> None:
        with self._linked():
            self._drive(message)

    @ray.method(concurrency_group="read")
    def read(self, request: ReadRequest) -> tuple[Contribution, list[Any]] | None:
        """The fragment as of one completed step, and facts to take along; None when no boundary came in time."""
        with self._linked():
            answer: Future[Contribution] = Future()
            self._answers[request.syncer_step, request.attempt] = answer
            try:
                self._drive(request)
                contribution = answer.result(timeout=request.deadline_s)
            except FutureTimeout:
                return None
            finally:
                del self._answers[request.syncer_step, request.attempt]
            if self._disturbance.corrupts():
                contribution = replace(contribution, payload=flipped(contribution.payload))
            return contribution, self._outbox.pending(everything=True)

    # -------------------------------------------------------------- called by the orchestrator, for checkpoints

    @ray.method(concurrency_group="keep")
    def saved(self, snapshot: int, deadline_s: float) -> dict[str, Any] | None:
        """What the manifest is to say of this learner's part, once that is written; None where there is none in time.

        Raises OSError for a store that does not take it.
        """
        return None if self._saver is None else self._saver.described(snapshot, deadline_s, self._may_save)

    def _may_save(self, snapshot: int) -> bool:
        with self._lock:
            return self._machine is not None and self._machine.may_save(snapshot)

    # -------------------------------------------------------------- called by a syncer that has lost its journal

    @ray.method(concurrency_group="give")
    def holdings(self) -> list[int]:
        """The version of each fragment that the syncer sent last; 0 where it sent none."""
        return [] if self._fragment_io is None or self._machine is None else self._machine.held_versions

    @ray.method(concurrency_group="give")
    def held(self, fragment: int) -> tuple[int, Any]:
        """(version, float32[n]) of what the syncer sent last of a fragment, as it came."""
        assert self._fragment_io is not None and self._machine is not None
        return self._machine.held_versions[fragment], self._fragment_io.base(fragment)

    # -------------------------------------------------------------- called by a joiner

    @ray.method(concurrency_group="give")
    def donate(self, request: StateRequest) -> tuple[State, list[Any]] | str:
        """This learner's state as of one completed step, and facts to take along; or why it cannot be had.

        The loop is not held up.
        """
        with self._linked():
            return self._answer_joiner(request)

    def _answer_joiner(self, request: StateRequest) -> tuple[State, list[Any]] | str:
        key = (request.joiner, request.joiner_incarnation)
        gift = self._gifts[key] = Future()
        try:
            self._drive(request)
            given = gift.result(timeout=request.deadline_s)
            if isinstance(given, str):
                return given
            effect, held = given
            assert self._fragment_io is not None
            state = self._fragment_io.pack(held, request, effect.step, effect.syncer_step, effect.versions)
            self._drive(events_effects.StateSent(request, effect.step, state.digest, state.size, effect.versions))
            return state, self._outbox.pending(everything=True)
        except FutureTimeout:
            return "timeout"
        finally:
            del self._gifts[key]

    # -------------------------------------------------------------- told to end by its host

    def _on_sigterm(self, number: int, frame: Any) -> None:
        """Leave in order. In a thread, for the signal may have come in the middle of anything."""
        threading.Thread(target=self._leave, name="leave").start()

    def _leave(self) -> None:
        if self._machine is None or self._machine.phase not in (STEPPING, DRAINING, STOPPED):
            os._exit(0)  # it has nothing to lose yet, and its start may take longer than it has
        self._drive(events_effects.Leave())

    # -------------------------------------------------------------- called by chaos

    @ray.method(concurrency_group="chaos")
    def disturb(self, kind: str, duration_s: float, delay_s: float, seed: str, expires_at: float) -> bool:
        """Suffer a fault from now on (see Disturbance). False, and no fault, after `expires_at` in Unix seconds."""
        if time.time() >= expires_at:
            return False  # whoever asked has given up, and said that there was none
        self._disturbance.begin(kind, duration_s, delay_s, seed)
        return True

    # -------------------------------------------------------------- the link, as far as a fault lets it

    def _await_link(self, deadline: float = math.inf) -> None:
        """Wait while a fault keeps the link down. Raises GetTimeoutError at the deadline (monotonic seconds)."""
        while (down_s := self._disturbance.link_down_s()) > 0.0:
            left_s = deadline - time.monotonic()
            if left_s <= 0.0:
                raise ray.exceptions.GetTimeoutError("the link is down")
            time.sleep(min(down_s, left_s))

    @contextlib.contextmanager
    def _linked(self) -> Iterator[None]:
        """A peer's call comes in over a link that is up, and its answer goes out over one."""
        self._await_link()
        yield
        self._await_link()

    def _ask(self, call: Callable[[], Any], deadline_s: float) -> Any:
        """A peer's answer. Time in which the link is down counts; what was on its way then comes late, or too late."""
        deadline = time.monotonic() + deadline_s
        self._await_link(deadline)
        answer = ray.get(call(), timeout=max(0.0, deadline - time.monotonic()))
        self._await_link(deadline)
        return answer

    # -------------------------------------------------------------- from process to first step

    def _prepare(self) -> None:
        spec = self._spec
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
            self._outbox = FactBuffer(time.time, first=part.facts)
        self._drive(events_effects.Enter(IMPORTING))
        fit(spec.core, spec.accelerated, spec.devices or 1)
        from learners.fragment_io import FragmentIO
        from learners.training.device import device_taken
        from learners.training.task import load
        from learners.training.trainer import Trainer, deal

        task = load(spec.task, spec.data, spec.seed, dict(spec.model))
        self._tokens_per_step = task.tokens(spec.batch_size)
        fragments = deal(task, spec.sync)
        self._trainer = Trainer(
            task, fragments, spec.inner, spec.seed, devices=spec.devices, model_parallel=spec.model_parallel
        )
        self._fragment_io = FragmentIO(self._trainer, spec.sync, len(fragments))
        if part is not None:
            self._fragment_io.restore(part.header, part.arrays)
        self._outbox.add(device_taken(spec.devices))
        self._drive(events_effects.Enter(COMPILING))
        self._trainer.warm_up(spec.batch_size)
        gc.collect()
        gc.freeze()  # what is imported and compiled stays: a full collection need not walk it
        self._drive(events_effects.Compiled(manifest(spec.shared, fragments, spec.code)))

    # -------------------------------------------------------------- the training loop

    def _loop(self) -> str:
        assert self._trainer is not None
        self._drive(events_effects.Resume())
        while True:
            match self._next.get_nowait():
                case events_effects.Exit(reason):
                    self._flush()
                    if self._saver is not None:
                        self._saver.finish()
                    if reason.startswith("failed"):
                        raise RuntimeError(reason)
                    return reason
                case events_effects.Hold(seconds):
                    self._changed.wait(seconds)
                    self._changed.clear()  # before looking, so that news after it wakes the next wait at once
                    self._drive(events_effects.Resume())
                case events_effects.RunStep(step, start, progress):
                    if self._disturbance.pop_poison():
                        self._outbox.add(Spoiled(step, 0))
                        self._trainer.load(0, np.full(self._trainer.fragments[0].size, np.nan, np.float32))
                    began = time.monotonic()
                    loss = self._trainer.step(start, self._spec.batch_size, progress)
                    self._slow_down(time.monotonic() - began)
                    time.sleep(self._disturbance.delay_s())
                    self._drive(events_effects.StepDone(loss, self._tokens_per_step, self._trainer.aux))

    def _slow_down(self, seconds: float) -> None:
        """Make the step last longer, as the pool asks. A step that was held up is not made to count twice."""
        self._compute_s.add(seconds)
        if self._spec.slowdown > 1.0:
            time.sleep((self._spec.slowdown - 1.0) * min(seconds, self._compute_s.value))

    def _drive(self, event: events_effects.Event) -> None:
        """Hand one event to the machine and do what it says. Any thread; only the loop's own causes a step."""
        assert self._machine is not None
        with self._lock:
            effects = self._machine.handle(time.monotonic(), event)
        for effect in effects:
            match effect:
                case events_effects.Emit(fact):
                    self._outbox.add(fact)
                case events_effects.Send(message):
                    if isinstance(message, Attach):
                        self._attach(message)
                    else:
                        self._report(message)
                case events_effects.Answer(contribution):
                    answer = self._answers.get((contribution.syncer_step, contribution.attempt))
                    if answer is not None and not answer.done():
                        assert self._fragment_io is not None
                        answer.set_result(self._fragment_io.encode(contribution))
                case events_effects.Fetch(fragment, version, digest):
                    self._fetcher.submit(self._fetch, fragment, version, digest)
                case events_effects.Recover():
                    self._fetcher.submit(self._recover, effect)
                case events_effects.Save():
                    assert self._fragment_io is not None
                    if self._saver is not None:
                        self._saver.save(effect, self._fragment_io.snapshot())
                case events_effects.Donate(request):
                    assert self._fragment_io is not None
                    self._give(request, (effect, self._fragment_io.state_leaves()))
                case events_effects.Decline(request, reason):
                    self._give(request, reason)
                case events_effects.Inherit(state):
                    assert self._fragment_io is not None
                    self._fragment_io.inherit(state)
                case events_effects.Stage(fragments):
                    assert self._fragment_io is not None
                    self._drive(events_effects.Staged(self._fragment_io.stage(fragments)))
                case events_effects.Apply():
                    assert self._fragment_io is not None
                    self._fragment_io.apply(effect)
                case events_effects.RunStep() | events_effects.Hold() | events_effects.Exit():
                    self._next.put(effect)
        if not isinstance(event, events_effects.Resume | events_effects.StepDone | events_effects.Staged):
            self._changed.set()

    # -------------------------------------------------------------- to the syncer

    def _attach(self, message: Attach) -> None:
        handle = ray.get_runtime_context().current_actor
        for attempt in range(1, ATTACH_ATTEMPTS_MAX + 1):
            try:
                welcome: Welcome | str = self._ask(
                    lambda: self._outer.attach.remote(message, self._outbox.pending(), handle), CALL_S
                )
                break
            except ray.exceptions.GetTimeoutError:
                if attempt == ATTACH_ATTEMPTS_MAX:
                    raise
            except ray.exceptions.RayActorError:
                return  # it is gone; this learner attaches to its successor as soon as it hears of it
        if isinstance(welcome, str):
            raise Refused(f"the syncer refused this learner: {welcome}")
        self._drive(welcome)

    def _report(self, message: Report) -> None:
        """Fire and forget; earlier reports' answers say which facts are recorded."""
        if self._disturbance.link_down_s() > 0.0 and message.phase != STOPPED:
            self._held.append(message)  # and arrives late, in its order
            return
        if message.phase == STOPPED:  # nothing comes after it that could take along what is held
            self._await_link()
        reports = self._reports
        while reports:
            done, _ = ray.wait([reports[0]], timeout=0)
            if not done:
                break
            try:
                self._outbox.acknowledge(ray.get(reports.popleft()))
            except ray.exceptions.RayError:
                continue  # lost on the way, perhaps; its facts ride again
        for each in (*self._held, message):
            if len(reports) < REPORTS_MAX or each.phase == STOPPED:
                reports.append(self._outer.report.remote(each, self._outbox.pending()))
        self._held.clear()

    def _flush(self) -> None:
        """Wait, briefly, until the last facts are recorded."""
        spec = self._spec
        with contextlib.suppress(ray.exceptions.RayError):  # the syncer is gone: nobody is left to tell
            while facts := self._outbox.pending():
                record = functools.partial(self._outer.record.remote, spec.name, spec.incarnation, facts)
                self._outbox.acknowledge(self._ask(record, CALL_S))

    def _give(self, request: StateRequest, given: tuple[events_effects.Donate, list[Any]] | str) -> None:
        gift = self._gifts.get((request.joiner, request.joiner_incarnation))
        if gift is not None and not gift.done():
            gift.set_result(given)

    def _recover(self, effect: events_effects.Recover) -> None:
        """Have a donor named, and get its state; whatever comes in between is a missed state, never an exception."""
        donor, incarnation = "", 0
        try:
            named: tuple[Donor, Any] | None = self._ask(lambda: self._outer.seek.remote(effect.seek), CALL_S)
            if named is None:
                self._drive(self._state_saved())
                return
            donor, incarnation = named[0].donor, named[0].donor_incarnation
            request = StateRequest(
                named[0].epoch,
                effect.seek.learner,
                effect.seek.incarnation,
                donor,
                incarnation,
                named[0].syncer_step,
                effect.deadline_s,
            )
            donate = functools.partial(named[1].donate.remote, request)
            given: tuple[State, list[Any]] | str = self._ask(donate, effect.deadline_s)
            assert self._fragment_io is not None
            if isinstance(given, str):
                reason = given
            else:
                state, facts = given
                reason = self._fragment_io.examine(state)
                # Should the donor die now, the log would lack the steps that this learner starts from.
                self._ask(lambda: self._outer.record.remote(donor, incarnation, facts), CALL_S)
        except Exception as error:  # nobody reads this thread's: whatever it is, the joiner has to go on
            reason = type(error).__name__
        if reason:
            self._drive(events_effects.StateMissed(donor, incarnation, reason))
        else:
            self._drive(events_effects.StateArrived(state))

    def _state_saved(self) -> events_effects.StateArrived | events_effects.StateMissed:
        """With nobody to give: what an earlier process has left in a checkpoint, if there is any and it is whole."""
        spec = self._spec
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # damage is said where it is chosen
            if spec.saved is not None and spec.store is not None and self._fragment_io is not None:
                state = checkpoint_writer.read(spec.store, spec.saved).donor_state
                if not self._fragment_io.examine(state):
                    return events_effects.StateArrived(state)
        return events_effects.StateMissed("", 0, "none")

    def _fetch(self, fragment: int, version: int, noticed: str) -> None:
        """Get a fragment's newest value; `noticed`: the checksum that the notice of this version gave, if any."""
        result: events_effects.Event = events_effects.FetchFailed(fragment, version, "fetch_failed")
        with contextlib.suppress(Exception):  # nobody reads this thread's: whatever it is, the machine has to hear
            answer = self._ask(lambda: self._outer.fetch.remote(fragment, version), self._spec.sync.transfer_s)
            if answer is not None:
                newest, digest, payload, snapshot = answer
                sound = digest == codecs.digest(payload) and (newest != version or noticed in ("", digest))
                arrived = events_effects.Fetched(fragment, newest, payload, snapshot)
                result = arrived if sound else events_effects.FetchFailed(fragment, version, "bad_digest")
        self._drive(result)
