"""A data-parallel run ends when errors come again and again, and Ctrl-C interrupts it."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.recipe.config import Recipe
from orchestrator.runtime import launch
from orchestrator.runtime.data_parallel import trainer
from orchestrator.runtime.data_parallel.checkpoint_interval import Interval
from orchestrator.runtime.data_parallel.history import FAULTS_FILE, STEPS_FILE, LineLog
from orchestrator.runtime.data_parallel.trainer import RESTARTS, NoProgress, RestartCap
from orchestrator.store.readers import RECIPE_FILE
from orchestrator.store.run_store import RunStore
from tests.replay.shaken import recipe

ERRORS: dict[int, BaseException] = {1: ValueError("Traceback:\n  the batch is empty")}
GIVEN = recipe(20)


def test_errors_without_a_new_step_end_the_run_with_the_newest_one(tmp_path: Path) -> None:
    cap, log = RestartCap(str(tmp_path)), LineLog(tmp_path / STEPS_FILE)
    for step in (5, 6):
        log.write(kind="step", step=step, at=1.0, seconds=1.0)
        cap.after_exception(None, ERRORS)
    for _ in range(RESTARTS - 1):
        log.write(kind="step", step=6, at=1.0, seconds=1.0)  # done again: not new
        cap.after_exception(None, ERRORS)
    with pytest.raises(NoProgress, match=r"after step 6; rank 1, .*\n.*ValueError: Traceback:\n  the batch is empty"):
        cap.after_exception(None, ERRORS)


def test_restarts_that_the_plan_causes_do_not_count(tmp_path: Path) -> None:
    cap = RestartCap(str(tmp_path))
    for _ in range(RESTARTS * 3):
        LineLog(tmp_path / FAULTS_FILE).write(kind="kill", injected=True)
        cap.after_exception(None, ERRORS)
    for _ in range(RESTARTS):
        cap.after_exception(None, ERRORS)
    with pytest.raises(NoProgress):
        cap.after_exception(None, ERRORS)


def test_an_interrupt_is_one_although_ray_train_makes_it_an_exit_with_code_0() -> None:
    def leave(number: int, frame: object) -> None:
        raise SystemExit(0)

    @trainer.interruptible()
    def fit() -> None:
        signal.signal(signal.SIGINT, leave)
        signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        fit()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_run_writes_its_recipe_before_anything_and_its_summary_when_that_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, seen = RunStore(tmp_path / "run"), list[Any]()

    def cluster(recipe: Recipe, store: RunStore) -> Any:
        seen.append(store.path(RECIPE_FILE).exists())
        raise KeyboardInterrupt

    monkeypatch.setattr(launch, "local_cluster", cluster)
    with pytest.raises(KeyboardInterrupt):
        trainer.run(GIVEN, store, Interval(0.0), ((), iter(())), lambda news: None)
    assert seen == [True]
    log = LineLog(store.path(STEPS_FILE))
    log.write(kind="step", step=1, at=2.0, seconds=1.0, loss=1.0)
    log.write(kind="finished", step=1, at=3.0)
    assert trainer.run(GIVEN, store, Interval(0.0), ((), iter(())), lambda news: None).finished
    assert store.read_json("summary.json")["state"] == "finished"
