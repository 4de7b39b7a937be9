"""Conventional data-parallel training of a recipe by Ray Train's JaxTrainer, on a local Ray.

As many workers as the recipe has learners, each with their resources; jax.distributed runs on CPUs too. Ray Train
restarts all workers from the newest checkpoint when one dies; a run that was interrupted goes on from it as well. A run
that fails again and again without getting further, and not by the plan's faults, ends with the newest error.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.train import CheckpointConfig, FailureConfig, LoggingConfig, RunConfig, ScalingConfig, UserCallback
from ray.train.v2.jax import JaxTrainer
from ray.train.v2.jax.config import JaxConfig

from learners.training.devices.device import fit
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.tasks import build_task
from orchestrator.recipe.toml_text import dump
from orchestrator.runtime import launch
from orchestrator.runtime.data_parallel.checkpoint_interval import Interval
from orchestrator.runtime.data_parallel.history import (
    EVALUATIONS_FILE,
    PROGRESS_FILE,
    STEPS_FILE,
    History,
    LineLog,
    history,
)
from orchestrator.runtime.data_parallel.rank import RankSpec, batch_size, train
from orchestrator.runtime.data_parallel.striking import Plan, Striker
from orchestrator.store.readers import RECIPE_FILE, object_of
from orchestrator.store.run_store import RunStore
from outer.background import tell, thread

SUMMARY_FILE = "summary.json"
TRAIN_FOLDER = "train"  # Ray Train's own, with its checkpoints
JUDGE_CPUS = 0.5
POLL_S = 0.5
HEALTH_S = ("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")  # each report waits for one; Ray Train's default is 2
STARTS_FAILED = 10  # starts of the workers that may fail, in all
RESTARTS = 3  # in a row without a new step, beside those that the plan's faults cause
TOLD_LINES = 12  # of the newest traceback
CPU_FLAGS = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

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
        self._most, self._struck = 0, 0  # the furthest step, and the plan's faults, at the last failure
        self._failures = 0  # since the furthest step, not by the plan's faults

    def after_exception(self, run_context: Any, worker_exceptions: Mapping[int, BaseException]) -> None:
        """Raise NoProgress, with which the run fails, if it must not be restarted again."""
        found = history(RunStore(self._root))
        struck = sum(1 for fault in found.faults if fault.get("injected"))
        if found.most > self._most:
            self._failures = 0
        if struck == self._struck:
            self._failures += 1
        self._most, self._struck = found.most, struck
        if self._failures > RESTARTS:
            rank, error = min(worker_exceptions.items())
            told = "\n".join(str(error).strip().splitlines()[-TOLD_LINES:])
            again = f"the workers failed {self._failures} times without a new step after step {self._most}"
            raise NoProgress(f"{again}; rank {rank}, the last time:\n{type(error).__name__}: {told}")


def run(recipe: Recipe, store: RunStore, checkpoints: Interval, plan: Plan, on_progress: OnProgress) -> History:
    """`train_on`, on a local Ray that is started for it; a run that has finished is only read."""
    if (found := history(store)).finished:
        if not store.path(SUMMARY_FILE).exists():  # ended in between
            _write_summary(recipe, store, found)
        return found
    store.create()
    store.write_text(RECIPE_FILE, dump(recipe))  # first: by it the folder is known when the command comes again
    with launch.local_cluster(recipe, store) as namespace:
        return train_on(namespace, recipe, store, checkpoints, plan, on_progress)


def train_on(
    namespace: str, recipe: Recipe, store: RunStore, checkpoints: Interval, plan: Plan, on_progress: OnProgress
) -> History:
    """Train to the end, or go on, on the one host of the Ray that this process is connected to.

    `plan`: the faults to strike with, by learner: the learner's number is the rank's. Raises what Ray Train raises,
    RuntimeError if the faults could not go on, and KeyboardInterrupt.
    """
    os.environ.setdefault(*HEALTH_S)
    store.write_text(RECIPE_FILE, dump(recipe))
    options: dict[str, Any] = {"num_cpus": JUDGE_CPUS, "max_restarts": -1}
    options |= {"name": f"held-out.{recipe.name}", "namespace": namespace}
    judge = ray.remote(HeldOutActor).options(**options).remote(recipe, str(store.root))
    spec = RankSpec(recipe, str(store.root), checkpoints, judge, len(os.sched_getaffinity(0)))
    trainer = JaxTrainer(
        train,
        train_loop_config={"spec": spec},
        jax_config=JaxConfig(use_gpu=True),  # else it does without jax.distributed
        scaling_config=ScalingConfig(
            num_workers=len(recipe.learners), resources_per_worker=dict(recipe.pools[0].resources)
        ),
        run_config=RunConfig(
            name=TRAIN_FOLDER,
            storage_path=str(store.root),
            failure_config=FailureConfig(max_failures=-1, controller_failure_limit=STARTS_FAILED),
            callbacks=[RestartCap(str(store.root))],
            checkpoint_config=CheckpointConfig(num_to_keep=recipe.durability.keep),
            worker_runtime_env={"env_vars": _environment()},
            logging_config=LoggingConfig(log_level="ERROR"),
        ),
    )
    try:
        attached = {"kind": "attached", "at": time.time(), "checkpoints": str(checkpoints)}
        LineLog(store.path(STEPS_FILE)).write(**attached)
        striker = Striker(store, list(recipe.learners), plan)
        with _followed(store, on_progress), interruptible(), striker:
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


def _environment() -> dict[str, str]:
    return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": os.environ.get("XLA_FLAGS") or CPU_FLAGS}


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
