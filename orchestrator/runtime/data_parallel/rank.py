"""One worker of Ray Train: its share of a data-parallel run. A worker that dies takes the run with it."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import ray
import ray.train
from ray.train.collective import barrier

from orchestrator.recipe.config import Recipe
from orchestrator.recipe.tasks import build_task
from orchestrator.runtime.data_parallel.history import PROGRESS_FILE, STEPS_FILE, LineLog
from orchestrator.store.export import write_final
from orchestrator.store.run_store import RunStore

PROGRESS_S = 0.5
EVALUATION_S = 300.0  # for the last evaluation, and those before it that still run


@dataclass(frozen=True)
class RankSpec:
    """The arguments of every rank."""

    recipe: Recipe  # resolved
    folder: str  # the run's
    evaluator: Any  # an actor's handle
    cores: int  # of the one host, to pin ranks to; 0 on clusters


def batch_size(recipe: Recipe) -> int:
    """Samples of a step of all ranks."""
    return sum(pool.batch_size for pool in recipe.learners.values())


def train(settings: dict[str, Any]) -> None:
    """The loop that Ray Train runs in every worker; `settings["spec"]` is a RankSpec."""
    Rank(settings["spec"]).train()


class Rank:
    """One worker. All of them take the same way through the same steps."""

    def __init__(self, spec: RankSpec) -> None:
        context = ray.train.get_context()
        self._rank, self._spec, self._recipe = context.get_world_rank(), spec, spec.recipe
        if spec.cores > 0:
            from learners.training.devices import cores

            cores.pin(sorted(os.sched_getaffinity(0))[self._rank % spec.cores])
        from learners.training.devices.device import use_compile_cache
        from learners.training.synchronous import SynchronousTrainer

        use_compile_cache()
        recipe, self._store = spec.recipe, RunStore(spec.folder)
        self._task, self._batch = build_task(recipe), batch_size(recipe)
        self._tokens = self._task.tokens(self._batch)
        self._slowdown = max(pool.slowdown for pool in recipe.pools)
        self._trainer = SynchronousTrainer(self._task, recipe.inner, recipe.seed, self._batch, recipe.warm_start)
        self._log = LineLog(self._store.path(STEPS_FILE)) if self._rank == 0 else None
        self._flights: deque[tuple[int, float, Any]] = deque()  # (step, when it was dispatched, loss)
        self._step, self._done_at, self._told_at = 0, 0.0, 0.0
        self._pause_s = 0.0 if self._slowdown == 1.0 else (self._slowdown - 1.0) * self._trainer.share_s()
        self._evaluation: tuple[int, Any] | None = None  # (step, the evaluator's answer)
        self._eval_loss: float | None = None  # of the newest answer; None too where it is not finite

    @property
    def _last(self) -> int:
        """The step that reaches the budget."""
        budget = self._recipe.budget
        return budget.syncer_steps or -(-(budget.tokens or 0) // self._tokens)

    def _progress(self, step: int) -> float:
        """The run's before this step, as a syncer counts it."""
        budget, before = self._recipe.budget, step - 1
        return before / budget.syncer_steps if budget.syncer_steps else before * self._tokens / (budget.tokens or 1)

    def train(self) -> None:
        self._evaluate()
        barrier()
        self._done_at, last = time.time(), self._last
        for step in range(1, last + 1):
            flight = self._trainer.dispatch((step - 1) * self._batch, self._progress(step))
            self._flights.append((step, time.time(), flight))
            if len(self._flights) > 1 or self._pause_s:
                self._complete()
            evaluate = self._recipe.eval.every
            if evaluate and step % evaluate == 0 and step < last:
                self._drain()
                self._evaluate()
        self._drain()
        self._evaluate(wait=True)
        self._finish()

    # -------------------------------------------------------------- steps

    def _complete(self) -> None:
        """Wait for the oldest step, and log it."""
        step, dispatched_at, flight = self._flights.popleft()
        loss, _ = flight.result()
        now = time.time()
        took = now - max(dispatched_at, self._done_at)
        if self._pause_s:  # only the device is slower: what ranks wait for each other takes as long as it takes
            time.sleep(self._pause_s)
            took += time.time() - now
            now = time.time()
        self._step, self._done_at = step, now
        if self._log is not None:
            self._log.write(kind="step", step=step, at=now, seconds=took, loss=loss)
            if now - self._told_at >= PROGRESS_S:
                self._told_at = now
                progress = {"step": step, "steps": self._last, "eval_loss": self._eval_loss}
                self._store.write_json(PROGRESS_FILE, progress)

    def _drain(self) -> None:
        while self._flights:
            self._complete()

    def _evaluate(self, wait: bool = False) -> None:
        """Let the evaluator have the parameters, if it is not busy: no rank waits for it, but at the end."""
        if self._log is None:
            return
        if self._evaluation is not None:
            if not wait and not ray.wait([self._evaluation[1]], timeout=0)[0]:
                return
            self._evaluated()
        answer = self._spec.evaluator.evaluate.remote(self._step, time.time(), self._trainer.thetas())
        self._evaluation = self._step, answer
        if wait:
            self._evaluated()

    def _evaluated(self) -> None:
        """Read the evaluator's answer, and log why there is none: the ranks go on without it."""
        if self._evaluation is None or self._log is None:
            return
        step, answer = self._evaluation
        try:
            loss = ray.get(answer, timeout=EVALUATION_S)
            self._eval_loss = loss if math.isfinite(loss) else None
        except (ray.exceptions.RayError, TimeoutError) as error:
            said = str(error).strip().splitlines() or [""]
            reason = f"{type(error).__name__}: {said[-1]}"
            self._log.write(kind="not_evaluated", step=step, at=time.time(), reason=reason)

    def _finish(self) -> None:
        if self._log is None:
            return
        from learners.training.tree import left_out

        absent = left_out(self._task)
        write_final(self._store, self._step, self._trainer.fragments, self._trainer.thetas(), absent)
        self._log.write(kind="finished", step=self._step, at=time.time())
