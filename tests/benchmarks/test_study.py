"""The study of a recipe: seeds in processes of their own, as run folders that every tool takes; and its modes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from benchmarks.harness.lockstep import LockStep
from benchmarks.harness.modes import transformed
from benchmarks.harness.seed_run import ROW_FILE, SeedRun
from benchmarks.harness.study import difference, study
from learners.protocol.facts import Adopted, StepFinished
from learners.training.step import make_step, schedule, step_key, transformation
from orchestrator.analysis.folder import check_run
from orchestrator.eventlog.reader import read_run
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.problems import InputError
from orchestrator.recipe.toml_text import dump
from orchestrator.replay.replayer import Replayer
from orchestrator.replay.tape import record
from orchestrator.store.export import of_run
from orchestrator.store.run_store import RunStore
from outer.protocol.facts import Committed
from outer.protocol.schedule import Budget
from tests.replay.shaken import OneProcess, Points, recipe

ROOT = Path(__file__).resolve().parents[2]
WANTED = recipe(30)
command = typer.Typer(add_completion=False)
command.command()(study)


def seeded(seed: int = 0, **changes: Any) -> Recipe:
    """Points' parameters do not depend on the seed; the learning rate does here, so that losses differ."""
    plain = WANTED.canonical() | {"seed": seed, "inner": {"lr": 0.05 + 0.01 * seed}}
    return Recipe.model_validate(plain | changes)


def trained(folder: Path, wanted: Recipe) -> dict[str, Any]:
    return SeedRun(wanted, folder).train()


@pytest.mark.parametrize("sync", [{}, {"adopt": "rebase"}, {"overlap": "strict"}], ids=str)
def test_a_seeds_folder_passes_every_check_and_is_replayed_to_the_bit(tmp_path: Path, sync: dict[str, Any]) -> None:
    wanted = recipe(30, **sync)
    row = trained(tmp_path, wanted)
    assert {verdict.name for verdict in check_run(tmp_path) if verdict.status in ("violated", "unknown")} == set()
    assert row["ok"] and row["eval_loss"] == row["evaluations"][-1][1] < row["evaluations"][0][1]
    tape, points = record(read_run(tmp_path)), Points(wanted.data, wanted.seed)
    replayer = Replayer(tape, wanted, points, OneProcess(tape, wanted, points))
    list(replayer.play())
    assert replayer.finish() == row["digest"] and replayer.tally.bit_equal is True


def test_a_slow_learner_steps_as_often_as_its_slowdown_says() -> None:
    one = LockStep(
        task=Points(WANTED.data, WANTED.seed),
        sync=WANTED.sync,
        outer_config=WANTED.outer,
        inner=WANTED.inner,
        learners={"a": 2, "b": 4, "c": 4},
        quorum=2,
        budget=Budget(tokens=None, syncer_steps=18),
        span_steps=4,
        slowdowns={"b": 2.0, "c": 1.5},
    )
    one.run()
    steps = Counter(said.writer for said in one.facts if isinstance(said.fact, StepFinished) and said.at <= 12.0)
    assert steps == {"a": 12, "b": 6, "c": 8}


def test_two_seeds_differ_and_differences_are_paired() -> None:
    rows = [{"seed": seed, "eval_loss": 2.0 + 0.1 * seed} for seed in range(4)]
    others = [{"seed": seed, "eval_loss": 1.9 + 0.1 * seed} for seed in (1, 2, 3, 7)]
    found = difference(rows, others)
    assert found is not None and found.seeds == (1, 2, 3)
    assert found.mean == pytest.approx(0.1) and found.half_width == pytest.approx(0.0, abs=1e-9)
    assert difference(rows[:1], others) is None
    one = difference(rows[1:2], others)
    assert one is not None and one.half_width is None


# ------------------------------------------------------------------ the modes


def said(folder: Path, mode: str, kind: type[Any]) -> list[Any]:
    """The facts of a kind that a run of a mode tells."""
    assert trained(folder, transformed(WANTED, mode))["ok"]
    return [event.fact for event in read_run(folder) if isinstance(event.fact, kind)]


def test_diloco_merges_the_whole_model_of_all_learners_every_round_and_all_wait_for_it(tmp_path: Path) -> None:
    commits = said(tmp_path, "diloco", Committed)
    assert [commit.syncer_step for commit in commits] == [6, 12, 18, 24, 30]
    assert {commit.fragment for commit in commits} == {0}
    for commit in commits:
        assert {(each.learner, each.step) for each in commit.participants} == {
            (name, commit.syncer_step) for name in WANTED.learners
        }
    adopted = [event.fact for event in read_run(tmp_path) if isinstance(event.fact, Adopted) and event.fact.version]
    assert adopted and all(fact.after_step == fact.version for fact in adopted), "before the next step"


def test_streaming_merges_each_fragment_of_all_and_adopts_it_tau_steps_later(tmp_path: Path) -> None:
    commits = said(tmp_path, "streaming", Committed)
    assert {commit.fragment for commit in commits} == set(range(5))
    assert all({each.step for each in commit.participants} == {commit.syncer_step} for commit in commits)
    adopted = [event.fact for event in read_run(tmp_path) if isinstance(event.fact, Adopted) and event.fact.version]
    assert adopted and {fact.after_step - fact.version for fact in adopted} == {2}


def test_a_mode_that_there_is_not_is_told_the_nearest() -> None:
    with pytest.raises(InputError, match=r"did you mean diloco\?"):
        transformed(WANTED, "dilocco")


@pytest.mark.parametrize(("mode", "batch"), [("data_parallel", 8), ("single", 2)])
def test_a_learner_without_outer_optimizer_is_plain_training_to_the_bit(tmp_path: Path, mode: str, batch: int) -> None:
    assert trained(tmp_path, transformed(WANTED, mode))["ok"]
    task = Points(WANTED.data, WANTED.seed)
    params = jax.jit(task.init)(jax.random.key(WANTED.seed))
    moments, step = transformation(task, WANTED.inner).init(params), make_step(task, WANTED.inner)
    for number in range(30):
        start, scale = number * batch, np.float32(schedule(WANTED.inner, number / 30))
        params, moments, *_ = step(params, moments, task.batch(start, batch), step_key(WANTED.seed, start), scale)
    found = of_run(RunStore(tmp_path)).tensors
    assert found.keys() == params.keys()
    for name, value in params.items():
        np.testing.assert_array_equal(found[name].reshape(value.shape), value)


def test_one_learner_with_the_outer_optimizer_steps_on_the_batch_of_all(tmp_path: Path) -> None:
    made = transformed(WANTED, "one_outer")
    assert (made.outer, made.sync.fragments, made.quorum) == (WANTED.outer, 5, 1)
    trained(tmp_path, made)
    steps = [event.fact for event in read_run(tmp_path) if isinstance(event.fact, StepFinished)]
    assert {fact.tokens for fact in steps} == {4 * 8}


def test_one_learner_alone_has_its_share_of_the_tokens_and_one_for_all_the_pace_of_the_slowest() -> None:
    given = Recipe.model_validate(WANTED.canonical() | {"budget": {"tokens": 8000}})
    budgets = {mode: transformed(given, mode).budget.tokens for mode in ("single", "one_outer", "data_parallel")}
    assert budgets == {"single": 8000 * 2 // 8, "one_outer": 8000, "data_parallel": 8000}
    pools = [{"name": "a", "batch_size": 2}, {"name": "b", "batch_size": 2, "slowdown": 2.5}]
    given = Recipe.model_validate(WANTED.canonical() | {"pools": pools})
    assert transformed(given, "data_parallel").pools[0].slowdown == 2.5


# ------------------------------------------------------------------ the command


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "points.toml"
    path.write_text(dump(seeded()))
    return path


def test_the_command_trains_seeds_once_and_compares(file: Path, tmp_path: Path) -> None:
    def said(*words: str) -> Any:
        done = subprocess.run(
            [sys.executable, "benchmarks/harness/study.py", str(file), "--json", *words],
            cwd=ROOT,
            env=os.environ,
            capture_output=True,
        )
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)

    assert len(said("--seeds", "1", "--out", str(tmp_path / "a"), "--set", "seed=3")["seeds"]) == 1
    written = (tmp_path / "a/seed-3" / ROW_FILE).stat().st_mtime_ns
    again = said("--seeds", "2", "--out", str(tmp_path / "a"), "--against", str(tmp_path / "a"), "--set", "seed=3")
    assert (tmp_path / "a/seed-3" / ROW_FILE).stat().st_mtime_ns == written, "it is finished"
    assert [row["seed"] for row in again["seeds"]] == [3, 4]
    assert (again["against"]["seeds"], again["against"]["each"]) == ([3], [0.0])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--seeds", "0"], "--seeds"),
        (["--seeds", "x"], "--seeds"),
        (["--against", "nowhere"], "holds no finished seed"),
        (["--set", "pools.0.devices=2", "--set", "pools.0.batch_size=4"], "the one device of a study"),
    ],
)
def test_what_cannot_be_studied_is_refused(file: Path, tmp_path: Path, words: list[str], said: str) -> None:
    done = CliRunner().invoke(command, [str(file), "--out", str(tmp_path / "out"), *words])
    assert done.exit_code == 2 and said in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [("notes", "mine", "holds no study"), ("config.toml", dump(seeded(name="other")), "another recipe")],
)
def test_a_folder_of_something_else_is_refused(file: Path, tmp_path: Path, name: str, content: str, said: str) -> None:
    (tmp_path / "out/seed-0").mkdir(parents=True)
    (tmp_path / "out/seed-0" / name).write_text(content)
    done = CliRunner().invoke(command, [str(file), "--out", str(tmp_path / "out")])
    assert done.exit_code == 2 and said in done.stderr
