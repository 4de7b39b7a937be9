"""A data-parallel run: its log adds up, and how it ends."""

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
from orchestrator.store.readers import RECIPE_FILE
from orchestrator.store.run_store import RunStore
from tests.replay.shaken import recipe


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    found = RunStore(tmp_path)
    log = LineLog(tmp_path / STEPS_FILE)
    for step in range(1, 7):
        log.write(kind="step", step=step, at=100.0 + step, seconds=1.0, loss=6.0 - step)
    return found


def test_time_is_productive_or_blocked_and_a_line_that_was_cut_is_none(store: RunStore, tmp_path: Path) -> None:
    empty = history(RunStore(tmp_path / "not-begun"))
    assert (empty.wall_s, empty.goodput_time, empty.finished) == (None, None, False)
    log, held_out = LineLog(store.path(STEPS_FILE)), LineLog(store.path(EVALUATIONS_FILE))
    log.write(kind="step", step=7, at=117.0, seconds=11.0, loss=1.0)  # all wait for one rank
    with store.path(STEPS_FILE).open("a") as file:
        file.write('{"kind": "step", "step": 8, "at"\n')
    log.write(kind="finished", step=7, at=117.0)
    for step, at, loss in ((0, 99.0, 6.0), (4, 104.0, 2.0), (6, 106.0, float("nan")), (7, 117.0, 1.0)):
        held_out.write(kind="evaluated", step=step, at=at, loss=loss)
    found = history(store)
    assert (found.finished, found.step, found.wall_s) == (True, 7, 17.0)
    assert (found.productive_s, found.blocked_s) == (7.5, 9.5)
    assert found.evaluations == [(0, 0.0, 6.0), (4, 4.0, 2.0), (7, 17.0, 1.0)], "without those that are not finite"
    assert "NaN" not in store.path(EVALUATIONS_FILE).read_text()
    told = found.summary(tokens_per_step=64)
    assert told["tokens"] == {"committed": 7 * 64, "processed": 7 * 64} and told["goodput_time"] == 7.5 / 17
    json.dumps(told, allow_nan=False)


def test_a_run_whose_last_evaluation_failed_says_so_and_is_not_ok(store: RunStore) -> None:
    LineLog(store.path(EVALUATIONS_FILE)).write(kind="evaluated", step=4, at=104.0, loss=6.0)
    log = LineLog(store.path(STEPS_FILE))
    log.write(kind="not_evaluated", step=4, at=104.0, reason="ValueError: first try")
    log.write(kind="not_evaluated", step=6, at=106.0, reason="ValueError: no memory")
    log.write(kind="finished", step=6, at=106.0)
    told = history(store).summary(64)
    assert (told["ok"], told["state"], told["eval_loss"]) == (False, "finished", None)
    assert "ValueError: no memory" in told["reason"]
    assert [each["step"] for each in told["not_evaluated"]] == [6]


# ------------------------------------------------------------------ its end

GIVEN = recipe(20)


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
    store.path("of-a-run-that-was-interrupted").touch()
    with pytest.raises(KeyboardInterrupt):
        trainer.run(GIVEN, store, lambda news: None)
    assert seen == [True, True] and [each.name for each in store.root.iterdir()] == [RECIPE_FILE], "it begins anew"
    log = LineLog(store.path(STEPS_FILE))
    log.write(kind="step", step=1, at=2.0, seconds=1.0, loss=1.0)
    log.write(kind="finished", step=1, at=3.0)
    assert trainer.run(GIVEN, store, lambda news: None).finished
    assert store.read_json("summary.json")["state"] == "finished"
