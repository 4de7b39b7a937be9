"""An incarnation of a learner as a process: the production shell, on devices where a step is time that passes.

What the world wants to see of it is said to the context's observer and faults.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from numpy.typing import NDArray

from learners.config import InnerConfig
from learners.fault_effects import FaultEffects
from learners.protocol import events_effects
from learners.protocol.facts import DeviceTaken
from learners.rank import RankShell
from learners.shell import LearnerShell
from learners.spec import LearnerSpec
from learners.step_runner import PAUSE_MIN_S
from learners.training.rank_call import END, RankCall
from orchestrator.simulation.context import Key, SimChain, SimContext
from orchestrator.simulation.peers import SimPeer
from orchestrator.simulation.process import Host, Process
from outer.ports import Here, NoAnswer, Peer
from outer.protocol.fragments import Fragment
from outer.protocol.messages import STARTING, Contribution, Report, State, StateRequest

LOSS = 2.0
STRANGE = {"seed": 1}  # the manifest of another recipe
ONE_AT_A_TIME = math.nextafter(1.0, 2.0)  # of `slowdown`: with more than 1 there is one step in flight
DEVICE = DeviceTaken("cpu", "virtual", 1, 1, "virtual", "", {}, {})

T = TypeVar("T")


class LearnerProcess(Process):
    shell: ObservedLearner

    def __init__(self, context: SimContext, spec: LearnerSpec, syncer: Peer | None) -> None:
        super().__init__(context.time, context.specs[spec.name].host, (spec.name, spec.incarnation))
        self.name, self.incarnation, self.context = spec.name, spec.incarnation, context
        self.made_at = context.time.now
        self.training = False  # its loop runs
        self.exited = ""  # why its loop has ended
        self.detected = False  # its death is noticed at once
        self.others: Sequence[Peer] = ()  # the other ranks of an island, once it leads them
        self.elders: list[RankProcess] = []  # ranks of its earlier incarnations that were there when it was started
        self.started_by: Any = None  # the loop of the orchestrator that did; of a rank likewise
        self.repeated: dict[int, int] = {}  # by rank: how many steps it has done, too
        self.together = asyncio.Event()  # one has done another
        self._told = 0  # calls that the other ranks were told
        self.promoted: Callable[[LearnerProcess], None] = lambda process: None  # told if it was a standby
        self.reported_at = context.time.now  # virtual seconds, like what follows
        self.stepped_at = 0.0  # when its newest step is, or was, done
        self.values = context.make_values(self.key)
        self.faults = FaultEffects(self.clock)
        self.device = SimDevice(self, spec)
        self.jobs.takes, self.jobs.outlives = context.durations.job, context.faults.outlives
        self.me, self.raised = SimPeer(context.network, self), context.observer.raised
        here = Here(self.me, self.end, identity={"pid": spec.incarnation, "node": self.host.name}, wall=self._date)
        self.shell = ObservedLearner(self, spec, here, syncer)

    def become(self, name: str, incarnation: int) -> None:
        """A standby is promoted to this incarnation."""
        self.name, self.incarnation, self.key = name, incarnation, (name, incarnation)
        self.label, self.values = f"{name} {incarnation}", self.context.make_values(self.key)
        self.device.fragment_io = SimFragments(self)
        self.promoted(self)

    def lead(self, method: str, *arguments: Any) -> None:
        """Tell the other ranks of a call."""
        call, self._told = RankCall(self._told, method, arguments), self._told + 1
        for other in self.others:
            self.deliver(other.tell, "put", call)

    @property
    def machine(self) -> Any:
        return self.shell._machine

    @property
    def phase(self) -> str:
        return STARTING if self.machine is None else self.machine.phase

    @property
    def epoch(self) -> int | None:
        """The epoch that it is attached to."""
        return None if self.machine is None else self.machine.epoch

    @property
    def waiting(self) -> int:
        """Questions and other work that is under way."""
        return len(self.shell._waiting) + len(self.shell._background.running)

    def _date(self) -> float:
        if self.host.jumped:
            self.host.jumped = False
            self.context.fault_counts["wall_jump"] += 1
        return self.wall()

    def leave(self) -> None:
        """Its host tells it to end."""
        self.shell.leave()

    def die(self) -> None:
        if self.alive:
            super().die()
            self.context.durations.died(self)


class RankProcess(Process):
    """Another rank of an island: the production shell, on devices that do each step which rank 0 tells it of."""

    def __init__(self, leader: LearnerProcess, rank: int, host: Host) -> None:
        context = leader.context
        super().__init__(context.time, host, (f"{leader.name}/{rank}", leader.incarnation))
        self.leader, self.name, self.rank = leader, leader.name, rank
        self.died_at, self.exited, self.started_by = math.inf, "", leader.started_by
        leader.repeated[rank] = 0
        self._performed = 0
        self.jobs.takes, self.raised = context.durations.job, context.observer.raised
        self.me = SimPeer(context.network, self)
        here = Here(self.me, self.end, identity={"pid": leader.incarnation, "node": host.name}, wall=self.wall)
        self.shell = RankShell(here, self.begin, FaultEffects(self.clock), None)

    def die(self) -> None:
        self.died_at = min(self.died_at, self.time.now)
        super().die()

    def begin(self, address: str) -> RankProcess:
        if address != self.leader.host.name:
            raise ConnectionError(f"no rank 0 at {address!r}")
        return self

    def perform(self, calls: Sequence[RankCall]) -> bool:
        for call in calls:
            if call.number != self._performed:
                self.raised(self, ValueError(f"it performs call {call.number} for {self._performed}"))
            self._performed += 1
            if call.method == "dispatch":
                self.leader.repeated[self.rank] += 1
                self.leader.deliver(self.leader.together.set)
        return calls[-1].method == END


class ObservedLearner(LearnerShell):
    """The production shell, whose doings are told to the world."""

    def __init__(self, process: LearnerProcess, spec: LearnerSpec, here: Here, syncer: Peer | None) -> None:
        self._process, self._context = process, process.context
        super().__init__(spec, here, syncer, process.faults, process.device, SimPace(process))
        self._facts.carried_max = self._context.faults.carried_max

    async def promote(self, number: int, name: str, incarnation: int, core: int | None, syncer: Peer) -> dict[str, Any]:
        again = self._promoted.is_set()
        info = await super().promote(number, name, incarnation, core, syncer)
        if not again:
            self._process.become(name, incarnation)
        return info

    def _meet(self, ranks: Sequence[Peer]) -> str:
        self._process.others = ranks
        return self._process.host.name

    async def run(self) -> str:
        reason = "failed"
        try:
            reason = await super().run()
        finally:
            self._process.exited = reason
        return reason

    def _handled(self, event: events_effects.Event) -> list[events_effects.Effect]:
        process = self._process
        process.handled += 1
        trace = self._context.trace
        if trace is None:
            return super()._handled(event)
        trace(process.time.now, process.label, event)
        effects = super()._handled(event)
        for effect in effects:
            if isinstance(effect, events_effects.Emit):
                trace(process.time.now, process.label, effect.fact)
        return effects

    def _fail(self, error: BaseException) -> None:
        if not isinstance(error, NoAnswer | TimeoutError):  # of an attach that had no answer
            self._context.observer.raised(self._process, error)
        super()._fail(error)

    def _perform(self, effect: events_effects.Effect) -> None:
        if isinstance(effect, events_effects.Send):
            if isinstance(effect.message, Report):
                self._process.reported_at = self._process.time.now
        elif isinstance(effect, events_effects.Donate):
            self._context.observer.gives(self._process, effect)
        elif isinstance(effect, events_effects.Exit):
            self._context.observer.leaves(self._process, effect.reason)
        super()._perform(effect)


def learner_spec(context: SimContext, name: str, incarnation: int) -> LearnerSpec:
    return LearnerSpec(
        name=name,
        incarnation=incarnation,
        task="virtual",
        model={},
        data=context.data,
        inner=InnerConfig(),
        sync=context.sync,
        seed=0,
        batch_size=context.specs[name].batch_size,
        slowdown=1.0 if context.in_flight_max > 1 else ONE_AT_A_TIME,
        start_s=context.durations.start_s,
        shared={},
        code="",
        core=None,
        platform="cpu",
        store=context.store if context.saving else None,
        ranks=1 + len(context.specs[name].ranks),
    )


# ------------------------------------------------------------------ devices


class SimPace:
    """The port learners.ports.Pace: the training loop is a task of the process's loop."""

    thread = None

    def __init__(self, process: LearnerProcess) -> None:
        self._process, self._woken, self.now = process, asyncio.Event(), process.clock

    def wake(self) -> None:
        self._woken.set()

    async def run(self, loop: Coroutine[Any, Any, T]) -> T:
        self._process.training = True
        try:
            return await loop
        finally:
            self._process.training = False

    async def sleep(self, seconds: float) -> None:
        process = self._process
        if seconds >= PAUSE_MIN_S:  # else it is what ONE_AT_A_TIME adds to a step
            process.stepped_at = max(process.stepped_at, process.time.now + seconds / process.host.rate)
            await asyncio.sleep(seconds)

    async def wait(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), seconds)
        self._woken.clear()

    async def result(self, pending: Any) -> tuple[float, dict[str, float]]:
        process = self._process
        if (left_s := pending.ends_at - process.time.now) > 0.0:
            await asyncio.sleep(left_s * process.host.rate)
        ended_at = process.stepped_at
        while min(process.repeated.values(), default=math.inf) < pending.number:
            process.stepped_at = math.inf  # who knows
            process.together.clear()
            await process.together.wait()
            process.stepped_at = max(ended_at, process.time.now)
        return process.device.trainer.loss(), {}

    async def ready(self, steps: Any, start: int, count: int, seconds: float) -> bool:
        if (left_s := self._process.host.data_at - self._process.time.now) > 0.0:
            await asyncio.sleep(min(left_s, seconds))
        return left_s <= seconds


class SimStep(NamedTuple):
    """A step in flight, until this virtual second; SimPace waits for it."""

    ends_at: float
    number: int  # from 1 on


class SimDevice:
    """The port learners.ports.Device."""

    device = DEVICE

    def __init__(self, process: LearnerProcess, spec: LearnerSpec) -> None:
        context = process.context
        self.prepared = False  # ahead of time
        self._process, self._ranks = process, spec.ranks
        self.fragments: tuple[Fragment, ...] = context.model.fragments
        self.tokens_per_step = context.specs[spec.name].tokens
        self.chain = SimChain.of(context.sync)
        self.manifest = dict(context.manifest)
        self.trainer = SimTrainer(process)
        self.fragment_io = SimFragments(process)

    @property
    def key(self) -> Key:
        return self._process.key

    def ahead(self) -> None:
        self.prepared = True

    def load(self) -> None:
        if len(self._process.others) != self._ranks - 1:
            raise ConnectionError("nobody said who the other ranks are")

    def compile(self) -> None: ...

    def end(self) -> None:
        self._process.lead(END)


class SimTrainer:
    """The port learners.ports.DeviceSteps: of two steps in flight the second begins when the first ends."""

    def __init__(self, process: LearnerProcess) -> None:
        self.poisoned = self.known_poisoned = False  # its numbers are not finite; its loss has shown so
        self.fragments = process.context.model.fragments
        self._process, self._steps = process, 0

    def load(self, index: int, flat: NDArray[Any]) -> None:
        self.poisoned = True
        self._process.context.fault_counts["non_finite"] += 1

    def ready(self, start: int, count: int, wait_s: float) -> bool:
        return True

    def dispatch(self, start: int, count: int, progress: float) -> Any:
        process = self._process
        context = process.context
        context.observer.steps(process)
        if context.faults.spoils(process, start):
            raise ValueError("its batch cannot be built")
        process.values.step += 1  # what a copy holds once the device has come to it
        begins_at = max(context.time.now, process.stepped_at)
        process.stepped_at = context.durations.step_until(process, begins_at)
        process.lead("dispatch", start, count, progress)
        self._steps += 1
        return SimStep(process.stepped_at, self._steps)

    def expect(self, starts: Sequence[int], count: int) -> None:
        self._process.lead("expect", starts, count)

    def loss(self) -> float:
        self.known_poisoned = self.poisoned
        return math.nan if self.poisoned else LOSS


class SimSnapshot(NamedTuple):
    """A learner's whole state as of one step, as learners.fragment_io.StateSnapshot."""

    digest: str
    saved: NDArray[Any]

    def pack(self) -> tuple[dict[str, Any], list[NDArray[Any]]]:
        return {"digest": self.digest, "leaves": 1}, [self.saved]


class SimFragments:
    """The port learners.ports.DeviceValues: values are the world's, and an array of one number stands for each."""

    def __init__(self, process: LearnerProcess) -> None:
        self._process, self._values, self._model = process, process.values, process.context.model

    def stage(self, fragments: Iterable[int]) -> Mapping[int, Any]:
        copies: Mapping[int, Any] = self._values.copies(tuple(fragments))
        return copies

    def encode(self, contribution: Contribution) -> Contribution:
        self._values.read(contribution)
        return self._model.encoded(contribution, self._process.device.trainer.poisoned)

    def apply(self, effect: events_effects.Apply) -> None:
        self._values.apply(effect)

    def receive(self, fragment: int, theta: NDArray[Any]) -> Any:
        return self._model.received(theta)

    def bases(self) -> Sequence[tuple[int, Any]]:
        return list(self._values.bases())

    def snapshot(self) -> SimSnapshot:
        process = self._process
        return SimSnapshot(f"{process.name}{process.incarnation}@{self._values.step}", self._values.saved())

    def restore(self, header: Mapping[str, Any], arrays: Sequence[Any]) -> None:
        self._values.restore(arrays[0])

    def capture(self) -> Any:
        return self._values.packed(self._process.device.trainer.poisoned)

    def pack(
        self, captured: Any, request: StateRequest, step: int, syncer_step: int, versions: tuple[int, ...] = ()
    ) -> State:
        process = self._process
        self._values.gave(step, captured)
        digest = f"{process.name}{process.incarnation}@{step}"
        return State(*process.key, step, syncer_step, captured, digest, self.state_bytes, versions)

    def state_defect(self, state: State) -> str:
        if state.digest != f"{state.donor}{state.donor_incarnation}@{state.step}":
            return "bad_digest"
        return "" if self._process.context.faults.finite(self._whole(state)) else "non_finite"

    def inherit(self, state: State) -> None:
        self._values.inherit(self._whole(state))

    def _whole(self, state: State) -> State:
        """A state that comes from a checkpoint is an array of one number, too."""
        return replace(state, payload=self._values.of_saved(state.payload[0])) if type(state.payload) is list else state

    def bytes_of(self, fragment: int) -> int:
        return 4 * self._model.fragments[fragment].size

    @property
    def state_bytes(self) -> int:
        return 12 * sum(each.size for each in self._model.fragments)
