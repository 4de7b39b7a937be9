"""A data-parallel run: its log adds up, a plan's faults strike its ranks, errors again and again end it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator.__main__ import faults
from orchestrator.recipe.config import ChaosConfig, Recipe
from orchestrator.runtime import launch
from orchestrator.runtime.data_parallel import trainer
from orchestrator.runtime.data_parallel.checkpoint_interval import Interval, interval
from orchestrator.runtime.data_parallel.history import (
    EVALUATIONS_FILE,
    FAULTS_FILE,
    PROGRESS_FILE,
    RANKS,
    STEPS_FILE,
    LineLog,
    history,
    lines,
)
from orchestrator.runtime.data_parallel.striking import Striker
from orchestrator.runtime.data_parallel.trainer import RESTARTS, NoProgress, RestartCap
from orchestrator.store.readers import RECIPE_FILE
from orchestrator.store.run_store import RunStore
from tests.replay.shaken import recipe
from tests.waiting import DEADLINE_S, until


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    found = RunStore(tmp_path)
    log = LineLog(tmp_path / STEPS_FILE)
    log.write(kind="started", step=0, at=100.0)
    for step in range(1, 7):
        log.write(kind="step", step=step, at=100.0 + step, seconds=1.0, loss=6.0 - step)
        if step == 4:
            log.write(kind="checkpoint", step=4, at=104.0, seconds=0.1)
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
    (restart,) = found.restarts
    assert (restart.lost_steps, restart.resumed_at_step) == (2, 4)
    assert (restart.outage_s, restart.recovery_s) == (13.0, 15.0), "until a step, and until one that is new"
    assert (found.finished, found.step, found.processed) == (True, 8, 10)
    assert (found.wall_s, found.productive_s) == (22.0, 8.0)
    assert found.evaluations == [(0, 0.0, 6.0), (6, 20.0, 3.0), (8, 22.0, 2.0)], "the newest of a step"
    told = found.summary(tokens_per_step=64)
    assert told["tokens"] == {"committed": 8 * 64, "processed": 10 * 64} and told["goodput_time"] == 8 / 22
    json.dumps(told, allow_nan=False)


def test_time_is_productive_blocked_or_away(store: RunStore, tmp_path: Path) -> None:
    empty = history(RunStore(tmp_path / "not-begun"))
    assert (empty.wall_s, empty.goodput_time, empty.finished) == (None, None, False)
    log, held_out = LineLog(store.path(STEPS_FILE)), LineLog(store.path(EVALUATIONS_FILE))
    log.write(kind="step", step=7, at=117.0, seconds=11.0, loss=1.0)  # all wait for a frozen rank
    found = history(store)
    assert (found.wall_s, found.productive_s, found.blocked_s) == (17.0, 7.5, 9.5)
    log.write(kind="checkpoint", step=6, at=117.5, seconds=0.1)
    log.write(kind="attached", at=1117.0)  # a thousand seconds without any command
    log.write(kind="started", step=4, at=1120.0)  # the newest checkpoint is damaged: from the one before
    assert history(store).step == 4
    for step in range(5, 9):
        log.write(kind="step", step=step, at=1116.0 + step, seconds=1.0, loss=1.0)
    for step, at, loss in ((4, 104.0, 2.0), (6, 106.0, float("nan")), (8, 1124.0, 2.0)):
        held_out.write(kind="evaluated", step=step, at=at, loss=loss)
    found = history(store)
    (restart,) = found.restarts
    assert (found.wall_s, found.away_s, restart.lost_steps) == (24.5, 999.5, 3)
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
    assert [each["step"] for each in told["not_evaluated"]] == [6]


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield started
    started.kill()
    started.wait()


def test_a_plan_strikes_the_rank_of_its_learner_and_no_process_that_took_its_number(
    store: RunStore, process: subprocess.Popen[bytes]
) -> None:
    store.write_json(PROGRESS_FILE, {"step": 6, "steps": 8})
    store.write_json(f"{RANKS}/0.json", {"pid": process.pid, "at": 1.0})  # before this process began
    store.write_json(f"{RANKS}/1.json", {"pid": process.pid, "at": time.time() + 1.0})
    planned = [
        {"kind": "kill", "learner": "learner-a-0", "at_step": 5},
        {"kind": "corrupt", "learner": "learner-a-1", "at_step": 5},
        {"kind": "kill", "learner": "learner-a-1", "at_step": 6},
        {"kind": "kill", "learner": "learner-a-1", "at_step": 99},
    ]
    names = ["learner-a-0", "learner-a-1"]
    plan = faults(ChaosConfig.model_validate({"faults": planned}), names, 0)
    with Striker(store, names, plan):
        until(lambda: len(list(lines(store.path(FAULTS_FILE)))) == 3, "three faults are told", pause_s=0.01)
    told = list(lines(store.path(FAULTS_FILE)))
    assert [(line["kind"], line["injected"]) for line in told] == [("kill", False), ("corrupt", False), ("kill", True)]
    assert process.wait(DEADLINE_S) < 0 and not psutil.pid_exists(process.pid)
    planned.append({"kind": "kill", "learner": "learner-a-1", "at_step": 3})
    with Striker(store, names, faults(ChaosConfig.model_validate({"faults": planned}), names, 0)):
        until(lambda: len(list(lines(store.path(FAULTS_FILE)))) == 4, "what was done is not done again", pause_s=0.01)
    *_, last = told = list(lines(store.path(FAULTS_FILE)))
    assert [line["number"] for line in told] == [0, 1, 2, 4]
    assert (last["injected"], last["reason"]) == (False, "it is not running")


def test_workers_are_where_the_pools_want_their_learners() -> None:
    pools = [{"name": "a", "learners": 2}, {"name": "b", "region": "eu"}]
    given = Recipe.model_validate(recipe(30).canonical() | {"pools": pools})
    labels = [{}, {}, {"region": "eu"}]
    assert (trainer.scaling(given, local=False).label_selector, trainer.scaling(given, local=True).label_selector) == (
        labels,
        None,
    )
    assert trainer.scaling(given, local=False).num_workers == 3


def test_faults_that_cannot_go_on_fail_the_run(store: RunStore) -> None:
    failed = threading.Event()

    def random() -> Iterator[object]:
        failed.set()
        raise ValueError("no more")
        yield

    with pytest.raises(RuntimeError, match="no more"), Striker(store, [], ((), random())):
        assert failed.wait(DEADLINE_S)


# ------------------------------------------------------------------ how often checkpoints are taken


def chosen(**chaos: Any) -> Interval:
    given = ChaosConfig.model_validate(chaos)
    return interval(given, faults(given, ["learner-a-0"], 0)[0], 600.0)


def kills(key: str, *values: float) -> list[dict[str, Any]]:
    return [{"kind": "kill", "learner": "any", key: value} for value in values]


def test_checkpoints_come_often_enough_for_the_plans_kills() -> None:
    frozen = [{"kind": "freeze", "learner": "any", "at_s": 3.0}]
    assert chosen() == chosen(faults=frozen) == chosen(mtbf_s=8.0, kinds=["freeze"]) == Interval(600.0)
    assert chosen(mtbf_s=50.0) == Interval(20.0), "half of them freeze: sqrt(2 x 2 s x 100 s), by Young and Daly"
    assert chosen(mtbf_s=20.0, kinds=["kill"]).seconds == 5.0, "at most a quarter of their mean gap"
    assert chosen(faults=kills("at_s", 10.0, 60.0)).seconds == 7.5
    by_step = chosen(faults=kills("at_step", 40, 80))
    assert by_step == Interval(600.0, 10)
    assert by_step.in_steps(0.5) == 10 and by_step.in_steps(100.0) == 6
    assert (str(Interval(0.0)), str(by_step)) == ("none", "600 s or 10 steps")


# ------------------------------------------------------------------ its end

ERRORS: dict[int, BaseException] = {1: ValueError("Traceback:\n  the batch is empty")}
GIVEN = recipe(20)


def test_errors_without_a_new_step_end_the_run_with_the_newest_one(tmp_path: Path) -> None:
    cap, log = RestartCap(str(tmp_path)), LineLog(tmp_path / STEPS_FILE)
    for _ in range(RESTARTS * 3):  # restarts that the plan causes do not count
        LineLog(tmp_path / FAULTS_FILE).write(kind="kill", injected=True)
        cap.after_exception(None, ERRORS)
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
        trainer.run(GIVEN, store, Interval(0.0), ((), iter(())), lambda news: None)
    assert seen == [True]
    log = LineLog(store.path(STEPS_FILE))
    log.write(kind="step", step=1, at=2.0, seconds=1.0, loss=1.0)
    log.write(kind="finished", step=1, at=3.0)
    assert trainer.run(GIVEN, store, Interval(0.0), ((), iter(())), lambda news: None).finished
    assert store.read_json("summary.json")["state"] == "finished"
