"""Keeps the wanted learners and one syncer alive: the shell of the production controller in a simulated run.

It detects deaths after a delay, grants incarnations and epochs, and carries out the controller's actions. It never
fails, and its messages to a process arrive, unless the process is dead or frozen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from pydantic import NonNegativeInt

from learners.checkpoint_writer import SavedPart
from orchestrator.eventlog.chain_reader import ChainReader, Findings
from orchestrator.eventlog.facts import (
    LearnerLost,
    LearnerRequested,
    LearnerStarted,
    NodePreempted,
    PoolScaled,
    RunFinished,
    RunResumed,
)
from orchestrator.eventlog.reader import records
from orchestrator.lifecycle.actions import Action, AskToLeave, End, Probe, RecordNotice, RecordScaling, Start
from orchestrator.lifecycle.checkpointer import CALL_S, Checkpointer
from orchestrator.lifecycle.controller import Controller
from orchestrator.lifecycle.patience import Patience
from orchestrator.recipe.config import DurabilityConfig, PoolConfig
from orchestrator.simulation.context import SimContext
from orchestrator.simulation.learner_process import LearnerProcess, learner_spec
from orchestrator.simulation.process import Host, Process
from orchestrator.simulation.syncer_process import SyncerProcess
from orchestrator.store import checkpoints
from outer.journal.chain import identity
from outer.journal.groups import SYNCER, encode_replay
from outer.journal.journal_writer import FOLDER
from outer.journal.rebuild import Incomplete, RecoverySources, replay_log
from outer.ports import NoAnswer, Peer, Raised, now
from outer.protocol import events_effects

SYNCER_HANG_S = 3.0  # a syncer that has not answered for so long counts as dead
SYNCER_START_S = 120.0  # for a syncer to begin
NUMBER = 1  # of the one orchestrator that there is
CALL_AGAIN_S = 0.2
LEAVE_S = 30.0  # for learners to return once the run is suspended
CLOSE_S = 60.0  # for what waits to be written to the log
PAUSE_S = 2.0  # between two sessions


class SimPool(PoolConfig):
    """A pool whose learners have names of their own. It may begin without any."""

    name: str
    learners: NonNegativeInt = 0
    members: list[str]  # every learner that it may have, in the order in which they are added

    def names(self, learners: int) -> list[str]:
        return self.members[:learners]


def _pools(context: SimContext, first: Collection[str]) -> list[SimPool]:
    """The pools of all learners; `first`: those that are wanted from the start."""
    members: dict[str, list[str]] = {}
    for name in sorted(context.specs, key=lambda name: name not in first):
        members.setdefault(context.specs[name].pool, []).append(name)
    return [
        SimPool(name=pool, learners=sum(name in first for name in names), max=len(names), members=names)
        for pool, names in members.items()
    ]


class Orchestrator(Process):
    """The process of what runs beside the supervision: checkpoints, taken by the production code."""

    def __init__(self, supervisor: Supervisor, host: Host, every_s: float) -> None:
        super().__init__(supervisor.time, host, ("orchestrator", 1))
        context = supervisor.context
        self.jobs.takes, self.raised = context.durations.job, context.observer.raised
        self.network = context.network
        self._supervisor, self._taken = supervisor, 0
        durability = DurabilityConfig(every_s=every_s)
        self.checkpoints = Checkpointer(
            durability, "", self._grant, context.store, _Caller(self), self._savers, supervisor.emit, Patience()
        )

    def _grant(self) -> int:
        self._taken += 1
        return self._taken

    def _savers(self) -> list[tuple[str, int, Peer]]:
        return [(*learner.key, learner.me) for learner in self._supervisor.learners.values() if learner.alive]

    async def suspend(self, reason: str) -> None:
        """Have every learner save its state and leave, so that the run can be resumed exactly."""
        supervisor, give_up_at = self._supervisor, now() + LEAVE_S
        await self.checkpoints.finish()
        identifier = await self.checkpoints.cut(final=reason)
        while any(learner.alive and not learner.exited for learner in supervisor.learners.values()):
            await asyncio.sleep(CALL_AGAIN_S)
            if now() >= give_up_at:
                break
        if identifier is not None:
            gone = [(*each.key, each.me) for each in supervisor.learners.values() if each.alive and each.exited]
            await self.checkpoints.gather(identifier, gone, final=True)
        self.time.after(0.0, supervisor.end_session, reason)

    def look(self) -> None:
        """Take a checkpoint, if it is time. Call it in the process's loop, once a syncer serves."""
        self.checkpoints.start_if_due(None)

    async def call(self, method: str, arguments: tuple[Any, ...], patience_s: float, call_s: float) -> Any:
        """The answer of the syncer that serves, or of a later one."""
        give_up_at = now() + patience_s
        while True:
            syncer = self._supervisor.syncer
            if syncer is not None and syncer.alive:
                try:
                    left_s = max(0.0, min(call_s, give_up_at - now()))
                    return await asyncio.wait_for(syncer.me.ask("command", NUMBER, method, *arguments), left_s)
                except Raised as error:
                    raise error.__cause__ or error from None
                except (NoAnswer, TimeoutError):
                    if now() >= give_up_at:
                        raise
            await asyncio.sleep(CALL_AGAIN_S)
            if now() >= give_up_at:
                raise TimeoutError("no syncer serves")


class _Caller:
    """The port orchestrator.lifecycle.checkpointer.Caller."""

    def __init__(self, process: Orchestrator) -> None:
        self._process = process

    @property
    def run(self) -> str:
        syncer = self._process._supervisor.syncer
        return "" if syncer is None else syncer.shell._journal.run

    async def call(self, method: str, *arguments: Any, patience_s: float, call_s: float = CALL_S) -> Any:
        return await self._process.call(method, arguments, patience_s, call_s)


class Supervisor:
    """`make_syncer` makes the process of that epoch's syncer; the sources help where the journal is incomplete.

    `quorum`: the pools cannot be scaled down to fewer learners. `every_s`: between two checkpoints; 0: none is taken.
    """

    def __init__(
        self,
        context: SimContext,
        learners: Iterable[str],
        make_syncer: Callable[[int, RecoverySources | None], SyncerProcess],
        quorum: int = 0,
        every_s: float = 0.0,
    ) -> None:
        durations, learners = context.durations, list(learners)
        pools = _pools(context, learners)
        self.learners: dict[str, LearnerProcess] = {}  # the newest incarnation of each, once its process is up
        self.syncer: SyncerProcess | None = None
        self.finished_at: float | None = None  # when it first saw the run finished
        self.finished = ""  # why it is
        self.suspending = False  # nobody is replaced any more
        self._wanted: list[str] = []  # when the session began to end
        self.paused = False  # between two sessions there is nothing
        self.over = False
        self.context, self.time, self._durations, self._make_syncer = context, context.time, durations, make_syncer
        self.process = Orchestrator(self, Host("orchestrator"), every_s)
        self._every_s = every_s
        self._pools, self._quorum = {pool.name: pool for pool in pools}, quorum
        self._numbers: dict[str, int] = {}  # by learner: its newest incarnation's
        self._saved: dict[str, SavedPart] = {}  # what each may start from the first time
        self.controller = self._controller(learners)
        self._stopping = ""  # why the run is to end before its budget is reached
        self._epoch = 0
        self._detected = 0  # the epoch whose end was detected last
        self._frozen_since: float | None = None
        self._expected: dict[str, int] = {}  # the newest incarnation of each learner that the syncer expects

    def _controller(self, learners: Iterable[str]) -> Controller:
        return Controller(
            list(learners),
            backoff_s=self._durations.backoff_s,
            hang_s=self._durations.hang_s,
            unreachable_s=self._durations.unreachable_s,
            drain_s=self.context.sync.drain_s,
            pools=list(self._pools.values()),
            quorum=self._quorum,
        )

    def start(self) -> None:
        self._next_epoch()
        self._advance()
        self.time.after(self._durations.look_s, self._poll)

    # -------------------------------------------------------------- polling

    def _poll(self) -> None:
        if self.over:
            return
        if self.paused:
            self.time.after(self._durations.look_s, self._poll)
            return
        self._look_at_syncer()
        syncer = self.syncer
        if syncer is not None and syncer.alive and syncer.shell._ended:
            syncer.crash()
        if syncer is not None and syncer.serves:
            self._call(syncer, "view", (), id)
            if syncer.machine.finished and self.finished_at is None:
                self.finished_at, self.finished = self.time.now, syncer.machine.finished
            for row in syncer.machine.view(syncer.clock()):
                if row["alive"]:
                    self.controller.reachable(row["name"], row["incarnation"])
                elif row["lease_age_s"] is not None and self.finished_at is None:
                    self._act(self.controller.silent(row["name"], row["incarnation"], row["lease_age_s"]))
        if self._every_s and not self.suspending and syncer is not None and syncer.serves:
            self.process.deliver(self.process.look)
        if self.finished_at is None:
            self._replace()
        elif not any(learner.alive for learner in self.learners.values()):
            self._end()
            return
        self.time.after(self._durations.look_s, self._poll)

    # -------------------------------------------------------------- the end of a session, and the next

    def suspend(self, reason: str) -> bool:
        """End this session, and resume the run in another one. False: there is nothing to suspend now."""
        if self.suspending or self.over or self.finished_at is not None or not self.context.saving:
            return False
        self.suspending, self._wanted = True, self.controller.wanted
        self.process.deliver(lambda: self.process.spawn(self.process.suspend(reason)))
        return True

    def end_session(self, reason: str) -> None:
        """Everybody has saved what there was time for."""
        if self.finished_at is not None:
            self.suspending = False
            return
        self.paused = True
        for learner in self.learners.values():
            learner.die()
        assert self.syncer is not None
        self.syncer.mourn(lambda: self._session_ended(reason))
        self.time.after(CLOSE_S, self.syncer.die)
        self._tell(self.syncer, "close", done=partial(self._closed, self.syncer))

    def _session_ended(self, reason: str) -> None:
        self.emit(RunFinished("stopped", reason))
        self.time.after(PAUSE_S, self._resume)

    def _resume(self) -> None:
        """As another orchestrator does with what it finds in the store."""
        store = self.context.store
        try:
            found = checkpoints.resumption(store, identity(store, FOLDER))
        except OSError:  # the store is away
            self.time.after(self._durations.retry_s(), self._resume)
            return
        damaged = tuple(f"checkpoint {snapshot}: {wrong}" for snapshot, wrong in found.damage)
        exact: set[str] = set()
        if found.manifest is not None:
            manifest = found.manifest
            exact = set() if damaged else set(checkpoints.exact_learners(manifest, self._epoch, self._numbers))
            self._saved = {
                name: SavedPart(manifest.snapshot, part.part, part.seal, part.incarnation, name in exact)
                for name, part in manifest.learners.items()
            }
        snapshot = 0 if found.manifest is None else found.manifest.snapshot
        self.emit(RunResumed(self._epoch, snapshot, tuple(sorted(exact)), damaged))
        self.controller = self._controller(self._wanted)
        self.learners, self._expected = {}, {}
        self.suspending = self.paused = False
        self._advance()
        self._next_epoch()

    def _end(self) -> None:
        """No learner is left: the syncer closes its log, and ends."""
        assert self.syncer is not None
        self.syncer.mourn(self._ended_all)
        self._tell(self.syncer, "close", done=partial(self._closed, self.syncer))

    @staticmethod
    def _closed(syncer: SyncerProcess, end: Any) -> None:
        syncer.die()

    def _ended_all(self) -> None:
        self.over = True
        self.process.die()
        self.emit(RunFinished("finished", self.finished))

    def _advance(self) -> None:
        self._act(self.controller.advance(self.time.now))

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Start(name):
                    self._start(name)
                case AskToLeave():
                    self._drain(action)
                case Probe(name):
                    self._probe(name, action.incarnation)
                case End(name):
                    if (learner := self.learners.get(name)) is not None:
                        learner.die()
                    self.time.after(self._durations.end_s, self._lost, name, action.incarnation, "lease_expired")
                case RecordScaling():
                    self.emit(PoolScaled(action.pool, action.learners, action.added, action.removed, action.reason))
                case RecordNotice(node, names, remaining_s):
                    self.emit(NodePreempted(node, names, remaining_s))

    def emit(self, fact: Any) -> None:
        """Record a fact of the orchestrator."""
        context = self.context
        context.said.append((self.time.now, fact))
        if context.trace is not None:
            context.trace(self.time.now, "orchestrator", fact)

    # -------------------------------------------------------------- one learner after another

    def _start(self, name: str) -> None:
        """Grant an incarnation. Its process begins once it is up and the syncer expects it."""
        spec = self.context.specs[name]
        saved = self._saved.pop(name, None)
        exact = saved is not None and saved.exact
        incarnation = self._numbers[name] = self._numbers.get(name, 0) + (not exact)
        self.controller.started(name, incarnation, resumed=exact)
        if not exact:
            self.emit(LearnerRequested(name, incarnation, spec.pool, spec.region))
        if self.syncer is not None and self.syncer.alive:
            event = self._announced(name, incarnation)
            self._tell(self.syncer, "expect", event, done=lambda _: self._heard(name, incarnation))
        self._durations.place(name, incarnation, self._up, name, incarnation, saved)

    def _announced(self, name: str, incarnation: int) -> events_effects.Expect:
        spec = self.context.specs[name]
        return events_effects.Expect(name, incarnation, self._durations.start_s, spec.batch_size, spec.region or "")

    def _heard(self, name: str, incarnation: int) -> None:
        """The syncer expects it."""
        if self._expected.get(name, 0) < incarnation:
            self._expected[name] = incarnation
            learner = self.learners.get(name)
            if learner is not None and learner.incarnation == incarnation:
                self.time.reach(self._durations.begin_s(), learner, learner.begin)

    def _up(self, name: str, incarnation: int, saved: SavedPart | None) -> None:
        if not self.controller.alive(name, incarnation) or self.over or self.paused:
            return
        spec = replace(learner_spec(self.context, name, incarnation), saved=saved)
        learner = LearnerProcess(self.context, spec, self.syncer, self._ended, self._died)
        self.learners[name] = learner
        self.context.faults.started(learner)
        self.emit(LearnerStarted(name, incarnation, incarnation, learner.host.name))
        self.controller.answered(name, incarnation, node=learner.host.name)
        if self._expected.get(name) == incarnation:
            learner.deliver(learner.begin)

    def _probe(self, name: str, incarnation: int) -> None:
        """Ask a learner itself. Its host is always seen. It hears again of an epoch that it is not attached to."""
        learner, syncer = self.learners.get(name), self.syncer
        if learner is None or learner.incarnation != incarnation or not learner.steps:
            self.controller.probed(name, incarnation, "")
            return
        self.controller.probed(name, incarnation, "it steps, but its reports do not arrive")
        if syncer is not None and syncer.serves:
            learner.deliver(learner.remind, syncer, partial(self._refused, learner))

    def _refused(self, learner: LearnerProcess, why: str) -> None:
        """The syncer refuses a learner that trained under the one before."""
        self._act(self.controller.end(*learner.key, f"refused by the syncer: {why}"))

    def _died(self, learner: LearnerProcess) -> None:
        """A process has ended in the midst of what it did."""
        self.time.after(self._durations.notice_s(), self._lost, *learner.key, "died")

    def crash(self, name: str, detected: bool = False) -> bool:
        """Kill a learner's process. The death is detected at once or after a while. False: there is none."""
        learner = self.learners.get(name)
        if learner is None or not learner.alive:
            return False
        learner.die()
        wait_s = 0.0 if detected else self._durations.notice_s()
        self.time.after(wait_s, self._lost, name, learner.incarnation, "died")
        return True

    def _lost(self, name: str, incarnation: int, cause: str) -> None:
        if not self.controller.ended(name, incarnation, cause):
            return
        self.emit(LearnerLost(name, incarnation, cause, cause))
        self._fence(name, incarnation, "killed" if cause == "died" else cause)
        self.controller.lost(self.time.now, name, incarnation)
        self._replace()

    def _ended(self, learner: LearnerProcess, reason: str) -> None:
        """A learner's loop has returned, or failed."""
        self.time.after(self._durations.end_s, self._settle, learner, reason)

    def _settle(self, learner: LearnerProcess, reason: str) -> None:
        if reason.startswith("failed"):
            self._lost(learner.name, learner.incarnation, "failed")
        elif reason.startswith("drained"):
            self._left(learner.name, learner.incarnation)
        else:
            self.controller.finished(learner.name, learner.incarnation)

    def _left(self, name: str, incarnation: int) -> None:
        if self.controller.ended(name, incarnation, "drained"):
            self._fence(name, incarnation, "drained")
            self.controller.left(name, incarnation)
            self._replace()

    def _fence(self, name: str, incarnation: int, reason: str) -> None:
        if self.syncer is not None:
            self._tell(self.syncer, "fence", name, incarnation, reason)

    def _replace(self) -> None:
        if self.finished_at is None and not self.suspending:
            self._advance()

    # -------------------------------------------------------------- leaving and scaling

    def _drain(self, action: AskToLeave) -> None:
        if self.syncer is not None:
            event = events_effects.DrainRequested(action.learner, action.incarnation, action.reason, action.deadline_s)
            done = partial(self._dismissed, action.learner, action.incarnation)
            self._tell(self.syncer, "drain", event, done=done)

    def _dismissed(self, name: str, incarnation: int, told: bool) -> None:
        """A learner that was not told to leave has nothing to lose: end it at once."""
        if told or not self.controller.alive(name, incarnation):
            return
        learner = self.learners.get(name)
        if learner is not None and learner.incarnation == incarnation:
            learner.die()
        self.time.after(self._durations.end_s, self._left, name, incarnation)

    def scale(self, pool: str, learners: int) -> bool:
        """Ask for this many learners in a pool. False: nothing changes."""
        actions = self.controller.scale(self.time.now, pool, {"learners": learners})
        self._act(actions)
        self._advance()
        return bool(actions)

    def resize(self, pool: str, change: int) -> bool:
        """Ask for so many learners more in a pool, or fewer. False: nothing changes."""
        return self.scale(pool, self.controller.pools.sizes[pool] + change)

    def restore(self, pool: str) -> None:
        """Undo scaling below the pool's first size."""
        self.scale(pool, max(self._pools[pool].learners, self.controller.pools.sizes[pool]))

    def want(self, name: str) -> None:
        """Have this learner run: one that was there comes back, another is added to its pool."""
        pool = self.context.specs[name].pool
        if name not in self.controller.units:
            members = self._pools[pool].members
            members.remove(name)
            members.insert(self.controller.pools.sizes[pool], name)
            self.resize(pool, 1)
        elif name not in self.controller.wanted:
            self.controller.want(name)
            self._advance()

    def unwant(self, name: str) -> None:
        """Have this learner leave, without scaling its pool: its capacity is gone."""
        if name in self.controller.wanted:
            self._act(self.controller.unwant(name, "its capacity is gone", self.time.now))

    def preempt(self, name: str) -> bool:
        """The learner's node announces its end. False: no learner is asked to leave."""
        learner = self.learners.get(name)
        if learner is None:
            return False
        actions = self.controller.node_notice(self.time.now, learner.host.name, None)
        self._act(actions)
        return any(isinstance(action, AskToLeave) for action in actions)

    def stop(self, reason: str) -> None:
        """End the run early. This syncer and every later one is told."""
        self._stopping = self._stopping or reason
        if self.syncer is not None:
            self._tell(self.syncer, "stop", reason)

    # -------------------------------------------------------------- the syncer

    def _look_at_syncer(self) -> None:
        syncer = self.syncer
        if syncer is None or not syncer.alive or syncer.running:
            self._frozen_since = None
            return
        now = self.time.now
        self._frozen_since = now if self._frozen_since is None else self._frozen_since
        if now - self._frozen_since >= SYNCER_HANG_S:
            self._frozen_since = None
            self.context.fault_counts["zombie"] += 1
            self._detected = syncer.epoch
            self._next_epoch()

    def on_syncer_death(self, syncer: SyncerProcess) -> None:
        """Begin the next epoch once the death is detected."""
        self.time.after(self._durations.outage_s(), self._succeed, syncer)

    def _succeed(self, syncer: SyncerProcess) -> None:
        if syncer is self.syncer and not self.over and self._detected < syncer.epoch:
            self._detected = syncer.epoch
            self._next_epoch()

    def _next_epoch(self, incomplete: bool = False) -> None:
        """Have a syncer open the next epoch, and tell it what the last one knew."""
        if self.over or self.paused:
            return
        try:
            sources = self._recovery_sources() if incomplete else None
        except OSError:  # the store is away
            self.time.after(self._durations.retry_s(), self._next_epoch, incomplete)
            return
        if self.syncer is not None and self.syncer.shards:
            self.syncer.die()  # as the orchestrator does: the next ones need the room of its shards
        self._epoch += 1
        syncer = self.syncer = self._make_syncer(self._epoch, sources)
        newest = ((name, unit.incarnation.number) for name, unit in self.controller.units.items())
        living = [pair for pair in newest if pair[1] and self.controller.alive(*pair)]
        expected = tuple(self._announced(*pair) for pair in living)
        self._call(syncer, "start", (expected,), lambda _: self._serves(syncer, living), self._failed)
        self.time.after(SYNCER_START_S, self._give_up, syncer)

    def _failed(self, syncer: SyncerProcess, error: BaseException) -> None:
        """It could not begin, and another follows."""
        if self.context.trace is not None:
            self.context.trace(self.time.now, syncer.label, error)
        syncer.die()
        self.time.after(self._durations.retry_s(), self._next_epoch, isinstance(error, Incomplete))

    def _recovery_sources(self) -> RecoverySources:
        """What there is beside the journal: the log, and the learners. Raises OSError."""
        fragments = len(self.context.model.fragments)
        log = replay_log(records(ChainReader(self.context.store, SYNCER, Findings()).poll()), fragments)
        peers = tuple(learner.me for learner in self.learners.values() if learner.alive and learner.machine)
        return RecoverySources(encode_replay(log), 0, peers)

    def _give_up(self, syncer: SyncerProcess) -> None:
        if syncer is self.syncer and syncer.running and not syncer.serves:
            self._failed(syncer, TimeoutError("it does not begin"))

    def _serves(self, syncer: SyncerProcess, living: Collection[tuple[str, int]]) -> None:
        """Tell the learners of it, and it of what has been asked."""
        for pair in living:
            self._heard(*pair)
        if self._stopping:
            self._tell(syncer, "stop", self._stopping)
        for drain in self.controller.leaving(self.time.now):
            self._drain(drain)
        for learner in self.learners.values():
            if learner.alive:
                refused = partial(self._refused, learner)
                self.time.reach(self._durations.reattach_s(), learner, learner.reattach, syncer, refused)

    def _tell(self, syncer: SyncerProcess, method: str, *arguments: Any, done: Callable[[Any], object] = id) -> None:
        """Call a method of the syncer; `done` gets its answer."""
        self.time.after(self._durations.tell_s(), self._call, syncer, method, arguments, done)

    def _call(
        self,
        syncer: SyncerProcess,
        method: str,
        arguments: tuple[Any, ...],
        done: Callable[[Any], object],
        failed: Callable[[SyncerProcess, BaseException], object] | None = None,
    ) -> None:
        async def call() -> None:
            try:
                answer = await syncer.shell.command(NUMBER, method, *arguments)
            except Exception as error:
                if failed is None:
                    raise
                self.time.after(0.0, failed, syncer, error)
            else:
                self.time.after(0.0, done, answer)

        syncer.deliver(lambda: syncer.spawn(call()))
