"""One worker of Ray Train: its share of a data-parallel run, from the newest checkpoint to the end of the budget.

A worker that dies takes the group with it: Ray Train starts all of them again, from the newest checkpoint.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import ray.train
from ray.train.collective import barrier, broadcast_from_rank_zero

from orchestrator.recipe.config import Recipe
from orchestrator.recipe.tasks import build_task
from orchestrator.runtime.data_parallel.checkpoint_interval import Interval
from orchestrator.runtime.data_parallel.history import PROGRESS_FILE, RANKS, STEPS_FILE, LineLog
from orchestrator.store.export import write_final
from orchestrator.store.run_store import RunStore

STATE_FILE = "state"  # in a checkpoint
FIRST_STEPS = 10  # after a start, measured to choose the steps between two checkpoints
PROGRESS_S = 0.5
EVALUATION_S = 300.0  # for the last evaluation, and those before it that still run


@dataclass(frozen=True)
class RankSpec:
    """The arguments of every rank."""

    recipe: Recipe  # resolved
    folder: str  # the run's
    checkpoints: Interval
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
        self._stepped, self._stepped_s = 0, 0.0  # since this start
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
        self._resume()
        every = self._spec.checkpoints
        measured_at, last = self._step + min(FIRST_STEPS, every.steps or FIRST_STEPS), self._last
        due_at = measured_at
        for step in range(self._step + 1, last + 1):
            flight = self._trainer.dispatch((step - 1) * self._batch, self._progress(step))
            self._flights.append((step, time.time(), flight))
            if len(self._flights) > 1 or self._pause_s:
                self._complete()
            evaluate = self._recipe.eval.every
            if evaluate and step % evaluate == 0 and step < last:
                self._drain()
                self._evaluate()
            if (every.seconds or every.steps) and step == due_at and step < last:
                self._drain()
                if step > measured_at or every.steps:
                    self._checkpoint()
                due_at = step + self._until_next()
        self._drain()
        self._evaluate(wait=True)
        self._finish()

    def _until_next(self) -> int:
        """Steps to the next checkpoint: all ranks must agree on them, so the first one's clock decides."""
        step_s = self._stepped_s / max(1, self._stepped)
        steps: int = broadcast_from_rank_zero(self._spec.checkpoints.in_steps(step_s))
        return steps

    def _resume(self) -> None:
        checkpoint = ray.train.get_checkpoint()
        if checkpoint is not None:
            with checkpoint.as_directory() as folder:
                head, _, content = Path(folder, STATE_FILE).read_bytes().partition(b"\n")
            self._step = int(json.loads(head)["step"])
            self._trainer.restore(content)
        self._store.write_json(f"{RANKS}/{self._rank}.json", {"pid": os.getpid(), "at": time.time()})
        if self._log is not None:
            self._log.write(kind="started", step=self._step, at=time.time())
            if self._step == 0:
                self._evaluate()
        barrier()
        self._done_at = time.time()

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
        self._stepped, self._stepped_s = self._stepped + 1, self._stepped_s + took
        if self._log is not None:
            self._log.write(kind="step", step=step, at=now, seconds=took, loss=loss)
            if now - self._told_at >= PROGRESS_S:
                self._told_at = now
                progress = {"step": step, "steps": self._last, "eval_loss": self._eval_loss}
                self._store.write_json(PROGRESS_FILE, progress)

    def _drain(self) -> None:
        while self._flights:
            self._complete()

    def _checkpoint(self) -> None:
        """All ranks report; the first one has the state."""
        begun = time.time()
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if self._log is not None:
                head = json.dumps({"step": self._step}).encode() + b"\n"
                Path(folder, STATE_FILE).write_bytes(head + self._trainer.save())
                checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report({"step": self._step}, checkpoint=checkpoint)
        if self._log is not None:
            self._log.write(kind="checkpoint", step=self._step, at=time.time(), seconds=time.time() - begun)
        self._done_at = time.time()

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
