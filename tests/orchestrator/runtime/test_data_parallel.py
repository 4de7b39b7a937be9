"""A data-parallel run: its log adds up, and errors again and again end it."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.recipe.config import Recipe
from orchestrator.runtime import launch
from orchestrator.runtime.data_parallel import trainer
from orchestrator.runtime.data_parallel.history import (
    EVALUATIONS_FILE,
    STEPS_FILE,
    LineLog,
    history,
)
from orchestrator.runtime.data_parallel.trainer import RESTARTS, NoProgress, RestartCap
from orchestrator.store.readers import RECIPE_FILE
from orchestrator.store.run_store import RunStore
from tests.replay.shaken import recipe


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    found = RunStore(tmp_path)
    log = LineLog(tmp_path / STEPS_FILE)
    log.write(kind="started", step=0, at=100.0)
    for step in range(1, 7):
        log.write(kind="step", step=step, at=100.0 + step, seconds=1.0, loss=6.0 - step)
        if step == 4:
            log.write(kind="checkpoint", step=4, at=104.0)
    return found


def test_steps_after_the_checkpoint_of_a_restart_are_lost_and_done_again(store: RunStore) -> None:
    log = LineLog(store.path(STEPS_FILE))
    with store.path(STEPS_FILE).open("a") as file:
        file.write('{"kind": "step", "step": 7, "at"\n')  # cut by a kill
    log.write(kind="started", step=4, at=116.0)
    for step in range(5, 9):
        log.write(kind="step", step=step, at=114.0 + step, seconds=1.0, loss=6.0 - step)
    log.write(kind="finished", step=8, at=122.0)
    held_out = LineLog(store.path(EVALUATIONS_FILE))
    for step, at, loss in ((0, 99.0, 6.0), (6, 106.0, 9.0), (6, 120.0, 3.0), (8, 122.0, 2.0)):
        held_out.write(kind="evaluated", step=step, at=at, loss=loss)
    found = history(store)
    assert (found.finished, found.step, found.processed, found.restarts) == (True, 8, 10, 1)
    assert (found.wall_s, found.productive_s) == (22.0, 8.0)
    assert found.evaluations == [(0, 0.0, 6.0), (6, 20.0, 3.0), (8, 22.0, 2.0)], "the newest of a step"
    told = found.summary(tokens_per_step=64)
    assert told["tokens"] == {"committed": 8 * 64, "processed": 10 * 64} and told["goodput_time"] == 8 / 22
    json.dumps(told, allow_nan=False)


def test_time_is_productive_or_not_or_away(store: RunStore, tmp_path: Path) -> None:
    empty = history(RunStore(tmp_path / "not-begun"))
    assert (empty.wall_s, empty.goodput_time, empty.finished) == (None, None, False)
    log, held_out = LineLog(store.path(STEPS_FILE)), LineLog(store.path(EVALUATIONS_FILE))
    log.write(kind="step", step=7, at=117.0, seconds=11.0, loss=1.0)  # all wait for a frozen rank
    found = history(store)
    assert (found.wall_s, found.productive_s) == (17.0, 7.5)
    log.write(kind="checkpoint", step=6, at=117.5)
    log.write(kind="attached", at=1117.0)  # a thousand seconds without any command
    log.write(kind="started", step=4, at=1120.0)  # the newest checkpoint is damaged: from the one before
    assert history(store).step == 4
    for step in range(5, 9):
        log.write(kind="step", step=step, at=1116.0 + step, seconds=1.0, loss=1.0)
    for step, at, loss in ((4, 104.0, 2.0), (6, 106.0, float("nan")), (8, 1124.0, 2.0)):
        held_out.write(kind="evaluated", step=step, at=at, loss=loss)
    found = history(store)
    assert (found.wall_s, found.away_s, found.processed) == (24.5, 999.5, 11)
    assert found.evaluations == [(4, 4.0, 2.0), (8, 24.5, 2.0)], "without those that are not finite"
    assert "NaN" not in store.path(EVALUATIONS_FILE).read_text()


def test_a_run_whose_last_evaluation_failed_says_so_and_is_not_ok(store: RunStore) -> None:
    LineLog(store.path(EVALUATIONS_FILE)).write(kind="evaluated", step=4, at=104.0, loss=6.0)
    log = LineLog(store.path(STEPS_FILE))
    log.write(kind="not_evaluated", step=4, at=104.0, reason="ValueError: first try")
    log.write(kind="not_evaluated", step=6, at=106.0, reason="ValueError: no memory")
    log.write(kind="finished", step=6, at=106.0)
    told = history(store).summary(64)
    assert (told["ok"], told["state"], told["eval_loss"]) == (False, "finished", None)
    assert "ValueError: no memory" in told["reason"]


def test_workers_are_where_the_pools_want_their_learners() -> None:
    pools = [{"name": "a", "learners": 2}, {"name": "b", "region": "eu"}]
    given = Recipe.model_validate(recipe(30).canonical() | {"pools": pools})
    labels = [{}, {}, {"region": "eu"}]
    assert (trainer.scaling(given, local=False).label_selector, trainer.scaling(given, local=True).label_selector) == (
        labels,
        None,
    )
    assert trainer.scaling(given, local=False).num_workers == 3


# ------------------------------------------------------------------ its end

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
        trainer.run(GIVEN, store, lambda news: None)
    assert seen == [True]
    log = LineLog(store.path(STEPS_FILE))
    log.write(kind="step", step=1, at=2.0, seconds=1.0, loss=1.0)
    log.write(kind="finished", step=1, at=3.0)
    assert trainer.run(GIVEN, store, lambda news: None).finished
    assert store.read_json("summary.json")["state"] == "finished"
