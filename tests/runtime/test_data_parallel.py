"""Conventional data-parallel training by Ray Train: the harness's numbers, and restarts of killed ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray

from benchmarks.harness.seed_run import SeedRun
from benchmarks.under_kills import ranks
from learners.protocol.facts import StepFinished
from orchestrator.eventlog.reader import read_run
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.toml_text import dump
from orchestrator.runtime.data_parallel.history import STEPS_FILE, History, history, lines
from orchestrator.runtime.data_parallel.trainer import train_on
from orchestrator.store.export import of_run
from orchestrator.store.run_store import RunStore
from tests.plain_training import plain
from tests.runtime.conftest import namespace, recipe
from tests.runtime.results import ROOT
from tests.waiting import DEADLINE_S

pytestmark = [
    pytest.mark.runtime,
    pytest.mark.full,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of Ray Data
]
STEPS = 30


def wanted(name: str, corpus: str, **sections: Any) -> Recipe:
    pools = [{"name": "t", "learners": 2, "batch_size": 4, **sections.pop("pool", {})}]
    budget = {"syncer_steps": STEPS}
    return recipe(name, corpus, **{"pools": pools, "budget": budget, "eval": {"every": 10, "sequences": 8}} | sections)


def trained(given: Recipe, folder: Path, on_news: Callable[[Any], None] = lambda news: None) -> History:
    store = RunStore(folder)
    store.create()
    return train_on(namespace(given.name), given, store, on_news)


def losses(folder: Path) -> dict[int, float]:
    """By step, as done last."""
    return {line["step"]: line["loss"] for line in lines(folder / STEPS_FILE) if line["kind"] == "step"}


@pytest.fixture(scope="module")
def compared(ray_cluster: Any, corpus: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of a comparison on a cluster that is there, and the rows that it told."""
    folder = tmp_path_factory.mktemp("compared")
    (folder / "recipe.toml").write_text(dump(wanted("compared", corpus)))
    compare = ("compare", "recipe.toml", "--address", ray.get_runtime_context().gcs_address, "--out", "out", "--json")
    command, env = [sys.executable, "-m", "orchestrator", *compare], {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    return folder / "out", {row["mode"]: row for row in json.loads(done.stdout)["rows"]}


def test_both_arms_of_a_comparison_are_trained_on_a_cluster_that_is_there(compared: Any) -> None:
    folder, rows = compared
    assert {mode: (row["state"], row["ok"]) for mode, row in rows.items()} == dict.fromkeys(
        ("decoupled", "data_parallel"), ("finished", True)
    )
    for mode in rows:
        assert RunStore(folder / mode).read_json("cluster.json")["address"] == ray.get_runtime_context().gcs_address


def test_losses_are_those_of_the_harness_within_rounding(compared: Any, corpus: str, tmp_path: Path) -> None:
    folder = compared[0] / "data_parallel"
    found = history(RunStore(folder))
    row = SeedRun(plain(wanted("compared", corpus)), tmp_path).train()
    steps = [event.fact for event in read_run(tmp_path) if isinstance(event.fact, StepFinished)]
    assert losses(folder) == pytest.approx({fact.step: fact.loss for fact in steps}, rel=2e-5)
    assert [step for step, _, _ in found.evaluations][-1] == STEPS and found.evaluations[0][0] == 0
    assert found.evaluations[-1][2] == pytest.approx(row["eval_loss"], rel=2e-5)


def test_its_folder_says_what_was_done_and_holds_the_model(compared: Any) -> None:
    store = RunStore(compared[0] / "data_parallel")
    found = history(store)
    assert (found.finished, found.step, found.processed, found.restarts) == (True, STEPS, STEPS, 0)
    summary = store.read_json("summary.json")
    assert summary["tokens"] == {"committed": STEPS * 8 * 16, "processed": STEPS * 8 * 16}
    assert 0.0 < summary["goodput_time"] <= 1.0
    assert of_run(store).tensors.keys()


class AfterCheckpoint:
    """Kills a rank at the second checkpoint: by then Ray Train knows the first."""

    def __init__(self, folder: Path) -> None:
        self._log, self._killed = folder / STEPS_FILE, False

    def __call__(self, news: Any) -> None:
        if self._killed or [line["kind"] for line in lines(self._log)].count("checkpoint") < 2:
            return
        self._killed = True
        os.kill(ranks()[-1], signal.SIGKILL)


def test_a_killed_rank_takes_all_back_to_the_newest_checkpoint(ray_cluster: Any, corpus: str, tmp_path: Path) -> None:
    """Many checkpoints, so that it comes before the end; the losses after it are those of a run without a fault."""
    given = wanted("killed", corpus, budget={"syncer_steps": 60}, durability={"every_s": 0.01})
    found = trained(given, tmp_path / "run", AfterCheckpoint(tmp_path / "run"))
    assert found.finished and found.step == 60 and found.restarts == 1
    starts = [line["step"] for line in lines(tmp_path / "run" / STEPS_FILE) if line["kind"] == "started"]
    assert starts[0] == 0 and starts[1] > 0, "from a checkpoint"
    assert [line["kind"] for line in lines(tmp_path / "run" / STEPS_FILE)].count("attached") == 1
    assert found.checkpoints and found.goodput_time is not None and found.goodput_time < 1.0
    calm = SeedRun(plain(given), tmp_path / "calm")
    assert found.evaluations[-1][2] == pytest.approx(calm.train()["eval_loss"], rel=1e-4)
