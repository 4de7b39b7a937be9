"""Conventional data-parallel training of a recipe by Ray Train's JaxTrainer, on a local Ray or a cluster.

As many workers as the recipe has learners, each where its pool wants it, with its resources; jax.distributed runs on
CPUs too. Ray Train restarts all workers from the newest checkpoint when one dies; a run that was interrupted goes on
from it as well. A run that fails again and again without getting further ends with the newest error.
"""

from __future__ import annotations

import json
import math
import os
import signal
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import ray.train
from ray.train import CheckpointConfig, FailureConfig, LoggingConfig, RunConfig, ScalingConfig, UserCallback
from ray.train.collective import barrier, broadcast_from_rank_zero
from ray.train.v2.jax import JaxTrainer
from ray.train.v2.jax.config import JaxConfig

from learners.training.devices.device import CPU_FLAGS, fit
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.resources import shape
from orchestrator.recipe.tasks import build_task
from orchestrator.recipe.toml_text import dump
from orchestrator.runtime import launch
from orchestrator.runtime.data_parallel.history import (
    EVALUATIONS_FILE,
    PROGRESS_FILE,
    STEPS_FILE,
    History,
    LineLog,
    history,
)
from orchestrator.runtime.placement import control
from orchestrator.store.export import write_final
from orchestrator.store.readers import RECIPE_FILE, object_of
from orchestrator.store.run_store import RunStore
from outer.background import tell, thread

STATE_FILE = "state"  # in a checkpoint
FIRST_STEPS = 10  # after a start, measured to choose the steps between two checkpoints
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
        self._trainer = SynchronousTrainer(self._task, recipe.inner, recipe.seed, self._batch, recipe.warm_start)
        self._log = LineLog(self._store.path(STEPS_FILE)) if self._rank == 0 else None
        self._flights: deque[tuple[int, float, Any]] = deque()  # (step, when it was dispatched, loss)
        self._step, self._done_at, self._told_at = 0, 0.0, 0.0
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
        due_at = measured_at = self._step + FIRST_STEPS
        every_s, last = self._recipe.durability.every_s, self._last
        for step in range(self._step + 1, last + 1):
            flight = self._trainer.dispatch((step - 1) * self._batch, self._progress(step))
            self._flights.append((step, time.time(), flight))
            if len(self._flights) > 1:
                self._complete()
            evaluate = self._recipe.eval.every
            if evaluate and step % evaluate == 0 and step < last:
                self._drain()
                self._evaluate()
            if every_s and step == due_at and step < last:
                self._drain()
                if step > measured_at:
                    self._checkpoint()
                due_at = step + self._until_next(every_s)
        self._drain()
        self._evaluate(wait=True)
        self._finish()

    def _until_next(self, every_s: float) -> int:
        """Steps to the next checkpoint: all ranks must agree on them, so the first one's clock decides."""
        step_s = self._stepped_s / max(1, self._stepped)
        steps: int = broadcast_from_rank_zero(max(1, round(every_s / step_s)))
        return steps

    def _resume(self) -> None:
        checkpoint = ray.train.get_checkpoint()
        if checkpoint is not None:
            with checkpoint.as_directory() as folder:
                head, _, content = Path(folder, STATE_FILE).read_bytes().partition(b"\n")
            self._step = int(json.loads(head)["step"])
            self._trainer.restore(content)
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
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if self._log is not None:
                head = json.dumps({"step": self._step}).encode() + b"\n"
                Path(folder, STATE_FILE).write_bytes(head + self._trainer.save())
                checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report({"step": self._step}, checkpoint=checkpoint)
        if self._log is not None:
            self._log.write(kind="checkpoint", step=self._step, at=time.time())
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


SUMMARY_FILE = "summary.json"
TRAIN_FOLDER = "train"  # Ray Train's own, with its checkpoints
JUDGE_CPUS = 0.5
POLL_S = 0.5
HEALTH_S = ("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")  # each report waits for one; Ray Train's default is 2
STARTS_FAILED = 10  # starts of the workers that may fail, in all
RESTARTS = 3  # in a row without a new step
TOLD_LINES = 12  # of the newest traceback

OnProgress = Callable[[Mapping[str, Any]], None]


class HeldOutActor:
    """Evaluates parameters beside the ranks, which do not wait for it; writes what it finds."""

    def __init__(self, recipe: Recipe, folder: str) -> None:
        os.nice(10)  # where cores are shared, ranks come first
        fit(None, "cpu")
        from learners.training.evaluator import Evaluator
        from learners.training.synchronous import WHOLE
        from learners.training.tree import deal

        task = build_task(recipe)
        asked = recipe.eval
        self._evaluator = Evaluator(
            task, deal(task, WHOLE), asked.sequences, asked.batch_size, recipe.seed, recipe.warm_start
        )
        self._log = LineLog(Path(folder, EVALUATIONS_FILE))

    def evaluate(self, step: int, at: float, thetas: Any) -> float:
        loss = self._evaluator.loss(thetas)
        self._log.write(kind="evaluated", step=step, at=at, loss=loss)
        return loss


class NoProgress(RuntimeError):
    """The same steps fail again and again."""


class RestartCap(UserCallback):  # type: ignore[misc]
    """Called by Ray Train's controller before it restarts failed workers, which it would do for ever."""

    def __init__(self, root: str) -> None:
        self._root = root  # of the run's store
        self._most = self._failures = 0  # the furthest step at the last failure, and failures since that

    def after_exception(self, run_context: Any, worker_exceptions: Mapping[int, BaseException]) -> None:
        """Raise NoProgress, with which the run fails, if it must not be restarted again."""
        most = history(RunStore(self._root)).most
        self._failures = 1 if most > self._most else self._failures + 1
        self._most = most
        if self._failures > RESTARTS:
            rank, error = min(worker_exceptions.items())
            told = "\n".join(str(error).strip().splitlines()[-TOLD_LINES:])
            again = f"the workers failed {self._failures} times without a new step after step {self._most}"
            raise NoProgress(f"{again}; rank {rank}, the last time:\n{type(error).__name__}: {told}")


def run(recipe: Recipe, store: RunStore, on_progress: OnProgress, address: str | None = None) -> History:
    """`train_on`, on a cluster, or on a local Ray that is started for it; a run that has finished is only read."""
    if (found := history(store)).finished:
        if not store.path(SUMMARY_FILE).exists():  # ended in between
            _write_summary(recipe, store, found)
        return found
    store.create()
    store.write_text(RECIPE_FILE, dump(recipe))  # first: by it the folder is known when the command comes again
    local = address is None
    with launch.attached(recipe, store, address) if address else launch.local_cluster(recipe, store) as namespace:
        return train_on(namespace, recipe, store, on_progress, local)


def scaling(recipe: Recipe, local: bool) -> ScalingConfig:
    """A worker for each learner: its resources, and, unless `local`, the labels of its pool."""
    labels = [dict(shape(pool, anywhere=local).labels) for pool in recipe.learners.values()]
    return ScalingConfig(
        num_workers=len(labels),
        resources_per_worker=dict(recipe.pools[0].resources),
        label_selector=labels if any(labels) else None,
    )


def train_on(namespace: str, recipe: Recipe, store: RunStore, on_progress: OnProgress, local: bool = True) -> History:
    """Train to the end, or go on, on the Ray that this process is connected to; `local`: it has one host.

    Raises what Ray Train raises, and KeyboardInterrupt.
    """
    os.environ.setdefault(*HEALTH_S)
    store.write_text(RECIPE_FILE, dump(recipe))
    options: dict[str, Any] = {"num_cpus": JUDGE_CPUS, "max_restarts": -1}
    options |= {"name": f"held-out.{recipe.name}", "namespace": namespace} | control(recipe.run.control, local)
    judge = ray.remote(HeldOutActor).options(**options).remote(recipe, str(store.root))
    spec = RankSpec(recipe, str(store.root), judge, len(os.sched_getaffinity(0)) if local else 0)
    trainer = JaxTrainer(
        train,
        train_loop_config={"spec": spec},
        jax_config=JaxConfig(use_gpu=True),  # else it does without jax.distributed
        scaling_config=scaling(recipe, local),
        run_config=RunConfig(
            name=TRAIN_FOLDER,
            storage_path=str(store.root),
            failure_config=FailureConfig(max_failures=-1, controller_failure_limit=STARTS_FAILED),
            callbacks=[RestartCap(str(store.root))],
            checkpoint_config=CheckpointConfig(num_to_keep=recipe.durability.keep),
            worker_runtime_env={"env_vars": {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": os.getenv("XLA_FLAGS") or CPU_FLAGS}},
            logging_config=LoggingConfig(log_level="ERROR"),
        ),
    )
    try:
        LineLog(store.path(STEPS_FILE)).write(kind="attached", at=time.time())
        with _followed(store, on_progress), interruptible():
            trainer.fit()
    finally:
        ray.kill(judge)
    found = history(store)
    _write_summary(recipe, store, found)
    return found


def _write_summary(recipe: Recipe, store: RunStore, found: History) -> None:
    tokens = build_task(recipe).tokens(batch_size(recipe))
    summary = {"name": recipe.name, "config_hash": recipe.config_hash, "mode": "data_parallel"}
    store.write_json(SUMMARY_FILE, summary | found.summary(tokens))


@contextmanager
def interruptible() -> Iterator[None]:
    """Ray Train's own handler of SIGINT ends the process with code 0: make that KeyboardInterrupt, and remove it."""
    in_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit as error:
        raise KeyboardInterrupt from error
    finally:
        if in_main and before is not None:
            signal.signal(signal.SIGINT, before)


@contextmanager
def _followed(store: RunStore, on_progress: OnProgress) -> Iterator[None]:
    """Tell the progress while the block runs."""
    over = threading.Event()

    def follow() -> None:
        while not over.wait(POLL_S):
            found = object_of(store, PROGRESS_FILE) or {}
            if found.get("steps"):
                on_progress({"progress": found["step"] / found["steps"], "eval_loss": found["eval_loss"]})

    following = thread("progress", follow, tell)
    try:
        yield
    finally:
        over.set()
        following.join()
