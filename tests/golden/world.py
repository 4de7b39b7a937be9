"""Both machines on one virtual clock and a perfect network, without arrays: the simplest shell that can be.

It shares only the clock with orchestrator/simulation, so that a mistake in the processes there shows as a difference.

A fragment's value is a table that says how often each learner's step is contained in it, so that the sums and
differences of merging and adopting can be followed exactly: a step that was merged twice counts 2, one that was
taken back counts -1. Weights are left out: a merge adds up what its contributions bring.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from learners.protocol import events_effects as unit
from learners.protocol.learner import Learner
from orchestrator.simulation.timeline import Timeline
from outer.config import SyncConfig
from outer.protocol import events_effects as outer
from outer.protocol.fragments import Fragment, Tensor
from outer.protocol.messages import COMPILING, IMPORTING, Donor, State, StateRequest
from outer.protocol.syncer import Budget, Syncer

T = TypeVar("T")
Value = Mapping[tuple[str, int, int], int]  # (learner, incarnation, step) -> how often
TICK_S_MIN = 0.01  # a shell never looks again at once
MANIFEST = {"sync.H": 4}


def plus(one: Value, other: Value, times: int = 1) -> Value:
    """one + times * other, without the zeros."""
    total = {key: one.get(key, 0) + times * other.get(key, 0) for key in sorted(one.keys() | other.keys())}
    return {key: count for key, count in total.items() if count}


class Said(NamedTuple):
    """A fact, who said it, and at which virtual second."""

    at: float
    writer: str
    incarnation: int
    fact: Any


@dataclass
class Unit:
    """One incarnation of a learner: its machine, and the values it holds."""

    machine: Learner
    values: list[Value]
    bases: list[Value]
    read: dict[tuple[int, int], Value] = field(default_factory=dict)  # by fragment and syncer step: what was sent
    next: unit.RunStep | unit.Hold | unit.Exit | None = None
    frozen_until: float = 0.0
    exited: str = ""

    @property
    def key(self) -> tuple[str, int]:
        return self.machine.name, self.machine.incarnation


class World:
    """One run. `learners` maps each name to the seconds that its steps take; every step is of 2 samples, 10 tokens."""

    def __init__(
        self,
        *,
        sync: SyncConfig,
        learners: Mapping[str, float],
        quorum: int,
        budget: Budget,
        span_steps: int = 4,
    ) -> None:
        assert sync.fragments is not None
        count = sync.fragments
        self.time = Timeline()
        self.said: list[Said] = []
        self.lines: list[str] = []
        self.units: dict[str, Unit] = {}
        self.values: list[Value] = [{} for _ in range(count)]
        self.syncer = Syncer(
            epoch=1,
            config=sync,
            fragments=tuple(Fragment(p, (Tensor(f"t{p}", (1,), "float32"),)) for p in range(count)),
            learners=dict.fromkeys(learners, 2),
            quorum=quorum,
            span_steps=span_steps,
            budget=budget,
            manifest=MANIFEST,
        )
        self._sync, self._speed, self._span_steps = sync, dict(learners), span_steps
        self._incarnations: Counter[str] = Counter()
        self._deadlines: dict[tuple[str, int], float] = {}  # by who seeks a donor: seconds for its state to come
        self._perform_outer(self.syncer.start())

    # -------------------------------------------------------------- what a test may cause

    def run(self, until: float) -> None:
        """Let everything happen up to that time."""
        queue = self.time.queue
        while queue and queue[0][0] <= until:
            self.time.now, _, _, happen, args = heapq.heappop(queue)
            happen(*args)
        self.time.now = max(self.time.now, until)

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return self.time.now

    def at(self, time: float, happen: Callable[[], None]) -> None:
        self.time.at(time, happen)

    def start(self, name: str) -> None:
        """A new incarnation is granted, imports, compiles and attaches."""
        self._incarnations[name] += 1
        machine = Learner(
            name=name,
            incarnation=self._incarnations[name],
            config=self._sync,
            fragments=len(self.values),
            batch_size=2,
            span_steps=self._span_steps,
            start_s=10.0,
        )
        each = self.units[name] = Unit(machine, [{} for _ in self.values], [{} for _ in self.values])
        self._drive_outer(outer.Expect(name, machine.incarnation, 10.0, 2))
        for event in (unit.Enter(IMPORTING), unit.Enter(COMPILING), unit.Compiled(MANIFEST), unit.Resume()):
            self._drive(each, event)

    def kill(self, name: str) -> None:
        """The process is gone; the orchestrator learns of it by `bury`."""
        del self.units[name]
        self._line(f"{name} dies")

    def bury(self, name: str) -> None:
        self._drive_outer(outer.Fence(name, self._incarnations[name], "killed"))

    def restart(self, name: str) -> None:
        """It dies, which is noticed, and starts anew."""
        self.kill(name)
        self.bury(name)
        self.start(name)

    def freeze(self, name: str, seconds: float) -> None:
        self.units[name].frozen_until = self.now + seconds

    # -------------------------------------------------------------- what a test may see

    def facts(self, kind: type[T], writer: str = "", incarnation: int = 0) -> list[T]:
        """Of one kind, in order; of one writer and incarnation alone, if they are named."""
        said = (each for each in self.said if isinstance(each.fact, kind) and writer in ("", each.writer))
        return [each.fact for each in said if incarnation in (0, each.incarnation)]

    # -------------------------------------------------------------- the network: all arrives, at once and in order

    def _to_syncer(self, event: Any) -> None:
        self.at(self.now, lambda: self._drive_outer(event))

    def _to_learner(self, name: str, incarnation: int, event: Any) -> None:
        each = self.units.get(name)
        if each is not None and each.key == (name, incarnation):
            self.at(self.now, lambda: self._drive(each, event))

    # -------------------------------------------------------------- the syncer's shell

    def _drive_outer(self, event: outer.Event) -> None:
        if not isinstance(event, outer.Tick | outer.Merged | outer.Durable):
            self._line(f"syncer hears {event}")
        self._perform_outer(self.syncer.handle(self.now, event))
        if (at := self.syncer.wake_at) is not None:
            self.at(max(at, self.now + TICK_S_MIN), self._tick)

    def _tick(self) -> None:
        at = self.syncer.wake_at
        if at is not None and at <= self.now:
            self._drive_outer(outer.Tick())

    def _perform_outer(self, effects: list[outer.Effect]) -> None:
        for effect in effects:
            match effect:
                case outer.Emit(fact):
                    self._say("syncer", 1, fact)
                case outer.Send(learner, incarnation, Donor() as donor):
                    self.at(self.now, lambda who=(learner, incarnation), donor=donor: self._ask(*who, donor))  # type: ignore[misc]
                case outer.Send(learner, incarnation, message):
                    self._to_learner(learner, incarnation, message)
                case outer.Merge(syncer_step, fragment, payloads, _):
                    base = value = self.values[fragment]
                    for payload in payloads:
                        value = plus(value, plus(payload, base, -1))
                    self._to_syncer(outer.Merged(syncer_step, value, "digest", 1.0, True))
                case outer.Append(sequence, record):
                    self._say("syncer", 1, record)
                    self._to_syncer(outer.Durable(sequence))
                case outer.Publish(fragment, _, proposal):
                    self.values[fragment] = proposal

    # -------------------------------------------------------------- a learner's shell

    def _drive(self, each: Unit, event: unit.Event) -> None:
        if self.units.get(each.machine.name) is not each or each.exited:
            return  # it is gone
        if self.now < each.frozen_until:
            self.at(each.frozen_until, lambda: self._drive(each, event))
            return
        if isinstance(event, unit.Resume):
            if not isinstance(each.next, unit.Hold | None):
                return  # it no longer waits
            each.next = None
        if not isinstance(event, unit.Resume | unit.Staged | unit.StepDone | unit.Boundary):
            self._line(f"{each.machine.name} hears {event}")
        self._perform(each, each.machine.handle(self.now, event))
        if isinstance(each.next, unit.Hold) and not isinstance(
            event, unit.Resume | unit.Staged | unit.StepDone | unit.Boundary
        ):
            self._drive(each, unit.Resume())  # whatever arrives wakes the loop

    def _perform(self, each: Unit, effects: list[unit.Effect]) -> None:
        for effect in effects:
            match effect:
                case unit.Emit(fact):
                    self._say(*each.key, fact)
                case unit.Send(message):
                    self._to_syncer(message)
                case unit.Answer(contribution):
                    each.read[contribution.fragment, contribution.step] = contribution.payload
                    self._to_syncer(replace(contribution, digest="digest"))
                case unit.Fetch(fragment, _, _):
                    self.at(self.now, lambda fragment=fragment: self._fetch(each, fragment))  # type: ignore[misc]
                case unit.Recover(seek, deadline_s):
                    self._deadlines[each.key] = deadline_s
                    self._to_syncer(seek)
                case unit.Donate(request, step, syncer_step):
                    self._give(each, request, step, syncer_step)
                case unit.Decline(request, reason):
                    missed = unit.StateMissed(request.donor, request.donor_incarnation, reason)
                    self._to_learner(request.joiner, request.joiner_incarnation, missed)
                case unit.Inherit(state):
                    each.values = list(state.payload)
                case unit.Stage(fragments):
                    self._drive(each, unit.Staged({p: each.values[p] for p in fragments}))
                case unit.Apply():
                    self._apply(each, effect)
                case unit.RunStep():
                    each.next = effect
                    self.at(self.now + self._speed[each.machine.name], lambda: self._step(each))
                case unit.Hold(seconds, _):
                    each.next = effect
                    self.at(self.now + seconds, lambda: self._drive(each, unit.Resume()))
                case unit.Exit(reason):
                    each.exited = reason

    def _step(self, each: Unit) -> None:
        if self.now < each.frozen_until:
            self.at(each.frozen_until, lambda: self._step(each))
            return
        if isinstance(each.next, unit.RunStep):
            step, each.next = each.next.step, None
            each.values = [plus(value, {(*each.key, step): 1}) for value in each.values]
            self._drive(each, unit.StepDone(2.0, 10))
            self._drive(each, unit.Boundary(10))

    def _fetch(self, each: Unit, fragment: int) -> None:
        """The newest value is always there."""
        self._drive(each, unit.Fetched(fragment, self.syncer.versions[fragment], self.values[fragment]))

    # -------------------------------------------------------------- from learner to learner

    def _ask(self, joiner: str, incarnation: int, named: Donor) -> None:
        deadline_s = self._deadlines[joiner, incarnation]
        donor, number = named.donor, named.donor_incarnation
        if donor:
            request = StateRequest(named.epoch, joiner, incarnation, donor, number, named.syncer_step, deadline_s)
            self._to_learner(donor, number, request)
        else:
            self._drive(self.units[joiner], unit.StateMissed("", 0, "none"))

    def _give(self, donor: Unit, request: StateRequest, step: int, syncer_step: int) -> None:
        state = State(*donor.key, step, syncer_step, tuple(donor.values), "digest", 1)
        self._drive(donor, unit.StateSent(request, step, "digest", 1))
        self._to_learner(request.joiner, request.joiner_incarnation, unit.StateArrived(state))

    def _apply(self, each: Unit, effect: unit.Apply) -> None:
        fragment, mine = effect.fragment, each.values[effect.fragment]
        if effect.mode == "rebase":
            anchor = each.bases[fragment] if effect.read_at is None else each.read[fragment, effect.read_at]
            each.values[fragment] = plus(mine, plus(effect.payload, anchor, -1))
        else:
            each.values[fragment] = effect.payload
        each.bases[fragment] = effect.payload
        each.read = {key: value for key, value in each.read.items() if key[0] != fragment}

    # -------------------------------------------------------------- what is kept

    def _say(self, writer: str, incarnation: int, fact: Any) -> None:
        self.said.append(Said(self.now, writer, incarnation, fact))
        self._line(f"{writer} says {fact}")

    def _line(self, text: str) -> None:
        self.lines.append(f"{self.now:7.3f} {text}")


W = TypeVar("W", bound=World)


def running(
    learners: Mapping[str, float],
    sync: Mapping[str, Any],
    *,
    until: float = 0.0,
    quorum: int = 1,
    steps: int = 10_000,
    span_steps: int = 1000,
    kind: type[W] = World,  # type: ignore[assignment]
) -> W:
    """A world whose learners have all started, after so many virtual seconds."""
    config, budget = SyncConfig.model_validate(sync), Budget(None, steps)
    made = kind(sync=config, learners=learners, quorum=quorum, budget=budget, span_steps=span_steps)
    for name in learners:
        made.start(name)
    made.run(until)
    return made
