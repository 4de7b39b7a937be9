"""A data-parallel run's log adds up, and faults of a plan strike its ranks from outside."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from orchestrator.__main__ import faults
from orchestrator.recipe.config import ChaosConfig
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
from orchestrator.store.run_store import RunStore
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


def test_time_in_which_no_command_ran_does_not_count(store: RunStore) -> None:
    log = LineLog(store.path(STEPS_FILE))
    log.write(kind="attached", at=1106.0)  # a thousand seconds later
    log.write(kind="started", step=4, at=1109.0)
    for step in range(5, 9):
        log.write(kind="step", step=step, at=1106.0 + step, seconds=1.0, loss=1.0)
    held_out = LineLog(store.path(EVALUATIONS_FILE))
    for step, at in ((4, 104.0), (8, 1114.0)):
        held_out.write(kind="evaluated", step=step, at=at, loss=2.0)
    found = history(store)
    (restart,) = found.restarts
    assert (found.wall_s, found.away_s, restart.outage_s, restart.recovery_s) == (14.0, 1000.0, 5.0, 7.0)
    assert found.evaluations == [(4, 4.0, 2.0), (8, 14.0, 2.0)]


def test_what_all_wait_for_a_frozen_rank_is_blocked(store: RunStore) -> None:
    LineLog(store.path(STEPS_FILE)).write(kind="step", step=7, at=117.0, seconds=11.0, loss=1.0)
    found = history(store)
    assert (found.wall_s, found.productive_s, found.blocked_s) == (17.0, 7.5, 9.5)


def test_a_restart_from_the_checkpoint_before_the_newest_loses_all_steps_after_it(store: RunStore) -> None:
    log = LineLog(store.path(STEPS_FILE))
    log.write(kind="checkpoint", step=6, at=106.5, seconds=0.1)
    log.write(kind="started", step=4, at=110.0)
    found = history(store)
    assert (found.step, found.productive_s) == (4, 4.0)


def test_losses_that_are_not_finite_are_null(store: RunStore) -> None:
    held_out = LineLog(store.path(EVALUATIONS_FILE))
    held_out.write(kind="evaluated", step=0, at=100.0, loss=6.0)
    held_out.write(kind="evaluated", step=6, at=106.0, loss=float("nan"))
    found = history(store)
    assert found.evaluations == [(0, 0.0, 6.0)]
    assert found.summary(64)["eval_loss"] is None
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


def test_a_run_that_has_not_begun_has_no_time(tmp_path: Path) -> None:
    found = history(RunStore(tmp_path))
    assert (found.wall_s, found.goodput_time, found.finished) == (None, None, False)


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
        deadline = time.monotonic() + DEADLINE_S
        while len(told := list(lines(store.path(FAULTS_FILE)))) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert [(line["kind"], line["injected"]) for line in told] == [("kill", False), ("corrupt", False), ("kill", True)]
    assert process.wait(DEADLINE_S) < 0 and not psutil.pid_exists(process.pid)


def test_a_fault_that_was_done_is_not_done_again_and_one_that_was_passed_over_is(store: RunStore) -> None:
    store.write_json(PROGRESS_FILE, {"step": 6, "steps": 8})
    planned = [{"kind": "kill", "learner": "learner-a-0", "at_step": step} for step in (5, 3)]
    LineLog(store.path(FAULTS_FILE)).write(number=1, kind="kill", injected=True)
    with Striker(store, ["learner-a-0"], faults(ChaosConfig.model_validate({"faults": planned}), ["learner-a-0"], 0)):
        until(lambda: len(list(lines(store.path(FAULTS_FILE)))) == 2, "the other fault is told")
    assert [line["number"] for line in lines(store.path(FAULTS_FILE))] == [1, 0]


def test_faults_that_cannot_go_on_fail_the_run(store: RunStore) -> None:
    failed = threading.Event()

    def random() -> Iterator[object]:
        failed.set()
        raise ValueError("no more")
        yield

    with pytest.raises(RuntimeError, match="no more"), Striker(store, [], ((), random())):
        assert failed.wait(DEADLINE_S)
