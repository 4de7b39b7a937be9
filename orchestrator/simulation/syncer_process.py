"""An epoch of the syncer as a process: the production shell, with fragments whose values are the world's.

What the world wants to see of it is said to the context's observer and faults.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from orchestrator.simulation.context import SimChain, SimContext
from orchestrator.simulation.peers import SimPeer
from orchestrator.simulation.process import Host, Process
from outer.first_values import FirstValues, Make
from outer.journal.rebuild import RecoverySources
from outer.numeric.chain import Recent
from outer.ports import Here
from outer.protocol import events_effects
from outer.protocol.messages import Contribution, Report
from outer.shard import FragmentShard
from outer.shell import SyncerShell
from outer.spec import SyncerSpec

ORPHAN_S = 0.5  # until a shard has ended whose syncer is dead
RECENT_BYTES = 64  # of deltas of one fragment: fewer than four


class SyncerProcess(Process):
    shell: ObservedShell

    def __init__(self, context: SimContext, host: Host, spec: SyncerSpec, sources: RecoverySources | None) -> None:
        super().__init__(context.time, host, ("syncer", spec.epoch))
        self.epoch, self.context = spec.epoch, context
        self.performed = 0  # effects
        self.crash_at = math.inf  # it dies after so many effects
        self.jobs.takes, self.jobs.outlives = context.durations.job, context.faults.outlives
        self.me, self.raised = SimPeer(context.network, self), context.observer.raised
        self._said_at = context.said_at.setdefault(self.epoch, [])
        self.shards: list[ShardProcess] = []
        here = Here(self.me, self.end, wall=self._date, shard=self._start_shard)
        self.shell = ObservedShell(self, spec, here, sources)

    @property
    def serves(self) -> bool:
        """Whether it handles events: it runs, has begun, and is not over."""
        return self.running and self.shell.serves

    @property
    def machine(self) -> Any:
        return self.shell._machine

    @property
    def peers(self) -> Mapping[str, Any]:
        """The learners' processes that it would write to."""
        return {name: self._process_of(there.peer) for name, there in self.shell._peers.items()}

    def _process_of(self, peer: Any) -> Process:
        """One of another region is known by its name."""
        if isinstance(peer, SimPeer):
            return peer.process
        found: Process = next(each for each in reversed(self.time.processes) if each.label == peer.name)
        return found

    @property
    def waiting(self) -> int:
        """Records and facts that wait for the store, in messages."""
        return len(self.shell._journal._waiting)

    def _start_shard(self, spec: SyncerSpec, make: Make, number: int) -> SimPeer:
        """Another process for a shard, which ends with this one."""
        shard = ShardProcess(self.context, spec, make, number)
        self.shards.append(shard)
        self.mourn(lambda: self.time.after(ORPHAN_S, shard.die))
        return shard.me

    @property
    def parts(self) -> list[SimShard]:
        """The shards, wherever they are."""
        here = self.shell._bulk._here
        return [shard.shell for shard in self.shards] if here is None else [here]  # type: ignore[list-item]

    def payload(self, contribution: Contribution) -> Any:
        """What a learner's answer has brought, if it is still there."""
        found = (shard._payloads.get(contribution.payload) for shard in self.parts)
        return next((payload for payload in found if payload is not None), None)

    def values(self) -> list[NDArray[Any]]:
        """The value of every fragment that is in force."""
        parts, fragments = self.parts, range(len(self.context.model.fragments))
        return [parts[fragment % len(parts)].parameters.thetas[fragment] for fragment in fragments]

    def drive(self, event: Any) -> list[Any]:
        """Hand an event to the machine, and perform its effects."""
        self.shell.performed = []
        self.run(self.shell._drive, (event,))
        return self.shell.performed

    def _date(self) -> float:
        """The wall time of a fact of its own."""
        self._said_at.append(self.time.now)
        return self.wall()


class ObservedShell(SyncerShell):
    """The production shell, whose doings are told to the world."""

    def __init__(self, process: SyncerProcess, spec: SyncerSpec, here: Here, sources: RecoverySources | None) -> None:
        self._process, self._context = process, process.context
        self._undurable: deque[events_effects.Append] = deque()
        self.performed: list[events_effects.Effect] = []  # of the newest event
        super().__init__(spec, self._first_values, here, sources)
        self._points.die = process.end

    @property
    def serves(self) -> bool:
        return self._serving.is_set() and not self._over

    def _first_values(self, holds: Callable[[int], bool]) -> FirstValues:
        model = self._context.model
        return model.fragments, [model.origin(each.index) for each in model.fragments], {}, model.task

    def _shard(self, spec: SyncerSpec, make: Make) -> FragmentShard:
        return SimShard(spec, make, self._process, 0)

    async def start(self, living: tuple[events_effects.Expect, ...] = ()) -> dict[str, Any]:
        started = await super().start(living)
        self._context.observer.begun(self._process)
        return started

    async def attach(self, message: Any, *more: Any) -> Any:
        answer = await super().attach(message, *more)
        if not isinstance(answer, str):
            self._context.observer.welcomed(message)
        return answer

    async def report(self, message: Report, *more: Any) -> int:
        then = self._context.observer.reporting(self._process, message) if self.serves else None
        durable = await super().report(message, *more)
        if then is not None:
            then()
        return durable

    def _drive(self, event: events_effects.Event) -> Any:
        self.performed = []
        if not self.serves:
            return None
        process, observer = self._process, self._context.observer
        if self._context.trace is not None:
            self._context.trace(process.time.now, process.label, event)
        process.handled += 1
        answered = observer.answering(process, event) if isinstance(event, Contribution) else None
        if isinstance(event, events_effects.Durable):
            while self._undurable and self._undurable[0].sequence <= event.sequence:
                self._emitted(self._undurable.popleft().record)
        reply = super()._drive(event)
        if answered is not None:
            answered(self.performed)
        observer.told(process, event, self.performed)
        return reply

    def _perform(self, effects: list[events_effects.Effect]) -> Any:
        process, reply = self._process, None
        self.performed = effects
        for effect in effects:
            if isinstance(effect, events_effects.Append):
                self._undurable.append(effect)
                self._context.observer.appended(process, effect)
                self._context.faults.appended(process, effect)
            elif isinstance(effect, events_effects.Publish):
                self._context.observer.published(process, effect)
            replied = super()._perform([effect])
            reply = reply if replied is None else replied
            if isinstance(effect, events_effects.Emit):
                self._emitted(effect.fact)
            process.performed += 1
            if process.performed >= process.crash_at:
                self._context.fault_counts["syncer_crash"] += 1
                process.end()
        return reply

    def _emitted(self, fact: Any) -> None:
        self._context.observer.emitted(self._process, fact)
        self._context.faults.emitted(self._process, fact)
        if self._context.trace is not None:
            self._context.trace(self._process.time.now, self._process.label, fact)

    def _send(self, learner: str, incarnation: int, message: events_effects.ToLearner) -> None:
        there = self._peers.get(learner)
        if there is not None and there.incarnation == incarnation:
            self._context.observer.sent(self._process, message)
        super()._send(learner, incarnation, message)

    def _tell(self, what: str) -> None:
        if self._context.trace is not None:
            self._context.trace(self._process.time.now, self._process.label, what)

    def _fail(self, error: BaseException) -> None:
        self._context.observer.raised(self._process, error)
        super()._fail(error)


# ------------------------------------------------------------------ fragments


class ShardProcess(Process):
    """A process with one of several shards."""

    shell: SimShard

    def __init__(self, context: SimContext, spec: SyncerSpec, make: Make, number: int) -> None:
        super().__init__(context.time, context.shard_hosts[number], (f"shard {number}", spec.epoch))
        self.epoch, self.context = spec.epoch, context
        self.jobs.takes, self.jobs.outlives = context.durations.job, context.faults.outlives
        self.me, self.raised = SimPeer(context.network, self), context.observer.raised
        self.shell = SimShard(spec, make, self, number)


class SimShard(FragmentShard):
    """A shard whose values are the world's: an array of one number stands for each."""

    def __init__(self, spec: SyncerSpec, make: Make, process: SyncerProcess | ShardProcess, number: int) -> None:
        super().__init__(spec, make, number)
        self._process = process
        self._points.die = process.end

    def _parameters(self, fragments: Any, thetas: Any, patterns: Any) -> Any:
        return SimParameters(fragments, thetas, self._process)

    def _tell(self, what: str) -> None: ...

    def _checked(self, contribution: Contribution, codec: str, size: int) -> Contribution:
        return self._process.context.model.examined(contribution)


class SimParameters:
    """The interface of outer.numeric.parameters.GlobalParameters."""

    def __init__(self, fragments: Sequence[Any], thetas: Sequence[NDArray[Any]], process: Any) -> None:
        self.fragments, self.thetas, self.versions = tuple(fragments), list(thetas), [0] * len(fragments)
        self._model, self._process, self._chain = process.context.model, process, SimChain.of(process.context.sync)
        self._recent = [Recent(RECENT_BYTES) for _ in self.fragments]

    def warm_up(self) -> None: ...
    def warm_up_rest(self) -> None: ...

    def propose(
        self, fragment: int, payloads: Sequence[Any], weights: Sequence[float], version: int, forms: Sequence[str]
    ) -> Any:
        return self._model.merged(self._process, fragment, version, self.thetas[fragment], payloads, weights)

    def install(self, proposal: Any, version: int) -> None:
        fragment, theta = proposal.fragment, proposal.arrays[0]
        if self._chain is not None:
            self._recent[fragment].add(self.versions[fragment], self._chain.delta(theta, self.thetas[fragment]))
        self.thetas[fragment], self.versions[fragment] = theta, version

    def arrays(self, fragment: int) -> list[NDArray[Any]]:
        return [self.thetas[fragment]]

    def since(self, fragment: int, held: int) -> NDArray[Any] | list[NDArray[Any]]:
        deltas = self._recent[fragment].since(held)
        return self.thetas[fragment] if deltas is None else deltas

    def restore(self, fragment: int, version: int, arrays: Sequence[NDArray[Any]]) -> None:
        self.thetas[fragment], self.versions[fragment] = arrays[0], version
        self._recent[fragment] = Recent(RECENT_BYTES)

    def restore_theta(self, fragment: int, version: int, theta: NDArray[Any]) -> None:
        self.restore(fragment, version, [theta])
