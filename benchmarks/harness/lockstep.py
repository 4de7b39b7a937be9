"""A shell with both machines in one process: real JAX, no clock, every learner steps once per unit of virtual time.

For equivalence tests and studies of the algorithm alone. Messages arrive at once and in order, and
nothing fails. A learner with a slowdown takes so many units for a step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from learners.config import InnerConfig, WarmStart
from learners.fragment_io import FragmentIO
from learners.protocol import events_effects as unit
from learners.protocol.learner import Learner
from learners.training.step import make_step
from learners.training.task import Task
from learners.training.trainer import Trainer
from learners.training.tree import deal, initial_parameters
from outer.config import OuterConfig, SyncConfig
from outer.numeric.chain import VersionChain
from outer.numeric.codec import examine
from outer.numeric.formats import uplinks
from outer.numeric.parameters import GlobalParameters
from outer.numeric.rules import rules
from outer.protocol import events_effects as outer
from outer.protocol.messages import COMPILING, IMPORTING, Welcome
from outer.protocol.syncer import Budget, Syncer

IDLE_ROUNDS_MAX = 1000
ROUNDING_S = 1e-6


class LoggedFact(NamedTuple):
    """A fact with its writer and its time in virtual seconds."""

    at: float
    writer: str
    incarnation: int
    fact: Any


@dataclass
class _Unit:
    machine: Learner
    trainer: Trainer
    fragment_io: FragmentIO
    batch_size: int
    next: unit.RunStep | unit.Hold | unit.Exit | None = None
    slowdown: float = 1.0
    ends_at: float = 0.0  # its newest step, in virtual seconds

    def choose(self, now: float, effect: unit.RunStep | unit.Hold | unit.Exit) -> None:
        """Take the machine's choice. A step begins where the last one ended, between two units, unless it waited."""
        self.next = effect
        if isinstance(effect, unit.RunStep):
            self.ends_at = (self.ends_at if now - self.ends_at < 1.0 else now) + self.slowdown


class LockStep:
    """One run. `learners` maps names to batch sizes in samples; `quorum` is K as a number.

    `slowdowns`: units of time that a learner's step takes, where it is not 1.
    """

    def __init__(
        self,
        *,
        task: Task,
        sync: SyncConfig,
        outer_config: OuterConfig,
        inner: InnerConfig,
        learners: Mapping[str, int],
        quorum: int,
        budget: Budget,
        span_steps: int = 16,
        seed: int = 0,
        warm_start: WarmStart | None = None,
        slowdowns: Mapping[str, float] | None = None,
    ) -> None:
        self.fragments = deal(task, sync)
        tensors = [tensor for fragment in self.fragments for tensor in fragment.tensors]
        self.parameters = GlobalParameters(
            self.fragments,
            initial_parameters(task, self.fragments, seed, warm_start),
            outer_config,
            sync.codec,
            rules(tensors, outer_config.merge, getattr(task, "merge_rules", {})),
            chain=VersionChain.of(sync.downlink, self.fragments, seed),
        )
        self.facts: list[LoggedFact] = []
        self._sync, self._task = sync, task
        self._now = 0.0
        self._idle = 0  # rounds since a learner stepped
        self._queue: deque[tuple[str | None, Any]] = deque()  # (learner, or None for the syncer; event)
        self._syncer = Syncer(
            epoch=1,
            config=sync,
            fragments=self.fragments,
            learners=learners,
            quorum=quorum,
            span_steps=span_steps,
            budget=budget,
            manifest={},
            uplinks=uplinks(sync, self.fragments),
        )
        self._units = {}
        train_step = make_step(task, inner)
        for name, batch_size in learners.items():
            trainer = Trainer(task, self.fragments, inner, seed, train_step, warm_start=warm_start)
            machine = Learner(
                name=name,
                incarnation=1,
                config=sync,
                fragments=len(self.fragments),
                batch_size=batch_size,
                span_steps=span_steps,
                start_s=float(IDLE_ROUNDS_MAX),
            )
            fragment_io = FragmentIO(trainer, sync, len(self.fragments), seed)
            slowdown = (slowdowns or {}).get(name, 1.0)
            self._units[name] = _Unit(machine, trainer, fragment_io, batch_size, slowdown=slowdown)

    def run(self) -> GlobalParameters:
        """Train to the end of the budget. Raises RuntimeError when nothing moves any more."""
        self.begin()
        while not self.over:
            self.advance()
        return self.parameters

    @property
    def over(self) -> bool:
        return all(isinstance(each.next, unit.Exit) for each in self._units.values())

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return self._now

    @property
    def committed_step(self) -> int:
        """The newest syncer step that was committed or passed."""
        return self._syncer.committed_step

    def say(self, writer: str, fact: Any, later_s: float = 0.0) -> None:
        """Add a fact of another writer to the run's."""
        self.facts.append(LoggedFact(self._now + later_s, writer, 1, fact))

    def begin(self) -> None:
        """Start all machines. Call it once, then `advance` until `over`."""
        self._perform_outer(self._syncer.start())
        for name in self._units:
            self._to_syncer(outer.Expect(name, 1, float(IDLE_ROUNDS_MAX), self._units[name].batch_size))
        for name in self._units:
            for event in (unit.Enter(IMPORTING), unit.Enter(COMPILING), unit.Compiled({})):
                self._to_learner(name, event)
        self._settle()

    def advance(self) -> None:
        """One unit of time. Raises RuntimeError when nothing moves any more."""
        self._now += 1.0
        self._idle = 0 if self._round() else self._idle + 1
        if self._idle > IDLE_ROUNDS_MAX:
            raise RuntimeError(
                f"no learner has stepped for {self._idle} rounds at syncer step {self._syncer.syncer_step}"
            )

    def _round(self) -> bool:
        """Let every learner finish the step that ends now. Returns whether any did."""
        self._to_syncer(outer.Tick())
        due = {}
        for name, each in self._units.items():
            if isinstance(each.next, unit.RunStep) and each.ends_at <= self._now + ROUNDING_S:
                run, each.next = each.next, None
                due[name] = each.trainer.dispatch(run.start, each.batch_size, run.progress)
        for name, flight in due.items():  # all are enqueued before the first is waited for
            loss, aux = flight.result()
            tokens = self._task.tokens(self._units[name].batch_size)
            self._to_learner(name, unit.StepDone(loss, tokens, aux))
            self._to_learner(name, unit.Boundary(tokens))
        self._settle()
        return bool(due)

    def _settle(self) -> None:
        """Deliver all messages, then resume every holding learner once."""
        self._deliver()
        for name, each in self._units.items():
            if isinstance(each.next, unit.Hold) or each.next is None:
                self._to_learner(name, unit.Resume())
        self._deliver()

    def _to_syncer(self, event: outer.Event) -> None:
        self._queue.append((None, event))

    def _to_learner(self, name: str, event: unit.Event) -> None:
        self._queue.append((name, event))

    def _deliver(self) -> None:
        while self._queue:
            name, event = self._queue.popleft()
            if name is None:
                self._perform_outer(self._syncer.handle(self._now, event), event)
            else:
                self._perform_unit(name, self._units[name].machine.handle(self._now, event))

    def _perform_outer(self, effects: list[outer.Effect], event: Any = None) -> None:
        for effect in effects:
            match effect:
                case outer.Reply(Welcome() as welcome):
                    self._to_learner(event.learner, welcome)
                case outer.Emit(fact):
                    self.facts.append(LoggedFact(self._now, "syncer", 1, fact))
                case outer.Send(learner, _, message):
                    self._to_learner(learner, message)
                case outer.Merge(syncer_step, fragment, payloads, weights, formats):
                    proposal = self.parameters.propose(fragment, payloads, weights, syncer_step, formats)
                    merged = outer.Merged(syncer_step, proposal, proposal.digest, proposal.norm, proposal.finite)
                    self._to_syncer(merged)
                case outer.Append(sequence, record):
                    self.facts.append(LoggedFact(self._now, "syncer", 1, record))
                    self._to_syncer(outer.Durable(sequence))
                case outer.Publish(_, version, proposal):
                    self.parameters.install(proposal, version)

    def _perform_unit(self, name: str, effects: list[unit.Effect]) -> None:
        each = self._units[name]
        for effect in effects:
            match effect:
                case unit.Emit(fact):
                    self.facts.append(LoggedFact(self._now, name, 1, fact))
                case unit.Send(message):
                    self._to_syncer(message)
                case unit.Answer(contribution):
                    size, codec = self.fragments[contribution.fragment].size, contribution.codec or self._sync.codec
                    self._to_syncer(examine(each.fragment_io.encode(contribution), codec, size))
                case unit.Fetch(fragment, _, _):
                    parameters = self.parameters
                    self._to_learner(
                        name,
                        unit.Fetched(fragment, parameters.versions[fragment], parameters.thetas[fragment]),
                    )
                case unit.Recover():  # all start together, so there is nothing to copy
                    self._to_learner(name, unit.StateMissed("", 0, "none"))
                case unit.Stage(fragments):
                    self._to_learner(name, unit.Staged(each.fragment_io.stage(fragments)))
                case unit.Apply():
                    each.fragment_io.apply(effect)
                case unit.RunStep() | unit.Hold() | unit.Exit():
                    each.choose(self._now, effect)
