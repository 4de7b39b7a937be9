"""The examples keep their word: each is a sound task, and learns what its page says in a few rounds."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.harness.lockstep import LockStep
from benchmarks.harness.seed_run import SeedRun
from learners.training.evaluator import Evaluator
from orchestrator.cli.app import build
from orchestrator.recipe.tasks import build_task
from orchestrator.recipe.toml_text import load, validate
from orchestrator.recipe.validation import resolve
from outer.protocol.syncer import Budget
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path.parent.name for path in (ROOT / "examples").glob("*/recipe.toml"))


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_a_sound_task_with_a_valid_recipe(name: str) -> None:
    smaller = ["--set", "model.layers=1"] if name in ("decoder", "digits", "experts", "regions") else []
    command = ["check-task", f"examples/{name}/recipe.toml", *smaller]
    result = CliRunner().invoke(build(), command, catch_exceptions=False)
    assert result.exit_code == 0, result.stdout
    assert "13 passed, 0 to look at, 0 failed" in result.stdout
    recipe = load(f"examples/{name}/recipe.toml")
    validate(recipe)
    assert resolve(recipe).sync.fragments == recipe.sync.fragments


@pytest.mark.parametrize(
    ("name", "tokens", "start", "end"),
    [
        ("batchnorm", 8_000, 1.9, 1.2),  # guessing: 1.79
        ("rules", 60_000, 0.72, 0.35),
        ("shapes", 8_000, 1.9, 1.5),
        ("spirals", 30_000, 0.72, 0.35),  # guessing: 0.69
    ],
)
def test_an_example_learns_in_a_few_rounds(name: str, tokens: int, start: float, end: float) -> None:
    recipe = load(f"examples/{name}/recipe.toml")
    task = build_task(recipe)
    shell = LockStep(
        task=task,
        sync=recipe.sync,
        outer_config=recipe.outer,
        inner=recipe.inner,
        learners={learner: pool.batch_size for learner, pool in recipe.learners.items()},
        quorum=2,
        budget=Budget(tokens=tokens, syncer_steps=None),
        seed=recipe.seed,
    )
    evaluator = Evaluator(task, shell.fragments, 256, batch_size=256)
    before = evaluator.loss(shell.parameters.thetas)
    after = evaluator.loss(shell.run().thetas)
    assert end < before < start
    assert after < end


def test_a_run_by_rules_of_ones_own_passes_the_checks_and_replays_to_the_bit(tmp_path: Path) -> None:
    run, rules = str(tmp_path / "seed-0"), "examples.rules.rules"
    short = ["budget.tokens=10_000", "eval.every=0"]
    assert SeedRun(resolve(load(Path("examples/rules/recipe.toml"), short)), Path(run)).train()["ok"]
    replay = ["replay", run, "--task", "examples.spirals.task:Spirals", "--rule", f"{rules}:geometric_median"]
    refused = CliRunner().invoke(build(), replay)
    assert refused.exit_code == 2 and f"add --rule {rules}:heavy_ball" in refused.stderr
    replay += ["--rule", f"{rules}:heavy_ball", "--json"]
    again = CliRunner().invoke(build(), replay, catch_exceptions=False)
    assert again.exit_code == 0 and json.loads(again.stdout)["bit_equal"] is True, again.stdout


def test_a_region_joins_leaves_and_joins_again() -> None:
    demo = ["bash", "examples/regions/demo.sh"]
    said = subprocess.run(
        demo,
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert said.returncode == 0 and re.search(r"checks +(\d+) of \1 passed", said.stdout), said.stderr[-2000:]
    assert said.stderr.count("is part of the run") == 2 and "region eu has left" in said.stderr


def test_every_cell_of_the_notebook_runs_in_a_thread_that_has_a_loop_as_a_kernels_has(tmp_path: Path) -> None:
    cells = json.loads((ROOT / "examples" / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    within = f"import asyncio\nasync def cells():\n    exec({code!r}, globals())\nasyncio.run(cells())\n"
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    ends = (
        "assert run.summary['ok'] and len(verdicts) > 20\nprint(run.table('SELECT learner, detail FROM LearnerLost'))"
    )
    said = subprocess.run(
        [sys.executable, "-c", within + ends],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert said.returncode == 0 and "learner-local-1" in said.stdout, said.stderr[-2000:]
