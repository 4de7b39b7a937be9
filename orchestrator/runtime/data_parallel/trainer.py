"""Conventional data-parallel training of a recipe by Ray Train's JaxTrainer, on a local Ray.

As many workers as the recipe has learners, each with their resources; jax.distributed runs on CPUs too. When a worker
dies, so does the run; one that did not come to its end begins anew.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.train import LoggingConfig, RunConfig, ScalingConfig
from ray.train.v2.jax import JaxTrainer
from ray.train.v2.jax.config import JaxConfig

from learners.training.devices.device import fit
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.tasks import build_task
from orchestrator.recipe.toml_text import dump
from orchestrator.runtime import launch
from orchestrator.runtime.data_parallel.history import (
    EVALUATIONS_FILE,
    PROGRESS_FILE,
    History,
    LineLog,
    history,
)
from orchestrator.runtime.data_parallel.rank import RankSpec, batch_size, train
from orchestrator.store.readers import RECIPE_FILE, object_of
from orchestrator.store.run_store import RunStore
from outer.background import tell, thread

SUMMARY_FILE = "summary.json"
TRAIN_FOLDER = "train"  # Ray Train's own
JUDGE_CPUS = 0.5
POLL_S = 0.5
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


def run(recipe: Recipe, store: RunStore, on_progress: OnProgress) -> History:
    """`train_on`, on a local Ray that is started for it; a run that has finished is only read."""
    if (found := history(store)).finished:
        if not store.path(SUMMARY_FILE).exists():  # ended in between
            _write_summary(recipe, store, found)
        return found
    if not store.empty:
        shutil.rmtree(store.root)
    store.create()
    store.write_text(RECIPE_FILE, dump(recipe))  # first: by it the folder is known when the command comes again
    with launch.local_cluster(recipe, store) as namespace:
        return train_on(namespace, recipe, store, on_progress)


def train_on(namespace: str, recipe: Recipe, store: RunStore, on_progress: OnProgress) -> History:
    """Train to the end, on the one host of the Ray that this process is connected to.

    Raises what Ray Train raises, and KeyboardInterrupt.
    """
    store.write_text(RECIPE_FILE, dump(recipe))
    options: dict[str, Any] = {"num_cpus": JUDGE_CPUS, "max_restarts": -1}
    options |= {"name": f"held-out.{recipe.name}", "namespace": namespace}
    judge = ray.remote(HeldOutActor).options(**options).remote(recipe, str(store.root))
    spec = RankSpec(recipe, str(store.root), judge, len(os.sched_getaffinity(0)))
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
            worker_runtime_env={"env_vars": _environment()},
            logging_config=LoggingConfig(log_level="ERROR"),
        ),
    )
    try:
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
