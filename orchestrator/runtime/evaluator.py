"""Held-out evaluation: a Ray actor that evaluates the syncer's parameters, and the task that keeps it at work.

No learner waits for it, and its death does not matter to the run: the next evaluation starts another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray

from learners.config import DataConfig
from learners.island import granted_gpus
from learners.spec import LearnerSpec
from learners.training.devices.device import fit, use_compile_cache
from orchestrator.eventlog.facts import Evaluated, EvaluationFailed
from orchestrator.lifecycle.ports import gist
from orchestrator.recipe.config import PoolConfig, Recipe
from orchestrator.runtime.placement import RunPlacement, control, named, using
from orchestrator.runtime.specs import learner_spec
from orchestrator.store.run_store import RunStore
from outer.background import Background, tell
from outer.bulk import gathered


class EvaluatorActor:
    """`spec` is a learner's, of the same task and fragments. `sets`: [data] of further held-out sets, by name."""

    def __init__(
        self, spec: LearnerSpec, syncer: Any, sequences: int, batch_size: int, sets: Mapping[str, DataConfig]
    ) -> None:
        self._spec, self._syncer = spec, syncer
        fit(spec.core, spec.platform, granted=granted_gpus())
        from learners.training.devices import device_checks
        from learners.training.evaluator import Evaluator
        from learners.training.task import load
        from learners.training.tree import deal

        use_compile_cache()
        device_checks.at_start(spec.platform, granted_gpus())
        self._task = load(spec.task, spec.data, spec.seed, dict(spec.model))
        others = {name: load(spec.task, data, spec.seed, dict(spec.model)) for name, data in sets.items()}
        self._fragments = deal(self._task, spec.sync)
        self._evaluator = Evaluator(
            self._task, self._fragments, sequences, batch_size, spec.seed, spec.warm_start, others, spec.devices
        )
        self._sequences = sequences

    def __repr__(self) -> str:
        return self._spec.name

    def reattach(self, syncer: Any) -> None:
        """A new epoch of the syncer serves."""
        self._syncer = syncer

    def initial(self) -> Evaluated:
        """The same as `current`, for the parameters that the run starts from."""
        from learners.training.tree import initial_parameters

        spec = self._spec
        return self._evaluate(0, initial_parameters(self._task, self._fragments, spec.seed, spec.warm_start))

    def current(self) -> Evaluated:
        """Evaluate the syncer's parameters as they are now."""
        deadline_s = self._spec.sync.transfer_s
        syncer_step, current, _ = ray.get(self._syncer.snapshot.remote(), timeout=deadline_s)
        return self._evaluate(syncer_step, asyncio.run(asyncio.wait_for(gathered(current), deadline_s)))

    def _evaluate(self, syncer_step: int, thetas: Sequence[Any]) -> Evaluated:
        from learners.training.task import loss_unit

        loss, metrics = self._evaluator.measure(thetas)
        os.nice(max(0, 10 - os.nice(0)))  # after the first, which users wait for, learners come first on shared cores
        return Evaluated(syncer_step, loss, self._task.tokens(self._sequences), loss_unit(self._task), metrics)

    def unsent(self) -> dict[str, Any]:
        """The initial values, float32, of the floating-point leaves that are in no fragment, by path."""
        return self._evaluator.unsent()


class Evaluations:
    """A run's evaluations, one at a time; `emit` writes a fact to the log."""

    def __init__(
        self, recipe: Recipe, placement: RunPlacement, store: RunStore, code: str, emit: Callable[[Any], None]
    ) -> None:
        self.loss: float | None = None  # of the newest
        self.fault = ""  # why the newest failed
        self.counts: Counter[str] = Counter()  # finite | non_finite, of those that gave a loss; skipped
        self._recipe, self._placement, self._store, self._code, self._emit = recipe, placement, store, code, emit
        self._timeout_s = recipe.eval.timeout_s
        self._background = Background(tell)
        self._task: asyncio.Task[None] | None = None
        self._evaluated_at = self._skipped = 0  # syncer step; before it
        self._measured: int | None = None  # syncer step of the newest that gave a loss
        self._actor: Any = None

    @property
    def name(self) -> str:
        """The name of the newest evaluator's actor, which may be an earlier orchestrator's."""
        return f"evaluator.{self._store.granted('incarnation', 'evaluator')}"

    def reattach(self, syncer: Any) -> None:
        """A new epoch of the syncer serves, which may make a step anew."""
        self._measured = None
        if self._actor is not None:
            self._actor.reattach.remote(syncer.handle)

    def start_if_due(self, syncer: Any, syncer_step: int, fresh: bool) -> None:
        """Evaluate once learners step, since they need the cores for their own start, and then every `eval.every`.

        `fresh`: the run is not resumed, so that the first evaluation is of the initial parameters.
        """
        every = self._recipe.eval.every
        if self._task is None:
            self._evaluated_at = 0 if fresh else syncer_step
            self._task = self._background.spawn(self._evaluate(syncer, initial=fresh))
        due = syncer_step // every - self._evaluated_at // every if every else 0
        self.counts["skipped"] = self._skipped + max(0, due - 1)  # all but the newest that came due meanwhile
        if due and self._task.done():
            self._skipped, self._evaluated_at = self.counts["skipped"], syncer_step
            self._task = self._background.spawn(self._evaluate(syncer))

    async def finish(self, syncer: Any, syncer_step: int) -> None:
        """Wait for the evaluation under way, then evaluate the final parameters, unless it has just done so."""
        if self._task is not None:
            await self._task
        if self._measured != syncer_step:
            await self._evaluate(syncer)

    async def unsent(self) -> dict[str, Any]:
        """The initial values of leaves that are not sent, as EvaluatorActor.unsent; empty if it does not answer."""
        try:
            asked = self._actor and self._actor.unsent.remote()
            found: dict[str, Any] = await asyncio.wait_for(asked, self._timeout_s) if asked is not None else {}
        except (ray.exceptions.RayError, TimeoutError) as error:
            self.fault = gist(error)
            return {}
        return found

    async def _evaluate(self, syncer: Any, initial: bool = False) -> None:
        try:
            if self._actor is None:
                self._actor = self._create(syncer)
            method = self._actor.initial if initial else self._actor.current
            evaluated: Evaluated = await asyncio.wait_for(method.remote(), self._timeout_s)
            self.loss, self._measured = evaluated.loss, evaluated.syncer_step
            self.counts["finite" if math.isfinite(evaluated.loss) else "non_finite"] += 1
            self._emit(evaluated)
            self.fault = ""
        except Exception as error:  # the run goes on without, and the next evaluation starts another actor
            self.fault = self._late() if isinstance(error, TimeoutError) else gist(error)
            self._emit(EvaluationFailed(self.fault))
            if self._actor is not None:
                ray.kill(self._actor)
                self._actor = None

    def _late(self) -> str:
        """Why no answer came in time: the actor has no process, for want of a place, or needs longer."""
        from ray._private.state import state  # there is no public way without Ray's dashboard

        limit, asked = f"eval.timeout_s = {self._timeout_s:g}", dict(self._recipe.eval.resources)
        if self._actor is None or state.actor_table(self._actor._actor_id.hex()).get("Pid"):
            return f"took longer than {limit}: raise it, or lower eval.sequences"
        return f"found no place within {limit}: ask for less than eval.resources = {asked}, or add a node with room"

    def _create(self, syncer: Any) -> Any:
        recipe, asked = self._recipe, self._recipe.eval
        kind = PoolConfig(name="evaluator", resources=asked.resources)
        with contextlib.suppress(ValueError):  # it may hold what this one needs
            ray.kill(ray.get_actor(self.name, self._placement.namespace))
        self._store.grant("incarnation", "evaluator")
        options = named(self.name, self._placement.namespace, 0.0) | using(kind)
        options |= control({} if asked.accelerated else recipe.run.control, anywhere=self._placement.local)
        spec = learner_spec(recipe, self._code, "evaluator", 0, recipe.pools[0], core=None)
        spec = replace(spec, platform=kind.platform, devices=None if asked.accelerated else 1, data=recipe.data)
        actor = ray.remote(EvaluatorActor).options(**options)
        return actor.remote(spec, syncer.handle, asked.sequences, asked.batch_size, recipe.held_out_sets)
