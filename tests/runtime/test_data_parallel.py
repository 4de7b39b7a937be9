"""Conventional data-parallel training by Ray Train: the harness's numbers, and restarts of killed ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import ray

from benchmarks.harness.modes import transformed
from benchmarks.harness.seed_run import SeedRun
from learners.protocol.facts import StepFinished
from orchestrator.eventlog.reader import read_run
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.toml_text import dump
from orchestrator.runtime.data_parallel.checkpoint_interval import Interval
from orchestrator.runtime.data_parallel.history import STEPS_FILE, History, lines
from orchestrator.runtime.data_parallel.trainer import train_on
from orchestrator.store.export import of_run
from orchestrator.store.run_store import RunStore
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


def trained(given: Recipe, folder: Path, *faults: Any, checkpoint_steps: int | None = None) -> History:
    store = RunStore(folder)
    store.create()
    every = Interval(0.0, checkpoint_steps)
    return train_on(namespace(given.name), given, store, every, (faults, iter(())), lambda news: None)


def losses(folder: Path) -> dict[int, float]:
    """By step, as done last."""
    return {line["step"]: line["loss"] for line in lines(folder / STEPS_FILE) if line["kind"] == "step"}


def test_both_arms_of_a_comparison_are_trained_on_a_cluster_that_is_there(
    ray_cluster: Any, corpus: str, tmp_path: Path
) -> None:
    (tmp_path / "recipe.toml").write_text(
        dump(wanted("compared", corpus, budget={"syncer_steps": 10}, eval={"every": 5, "sequences": 8}))
    )
    address = ray.get_runtime_context().gcs_address
    words = [
        sys.executable,
        "-m",
        "orchestrator",
        "compare",
        "recipe.toml",
        "--address",
        address,
        "--out",
        "out",
        "--json",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stderr
    rows = {row["mode"]: row["seeds"][0] for row in json.loads(done.stdout)["rows"]}
    assert {mode: (row["state"], row["ok"]) for mode, row in rows.items()} == dict.fromkeys(
        ("decoupled", "data_parallel"), ("finished", True)
    )
    for mode in rows:
        assert RunStore(tmp_path / "out" / mode / "seed-0").read_json("cluster.json")["address"] == address


class AfterCheckpoint:
    """A kill that is due at the second checkpoint: by then Ray Train knows the first."""

    kind, learner, duration_s = "kill", "learner-t-1", 0.0

    def __init__(self, folder: Path) -> None:
        self._log = folder / STEPS_FILE

    def is_due(self, now_s: float, step: int) -> bool:
        return [line["kind"] for line in lines(self._log)].count("checkpoint") > 1


@pytest.fixture(scope="module")
def by_ray_train(ray_cluster: Any, corpus: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, History]:
    folder = tmp_path_factory.mktemp("data-parallel") / "run"
    return folder, trained(wanted("conventional", corpus), folder)


def test_losses_are_those_of_the_harness_within_rounding(
    by_ray_train: tuple[Path, History], corpus: str, tmp_path: Path
) -> None:
    folder, found = by_ray_train
    given = wanted("conventional", corpus)
    row = SeedRun(transformed(given, "data_parallel"), tmp_path).train()
    steps = [event.fact for event in read_run(tmp_path) if isinstance(event.fact, StepFinished)]
    assert losses(folder) == pytest.approx({fact.step: fact.loss for fact in steps}, rel=2e-5)
    assert [step for step, _, _ in found.evaluations][-1] == STEPS and found.evaluations[0][0] == 0
    assert found.evaluations[-1][2] == pytest.approx(row["eval_loss"], rel=2e-5)


def test_its_folder_says_what_was_done_and_holds_the_model(by_ray_train: tuple[Path, History]) -> None:
    folder, found = by_ray_train
    assert (found.finished, found.step, found.processed, found.restarts) == (True, STEPS, STEPS, [])
    summary = RunStore(folder).read_json("summary.json")
    assert summary["tokens"] == {"committed": STEPS * 8 * 16, "processed": STEPS * 8 * 16}
    assert 0.0 < summary["goodput_time"] <= 1.0
    assert of_run(RunStore(folder)).tensors.keys()


def test_a_killed_rank_takes_all_back_to_the_newest_checkpoint(ray_cluster: Any, corpus: str, tmp_path: Path) -> None:
    """Many checkpoints, so that it comes before the end; the losses after it are those of a run without a fault."""
    kill = AfterCheckpoint(tmp_path / "run")
    given = wanted("killed", corpus, budget={"syncer_steps": 100})
    found = trained(given, tmp_path / "run", kill, checkpoint_steps=5)
    assert found.finished and found.step == 100
    assert [fault["injected"] for fault in found.faults] == [True]
    (restart,) = found.restarts
    assert restart.resumed_at_step > 0
    assert found.processed == 100 + restart.lost_steps
    assert restart.outage_s is not None and restart.recovery_s is not None and restart.outage_s <= restart.recovery_s
    assert [line["kind"] for line in lines(tmp_path / "run" / STEPS_FILE)].count("attached") == 1
    assert found.checkpoints and found.goodput_time is not None and found.goodput_time < 1.0
    calm = SeedRun(transformed(given, "data_parallel"), tmp_path / "calm")
    assert found.evaluations[-1][2] == pytest.approx(calm.train()["eval_loss"], rel=1e-4)
