"""The syncer as a detached Ray actor: the thin shell around the signals.

One event loop runs the machine; merges run in one thread beside it, and the journal is written in another. Bulk data
leaves only as return values, which their caller owns. Nothing here decides anything about the protocol.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import ray
from numpy.typing import NDArray

from outer.config import OuterConfig, SyncConfig
from outer.journal import checkpoint_parts
from outer.journal.journal import Arrays, Cut, Opened, Value
from outer.journal.object_store import Objects
from outer.journal.rebuild import JOURNAL, RecoverySource, rebuild, replay_log
from outer.journal.recovery_sources import Incomplete, RecoverySources
from outer.journal.writer import JournalWriter
from outer.numeric import codec as codecs
from outer.numeric.codec import examine
from outer.protocol import events_effects
from outer.protocol.facts import StateRebuilt
from outer.protocol.fragments import Fragment
from outer.protocol.manifest import code_digest, manifest
from outer.protocol.messages import (
    Attach,
    Contribution,
    Donor,
    Drain,
    Grant,
    Notice,
    ReadRequest,
    Report,
    SeekDonor,
    Stop,
    Welcome,
)
from outer.protocol.recovery import Entry, Recovered
from outer.protocol.syncer import Budget, Syncer

Riding = Sequence[tuple[int, float, Any]]  # (sequence, wall time, fact): a learner's facts, until acknowledged

# Where chaos can kill the syncer, in the order in which a commit passes them.
RECEIVED, MERGED, JOURNALING, JOURNALED, APPLIED, ANNOUNCED = POINTS = (
    "received",  # a contribution is here, and nobody knows
    "merged",
    "journaling",  # the record is about to be written
    "journaled",  # and durable, and nobody knows
    "applied",
    "announced",
)
CUT_POLL_S = 0.05
HOLDINGS_S = 10.0  # for a learner to give what it holds of a fragment
ANNOUNCED_S = 0.02  # for notices to be on their way
UNDELIVERED_MAX = 64  # messages on their way to one learner; more are dropped, the machine sends again
LATE_S = 120.0  # an answer that comes after its deadline is still heard, to be refused, for this long


class Recorder(Protocol):
    """Where facts go: the syncer's own, and those that learners' messages carry."""

    def record(self, writer: str, incarnation: int, facts: Riding) -> int:
        """Append what is new; return the sequence up to which everything is recorded."""
        ...

    def close(self) -> None:
        """The log is about to be sealed: take nothing more."""
        ...


@dataclass(frozen=True)
class SyncerSpec:
    """Everything an epoch of the syncer is made from."""

    epoch: int
    sync: SyncConfig
    outer: OuterConfig
    learners: Mapping[str, int]  # name -> batch size
    quorum: int
    span_steps: int
    ahead_s: float
    budget: Budget
    shared: Mapping[str, Any]  # the recipe's tables that every learner must share
    code: str  # digest of the sources that the run was started with
    store: Objects  # where journal and checkpoints are
    durability: str = "journal"
    journal: Objects | None = None  # where the journal is, if not there


@dataclass(frozen=True)
class _Peer:
    incarnation: int
    handle: Any


class SyncerActor:
    """The outer optimizer. Created detached and named, with resources of its own."""

    def __init__(
        self,
        spec: SyncerSpec,
        initial: Callable[
            [], tuple[tuple[Fragment, ...], list[NDArray[np.float32]], Mapping[str, str], Mapping[str, Any]]
        ],
        recorder: Recorder,
        salvage: RecoverySources | None = None,
    ) -> None:
        if (code := code_digest()) != spec.code:
            raise RuntimeError(f"this node runs other sources ({code}) than the run was started with ({spec.code})")
        os.environ["JAX_PLATFORMS"] = "cpu"
        from outer.numeric.merge import rules  # JAX starts here, on the CPU, and not when Ray loads the class
        from outer.numeric.parameters import GlobalParameters

        self._spec = spec
        self._fragments, arrays, patterns, self._task = initial()
        tensors = [tensor for fragment in self._fragments for tensor in fragment.tensors]
        self._parameters = GlobalParameters(
            self._fragments, arrays, spec.outer, spec.sync.codec, rules(tensors, spec.outer.merge, patterns)
        )
        keeps = spec.durability != "checkpoint"
        callbacks = (self._durable, self._depose, self._reach)
        self._keeper = JournalWriter(spec.journal or spec.store, spec.epoch, len(self._fragments), *callbacks, keeps)
        self._rebuilt: StateRebuilt | None = None
        found = self._recover(self._keeper.open(), salvage)
        self._machine = Syncer(
            epoch=spec.epoch,
            config=spec.sync,
            fragments=self._fragments,
            learners=spec.learners,
            quorum=spec.quorum,
            span_steps=spec.span_steps,
            budget=spec.budget,
            manifest=manifest(spec.shared, self._fragments, code),
            recovered=found if spec.epoch > 1 else None,
            ahead_s=spec.ahead_s,
            reopened=True,
            durability=spec.durability,
        )
        self._recorder = recorder
        self._said = 0
        self._deposed = ""  # why nothing is to be done any more
        self._merger = ThreadPoolExecutor(1, "merge")
        self._examiner = ThreadPoolExecutor(2, "examine")
        self._peers: dict[str, _Peer] = {}
        self._undelivered: Counter[tuple[str, int]] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._digests = [codecs.digest(theta) for theta in self._parameters.thetas]
        self._failure = ""
        self._cuts: dict[int, asyncio.Future[Cut]] = {}  # by snapshot, until they are written
        self._initial: dict[int, dict[int, NDArray[Any]]] = {}  # by snapshot, then fragment: had not committed by then
        self._dies_at: dict[str, int] = {}  # for chaos: at which point, passed so many times from now

    def _recover(self, opened: Opened, salvage: RecoverySources | None) -> Recovered:
        """Put in force what the epochs before have left. Raises Incomplete where the journal alone does not tell."""
        epoch, found = self._spec.epoch, opened.found
        lacking = [
            f"version {version} of fragment {fragment} is lost"
            for fragment, version in enumerate(found.versions)
            if version and (fragment not in opened.values or opened.values[fragment].version != version)
        ]
        if epoch > 1 and not found.batch_sizes and not opened.damage:
            lacking.append("the journal has no records")
        if epoch == 1 or not (lacking or opened.damage):
            for fragment, value in opened.values.items():
                self._parameters.restore(fragment, value.version, value.arrays)
            return found
        why = "; ".join([*opened.damage, *lacking])
        if salvage is None:
            raise Incomplete(why)
        return self._rebuild(opened, salvage, why)

    def _rebuild(self, opened: Opened, salvage: RecoverySources, why: str) -> Recovered:
        log = replay_log(salvage.records, len(self._fragments))
        journal = {
            fragment: RecoverySource(JOURNAL, value, codecs.digest(value.arrays[0]))
            for fragment, value in opened.values.items()
        }
        kept = salvage.cut(self._spec.store)
        rebuilt = rebuild(log, journal, kept, salvage.held_by_learners(log.found.versions, journal, _ask))
        for fragment, value in rebuilt.values.items():
            if fragment in rebuilt.momentum_lost:
                self._parameters.restore_theta(fragment, value.version, value.arrays[0])
            else:
                self._parameters.restore(fragment, value.version, value.arrays)
            rebuilt.found.digests[fragment] = codecs.digest(value.arrays[0])
        self._rebuilt = rebuilt.fact(why)
        values = {
            fragment: Value(v.version, self._parameters.arrays(fragment)) for fragment, v in rebuilt.values.items()
        }
        found = self._keeper.seed(rebuilt.replay, values)
        found.clock = rebuilt.clock
        return found

    def __repr__(self) -> str:
        return "outer"  # how the dashboard and log lines call this actor

    # -------------------------------------------------------------- called by the orchestrator

    async def identify(self) -> dict[str, Any]:
        process = {"pid": os.getpid(), "node": ray.get_runtime_context().get_node_id()}
        return process | {"run": self._keeper.run, "task": self._task}

    async def start(self, living: tuple[events_effects.Expect, ...] = ()) -> dict[str, Any]:
        """Begin the epoch; `living`: who trains already, where it goes on from another."""
        self._perform(self._machine.start())
        if self._rebuilt is not None:
            self._perform([events_effects.Emit(self._rebuilt)])
        if self._spec.epoch > 1:
            self._drive(events_effects.Living(living))
        gc.collect()
        gc.freeze()  # what is imported stays: a full collection need not walk it
        return await self.identify()

    async def expect(self, expected: events_effects.Expect) -> None:
        peer = self._peers.get(expected.learner)
        if peer is not None and peer.incarnation < expected.incarnation:
            del self._peers[expected.learner]
        self._drive(expected)

    async def drain(self, request: events_effects.DrainRequested) -> bool:
        """Whether it was told to leave; False: it has nothing to lose and is fenced, or was gone before."""
        sent = (effect for effect in self._drive(request) if isinstance(effect, events_effects.Send))
        return any(isinstance(effect.message, Drain) for effect in sent)

    async def fence(self, learner: str, incarnation: int, reason: str) -> None:
        self._drive(events_effects.Fence(learner, incarnation, reason))

    async def snapshot_now(self, identifier: int, final: str = "") -> bool:
        """Take a consistent cut; `final`: why the run is suspended with it. False: the run is over."""
        self._drive(events_effects.TakeSnapshot(identifier, final))
        return not self._machine.finished

    async def kept(self, identifier: int, deadline_s: float) -> dict[str, Any]:
        """Write the syncer's part of a snapshot; its seal and size. Raises TimeoutError, OSError, FileExistsError."""
        give_up_at = _now() + deadline_s
        while identifier not in self._cuts:  # a commit under way comes first
            if _now() >= give_up_at:
                raise TimeoutError(f"snapshot {identifier} was not taken within {deadline_s:g} s")
            await asyncio.sleep(CUT_POLL_S)
        cut = await asyncio.wait_for(self._cuts.pop(identifier), max(0.0, give_up_at - _now()))
        header, arrays = cut.part(self._spec.epoch, identifier, self._fragments, self._initial.pop(identifier))
        work = functools.partial(
            checkpoint_parts.write, self._spec.store, identifier, checkpoint_parts.SYNCER, header, arrays
        )
        described = await asyncio.get_running_loop().run_in_executor(None, work)
        where = {"syncer_step": max(cut.state["versions"]), "tokens_committed": cut.state["tokens_committed"]}
        return described | where | {"epoch": self._spec.epoch}

    async def move(self, journal: Objects) -> None:
        """Keep the journal in another store from here on."""
        await self._keeper.move(journal)

    async def stop(self, reason: str) -> None:
        self._drive(events_effects.StopRequested(reason))

    async def close(self) -> None:
        """Nothing is recorded from here on, whoever still reports."""
        self._recorder.close()

    async def clock(self) -> dict[str, Any]:
        """Where the run is; cheap enough to ask often."""
        syncer = self._machine
        return {
            "running_s": None if syncer.first_step_at is None else _now() - syncer.first_step_at,
            "syncer_step": syncer.committed_step,
            "progress": syncer.progress,
            "tokens": syncer.tokens_committed,
            "finished": syncer.finished,
            "suspended": syncer.suspended,
        }

    async def view(self) -> dict[str, Any]:
        """Everything status pages show."""
        now, syncer = _now(), self._machine
        self._drive(events_effects.Tick())
        return await self.clock() | {
            "epoch": syncer.epoch,
            "quorum": syncer.quorum,
            "grace_s": syncer.grace_s,
            "step_s": syncer.step_s,
            "tokens_processed": syncer.tokens_processed,
            "moved_s_ago": None if syncer.moved_at is None else now - syncer.moved_at,
            "learners": syncer.view(now),
            "journal": self._keeper.view(),
            "failure": self._failure,
        }

    async def die(self, point: str, times: int) -> None:
        """For chaos: be killed on the spot when this point has been passed so many times."""
        assert point in POINTS, point
        self._dies_at[point] = times

    async def snapshot(self) -> tuple[int, list[NDArray[np.float32]], tuple[Fragment, ...]]:
        """(newest committed syncer step, float32[n] per fragment, what is in each)."""
        return self._machine.committed_step, list(self._parameters.thetas), self._fragments

    # -------------------------------------------------------------- called by learners

    async def attach(self, message: Attach, facts: Riding, handle: Any) -> Welcome | str:
        """A Welcome, or in words why this learner may not join."""
        self._record(message.learner, message.incarnation, facts)
        before = self._peers.get(message.learner)
        self._peers[message.learner] = _Peer(message.incarnation, handle)
        effects = self._drive(message)
        for effect in effects:
            if isinstance(effect, events_effects.Send) and isinstance(effect.message, Welcome):
                return effect.message
        if before is None:
            del self._peers[message.learner]
        else:
            self._peers[message.learner] = before  # a refused incarnation must not stand in the way of the living one
        refusals = [effect.fact for effect in effects if isinstance(effect, events_effects.Emit)]
        return "; ".join(str(fact) for fact in refusals)

    async def seek(self, message: SeekDonor) -> tuple[Donor, Any] | None:
        """Whose state to copy, and its handle; None where nobody can give."""
        for effect in self._drive(message):
            if isinstance(effect, events_effects.Send) and isinstance(effect.message, Donor):
                named, peer = effect.message, self._peers.get(effect.message.donor)
                if peer is not None and peer.incarnation == named.donor_incarnation:
                    return named, peer.handle
        return None

    async def report(self, message: Report, facts: Riding) -> int:
        """Returns the sequence up to which this incarnation's facts are recorded."""
        recorded = self._record(message.learner, message.incarnation, facts)
        self._drive(message)
        return recorded

    async def record(self, learner: str, incarnation: int, facts: Riding) -> int:
        """Last words of a training loop."""
        return self._record(learner, incarnation, facts)

    async def fetch(self, fragment: int, version: int) -> tuple[int, str, NDArray[np.float32], int] | None:
        """(version, SHA-256, float32[n], snapshot): the newest, if it is at least the version asked for."""
        parameters = self._parameters
        if parameters.versions[fragment] < version:
            return None
        newest = (parameters.versions[fragment], self._digests[fragment], parameters.thetas[fragment])
        return *newest, self._machine.marker

    # -------------------------------------------------------------- the machine and its effects

    def _drive(self, event: events_effects.Event) -> list[events_effects.Effect]:
        if self._deposed:
            return []
        try:
            effects = self._machine.handle(_now(), event)
            self._perform(effects)
        except Exception:
            self._failure = traceback.format_exc()
            raise
        self._set_timer()
        return effects

    def _perform(self, effects: list[events_effects.Effect]) -> None:
        facts: list[tuple[int, float, Any]] = []
        for effect in effects:
            match effect:
                case events_effects.Emit(fact):
                    facts.append((self._said, time.time(), fact))
                    self._said += 1
                case events_effects.Send(learner, incarnation, message):
                    self._send(learner, incarnation, message)
                case events_effects.Merge():
                    self._spawn(self._merge(effect))
                case events_effects.Append(sequence, said, record, proposal):
                    arrays: Arrays = proposal.arrays if proposal is not None else []
                    self._keeper.append(Entry(self._spec.epoch, sequence, said, record), arrays)
                case events_effects.Cut(identifier):
                    self._cuts[identifier] = self._keeper.cut()
                    versions, thetas = self._parameters.versions, self._parameters.thetas
                    self._initial[identifier] = {n: thetas[n] for n, version in enumerate(versions) if version == 0}
                case events_effects.Publish(fragment, version, proposal):
                    self._parameters.install(proposal, version)
                    self._digests[fragment] = proposal.digest
                    self._reach(APPLIED)
                    asyncio.get_running_loop().call_later(ANNOUNCED_S, self._reach, ANNOUNCED)
        if facts:
            self._record("syncer", self._spec.epoch, facts)

    def _record(self, writer: str, incarnation: int, facts: Riding) -> int:
        """What cannot be written down must not go on: a failure here is the run's."""
        try:
            return self._recorder.record(writer, incarnation, facts)
        except Exception:
            self._failure = traceback.format_exc()
            raise

    def _durable(self, sequence: int) -> None:
        self._drive(events_effects.Durable(sequence))

    def _depose(self, why: str) -> None:
        """A newer epoch is there: not a word more, to anybody."""
        self._deposed = why
        self._recorder.close()
        print(f"outer epoch {self._spec.epoch}: {why}", flush=True)  # in the actor's own log
        os._exit(0)

    def _reach(self, point: str) -> None:
        """Where chaos may want this process to die."""
        if point in self._dies_at:
            self._dies_at[point] -= 1
            if self._dies_at[point] <= 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        at = self._machine.wake_at
        self._timer = None
        if at is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.001, at - _now()), self._drive, events_effects.Tick())

    async def _merge(self, effect: events_effects.Merge) -> None:
        loop = asyncio.get_running_loop()
        try:
            proposal = await loop.run_in_executor(
                self._merger, self._parameters.propose, effect.fragment, effect.payloads, effect.weights
            )
        except Exception:
            self._failure = traceback.format_exc()
            raise
        self._reach(MERGED)
        self._drive(
            events_effects.Merged(effect.syncer_step, proposal, proposal.digest, proposal.norm, proposal.finite)
        )

    # -------------------------------------------------------------- to learners

    def _send(self, learner: str, incarnation: int, message: events_effects.ToLearner) -> None:
        peer = self._peers.get(learner)
        if isinstance(message, Welcome | Donor):
            return  # attach and seek return them
        if peer is None or peer.incarnation != incarnation:
            return
        if isinstance(message, ReadRequest):
            self._spawn(self._read(learner, peer, message))
        elif isinstance(message, Stop) or self._undelivered[learner, incarnation] < UNDELIVERED_MAX:
            self._spawn(self._deliver(learner, peer, message))

    async def _deliver(self, learner: str, peer: _Peer, message: Notice | Grant | Drain | Stop) -> None:
        self._undelivered[learner, peer.incarnation] += 1
        try:
            await asyncio.wait_for(_future(peer.handle.inbox.remote(message)), LATE_S)
        except (ray.exceptions.RayError, TimeoutError):
            pass  # a dead or frozen learner: its lease tells
        finally:
            self._undelivered[learner, peer.incarnation] -= 1

    async def _read(self, learner: str, peer: _Peer, request: ReadRequest) -> None:
        answer = _future(peer.handle.read.remote(request))
        done, _ = await asyncio.wait({answer}, timeout=request.deadline_s)
        if not done:
            self._drive(events_effects.ReadMissed(learner, peer.incarnation, request.syncer_step, "timeout"))
            await asyncio.wait({answer}, timeout=LATE_S)
            if not answer.done():
                answer.cancel()
                return
        try:
            reply: tuple[Contribution, Riding] | None = answer.result()
        except ray.exceptions.RayError as error:
            reason = type(error).__name__
            self._drive(events_effects.ReadMissed(learner, peer.incarnation, request.syncer_step, reason))
            return
        if reply is None:
            self._drive(events_effects.ReadMissed(learner, peer.incarnation, request.syncer_step, "no_boundary"))
            return
        contribution, facts = reply
        self._reach(RECEIVED)
        self._record(learner, peer.incarnation, facts)
        if contribution.learner != learner or not 0 <= contribution.fragment < len(self._fragments):
            contribution = replace(contribution, learner=learner, payload=None, defect="wrong_sender")
        else:
            size = self._fragments[contribution.fragment].size
            loop = asyncio.get_running_loop()
            contribution = await loop.run_in_executor(
                self._examiner, examine, contribution, self._spec.sync.codec, size
            )
        self._drive(contribution)


def _ask(learner: Any, method: str, *arguments: Any) -> Any:
    """A learner's answer; None when it is dead or frozen: another may hold the same."""
    try:
        return ray.get(getattr(learner, method).remote(*arguments), timeout=HOLDINGS_S)
    except ray.exceptions.RayError:
        return None


def _now() -> float:
    return time.monotonic()


def _future(ref: Any) -> asyncio.Future[Any]:
    return asyncio.ensure_future(_await(ref))


async def _await(ref: Any) -> Any:
    return await ref
