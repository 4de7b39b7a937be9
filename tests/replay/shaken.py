"""Tapes in a second: the lock-step shell with real JAX, whose learners pause, die, come back from a peer, and leave."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.harness.lockstep import IDLE_ROUNDS_MAX, LockStep, LoggedFact, _Unit
from learners.config import DataConfig, InnerConfig
from learners.fragment_io import FragmentIO
from learners.protocol import events_effects as unit
from learners.protocol.learner import Learner
from learners.training.devices.device import device_taken
from learners.training.task import Batch
from learners.training.trainer import Trainer
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import RunFinished, RunStarted
from orchestrator.recipe.config import Recipe
from orchestrator.replay.crew import Finish, FromLearners, ToLearners
from orchestrator.replay.learners import Learners
from orchestrator.replay.tape import Tape, merged_reads
from orchestrator.replay.workers import Workers
from outer.protocol import events_effects as outer
from outer.protocol.messages import COMPILING, IMPORTING, STEPPING, Donor, StateRequest
from outer.protocol.syncer import Budget

SPAN_STEPS = 4
LATE = 1.4  # rounds


class Points:
    """Vectors pulled towards random points by Adam, whose moments a joiner inherits. 4 tokens a sample."""

    def __init__(self, data: DataConfig, seed: int, **model: Any) -> None:
        self.names = ("embed", "w", "x", "y", "z")

    def init(self, rng: jax.Array) -> dict[str, jax.Array]:
        # No random numbers: compiling them takes longer than all the rest.
        return {name: jnp.arange(4.0).reshape(2, 2) / (index + 3) for index, name in enumerate(self.names)}

    def loss(
        self, params: dict[str, jax.Array], batch: Batch, rng: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        return sum((((leaf - batch.mean()) ** 2).sum() for leaf in params.values()), jnp.float32(0)), {}

    def optimizer(self, inner: InnerConfig) -> optax.GradientTransformation:
        return optax.adam(inner.lr)

    def batch(self, start: int, count: int) -> Batch:
        return np.sin(np.arange(start, start + count, dtype=np.float32))

    held_out = batch

    def tokens(self, count: int) -> int:
        return 4 * count


def recipe(syncer_steps: int = 48, **sync: Any) -> Recipe:
    """Three learners of two pools, whose batches differ; five fragments in a round of six."""
    return Recipe.model_validate(
        {
            "name": "shaken",
            "task": "tests.replay.shaken:Points",
            "inner": {"lr": 0.05},
            "data": {"span_steps": SPAN_STEPS},
            "sync": {"P": 5, "H": 6, "tau": 2, "lease_s": 30.0, "quorum": 1} | sync,
            "pools": [{"name": "a", "learners": 2, "batch_size": 2}, {"name": "b", "batch_size": 4}],
            "budget": {"syncer_steps": syncer_steps},
            "eval": {"sequences": 8},
        }
    )


class Shaken(LockStep):
    """`plan`: what is done to the run before which virtual second. Learners now and then miss a second, by chance.

    With a base window versions come to one of them more than a round late. With adaptive links formats change.
    """

    def __init__(self, wanted: Recipe, plan: dict[int, Callable[[Shaken], None]], seed: int = 0) -> None:
        self.recipe, self._plan, self._chance = wanted, plan, Random(seed)
        self._incarnations = dict.fromkeys(wanted.learners, 1)
        self._seekers: dict[tuple[str, int], float] = {}
        self._under_way: list[tuple[float, str, unit.Event]] = []
        super().__init__(
            task=Points(wanted.data, wanted.seed),
            sync=wanted.sync,
            outer_config=wanted.outer,
            inner=wanted.inner,
            learners={name: pool.batch_size for name, pool in wanted.learners.items()},
            quorum=wanted.quorum,
            budget=Budget(None, wanted.budget.syncer_steps),
            span_steps=SPAN_STEPS,
            seed=wanted.seed,
        )
        self.facts += [LoggedFact(0.0, name, 1, device_taken(1)) for name in wanted.learners]
        if wanted.sync.adaptive:  # here no link is slow
            self._syncer._links.codec = self._any_codec  # type: ignore[method-assign]

    def _any_codec(self, member: Any) -> str:
        """Every seven seconds another format, and each learner at its own time."""
        codecs = self._syncer._links.uplinks.codecs
        return codecs[(int(self._now) // 7 + sum(member.name.encode())) % len(codecs)]

    # -------------------------------------------------------------- what a plan may do

    def kill(self, name: str) -> None:
        del self._units[name]
        self._under_way = [each for each in self._under_way if each[1] != name]
        self._to_syncer(outer.Fence(name, self._incarnations[name], "killed"))
        self._deliver()

    def revive(self, name: str) -> None:
        self._incarnations[name] += 1
        incarnation, pool = self._incarnations[name], self.recipe.pool_of(name)
        self.facts.append(LoggedFact(self._now, name, incarnation, device_taken(1)))
        machine = Learner(
            name=name,
            incarnation=incarnation,
            config=self._sync,
            fragments=len(self.fragments),
            batch_size=pool.batch_size,
            span_steps=SPAN_STEPS,
            start_s=float(IDLE_ROUNDS_MAX),
        )
        trainer = Trainer(self._task, self.fragments, self.recipe.inner, self.recipe.seed)
        self._units[name] = _Unit(
            machine, trainer, FragmentIO(trainer, self._sync, len(self.fragments), self.recipe.seed), pool.batch_size
        )
        self._to_syncer(outer.Expect(name, incarnation, float(IDLE_ROUNDS_MAX), pool.batch_size))
        for event in (unit.Enter(IMPORTING), unit.Enter(COMPILING), unit.Compiled({})):
            self._to_learner(name, event)
        self._deliver()

    def drain(self, name: str) -> None:
        self._to_syncer(outer.DrainRequested(name, self._incarnations[name], "scaled down", 60.0))
        self._deliver()

    # -------------------------------------------------------------- the shell

    def _round(self) -> bool:
        self._plan.get(int(self._now), lambda run: None)(self)
        there = [each for each in self._under_way if each[0] <= self._now]
        self._under_way = self._under_way[len(there) :]
        for _, name, event in there:
            super()._to_learner(name, event)
        sleeping = {}
        for name, each in self._units.items():
            if each.machine.phase == STEPPING and isinstance(each.next, unit.RunStep) and self._chance.random() < 0.25:
                sleeping[name], each.next = each.next, unit.Exit("asleep")  # neither steps nor looks up
        stepped = super()._round()
        for name, step in sleeping.items():
            self._units[name].next = step
        return stepped or bool(sleeping)

    def _to_learner(self, name: str, event: unit.Event) -> None:
        if name not in self._units:
            return
        if (
            self._sync.base_window
            and name == min(self.recipe.learners)
            and isinstance(event, unit.Fetched)
            and event.version
        ):
            self._under_way.append((self._now + LATE * self._sync.round_steps, name, event))
        else:
            super()._to_learner(name, event)

    def _perform_outer(self, effects: list[outer.Effect], event: Any = None) -> None:
        for effect in effects:
            match effect:
                case outer.Send(learner, incarnation, message):
                    if self._incarnations[learner] == incarnation:
                        self._to_learner(learner, message)
                case outer.Reply() if self._incarnations.get(event.learner) != event.incarnation:
                    pass
                case outer.Reply(Donor() as named):
                    self._ask(event.learner, event.incarnation, named)
                case _:
                    super()._perform_outer([effect], event)

    def _ask(self, joiner: str, incarnation: int, named: Donor) -> None:
        if not named.donor:
            self._to_learner(joiner, unit.StateMissed("", 0, "none"))
            return
        origin = (named.donor, named.donor_incarnation)
        request = StateRequest(named.epoch, joiner, incarnation, *origin, named.syncer_step, 60.0)
        self._to_learner(named.donor, request)

    def _perform_unit(self, name: str, effects: list[unit.Effect]) -> None:
        each = self._units[name]
        for effect in effects:
            match effect:
                case unit.Emit(fact):
                    self.facts.append(LoggedFact(self._now, name, self._incarnations[name], fact))
                case unit.Recover(seek, _):
                    self._to_syncer(seek)
                case unit.Donate(request, step, syncer_step, versions):
                    state = each.fragment_io.pack(each.fragment_io.capture(), request, step, syncer_step, versions)
                    self._to_learner(name, unit.StateSent(request, step, state.digest, state.size, versions))
                    self._to_learner(request.joiner, unit.StateArrived(state))
                case unit.Decline(request, reason):
                    self._to_learner(request.joiner, unit.StateMissed(request.donor, request.donor_incarnation, reason))
                case unit.Inherit(state):
                    each.fragment_io.inherit(state)
                case _:
                    super()._perform_unit(name, [effect])

    # -------------------------------------------------------------- what it leaves

    @property
    def events(self) -> list[Event]:
        """Its log."""
        numbers: Counter[tuple[str, int]] = Counter()
        events = []
        started = RunStarted(self.recipe.name, self.recipe.config_hash, self.recipe.seed, {})
        finished = RunFinished("finished", "the budget is reached", self.parameters.digest())
        last = LoggedFact(self._now + 1.0, "orchestrator", 1, finished)
        for said in [LoggedFact(0.0, "orchestrator", 1, started), *self.facts, last]:
            events.append(Event(said.writer, said.incarnation, numbers[said[1:3]], said.at, said.fact))
            numbers[said[1:3]] += 1
        return events


def shaken(wanted: Recipe) -> Shaken:
    """A run with everything in it: two deaths and returns, and one that leaves."""

    def second_death(run: Shaken) -> None:
        run.kill("learner-b-0")
        run.revive("learner-b-0")

    plan: dict[int, Callable[[Shaken], None]] = {
        12: lambda run: run.kill("learner-a-1"),
        15: lambda run: run.revive("learner-a-1"),
        26: second_death,
        38: lambda run: run.drain("learner-a-0"),
    }
    run = Shaken(wanted, plan)
    run.run()
    return run


class OneProcess(Workers):
    """All learners in this process and thread, one after the other."""

    def __init__(self, tape: Tape, recipe: Recipe, task: Any) -> None:
        self.groups = {learner: 0 for learner, _ in tape.incarnations}
        self.said: deque[FromLearners] = deque()
        self.learners = Learners(tape.incarnations, merged_reads(tape), recipe, task, self.said.append)
        self._running = self.learners.run()
        next(self._running)

    def tell(self, group: int, message: ToLearners) -> None:
        try:
            self._running.send(message)
        except StopIteration:
            assert isinstance(message, Finish)

    def hear(self) -> FromLearners:
        assert self.said, "the schedule asks for nothing that is not there"
        return self.said.popleft()
