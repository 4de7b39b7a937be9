"""`diloco evaluate`: what the log said of a run, again and of other sets."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.seed_run import SeedRun
from learners.training import weights
from learners.training.tree import deal
from orchestrator.eventlog.facts import Evaluated
from orchestrator.eventlog.reader import read_run
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.tasks import build_task
from orchestrator.recipe.toml_text import dump
from orchestrator.store.readers import recipe_of
from orchestrator.store.run_store import RunStore
from outer.journal.object_store import Folder
from tests.orchestrator import taking
from tests.orchestrator.calling import invoke


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run on letters."""
    place = tmp_path_factory.mktemp("run")
    for number in range(4):
        (place / "text").mkdir(exist_ok=True)
        (place / f"text/{number}.txt").write_text("abcd" * 200)
    (place / "strange").mkdir()
    (place / "strange/one.txt").write_text("zyxw" * 200)
    recipe = Recipe.model_validate(
        {
            "name": "letters",
            "model": {"layers": 1, "width": 8, "heads": 2},
            "data": {"path": str(place / "text"), "sequence_length": 8},
            "inner": {"lr": 0.02},
            "sync": {"P": 4, "H": 4},
            "pools": [{"name": "a", "batch_size": 4}],
            "budget": {"syncer_steps": 40},
            "eval": {"every": 20, "sequences": 40, "sets": [{"name": "strange", "path": str(place / "strange")}]},
        }
    )
    SeedRun(recipe, place / "seed").train()
    (place / "recipe.toml").write_text(dump(recipe))
    return place


def told(*words: str) -> list[dict[str, Any]]:
    done = invoke("evaluate", *words, "--json")
    assert done.exit_code == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def test_the_final_parameters_have_the_losses_that_the_run_logged(run: Path) -> None:
    logged = json.loads((run / "seed/study.json").read_text())
    facts = [event.fact for event in read_run(run / "seed") if isinstance(event.fact, Evaluated)]
    assert [fact.syncer_step for fact in facts] == [0, 20, 40]
    row, strange = told(str(run / "seed"))
    assert row["loss"] == pytest.approx(logged["eval_loss"], rel=1e-6) and row["samples"] == 40
    assert (row["syncer_step"], row["tokens_committed"]) == (logged["syncer_steps"], logged["tokens"])
    assert (row["set"], strange["set"]) == ("held-out", "strange")
    assert facts[-1].metrics == {"strange/loss": pytest.approx(strange["loss"], rel=1e-6)}
    assert strange["loss"] > row["loss"] + 1, "it was not trained on that"
    assert json.loads((run / "seed/summary.json").read_text())["eval_metrics"] == facts[-1].metrics
    again, _ = told(str(run / "seed"), "--set", "eval.batch_size=7")
    assert again["loss"] == pytest.approx(row["loss"], rel=1e-5), "batches are means weighed by their samples"


def test_other_text_is_another_set_beside_the_runs_own(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "one.txt").write_text("abcd" * 200)
    own, known = told(str(run / "seed"), "--set", f'eval.sets=[{{name="known",path="{other}"}}]')
    assert known["set"] == "known" and known["loss"] == pytest.approx(own["loss"], rel=0.2)
    _, replaced = told(str(run / "seed"), "--set", f'eval.sets=[{{name="strange",path="{other}"}}]')
    assert replaced["loss"] == known["loss"], "in place of the recipe's"


def test_checkpoints_have_the_loss_of_the_parameters_that_they_keep(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run / "seed", tmp_path / "run")
    store = RunStore(tmp_path / "run")
    recipe = recipe_of(store)
    fragments = deal(build_task(recipe), recipe.sync)
    thetas = weights.dealt(weights.read(run / "seed"), fragments)
    kept = Folder(store.root)
    journal = taking.journal(kept, len(fragments), thetas)
    for snapshot in (1, 2):
        taking.take(kept, snapshot, journal, fragments)
    final, _ = told(str(run / "seed"))
    rows = [row for row in told(str(store.root), "--checkpoint", "all") if row["set"] == "held-out"]
    assert [row["parameters"] for row in rows] == ["checkpoint 1", "checkpoint 2"]
    assert [row["loss"] for row in rows] == [final["loss"]] * 2
    assert [row["syncer_step"] for row in rows] == [5, 5]


def test_what_cannot_be_evaluated_is_refused(run: Path) -> None:
    assert "name one run" in invoke("evaluate").stderr
    for words, said in (
        (["--checkpoint", "newest"], "no checkpoint"),
        (["--checkpoint", "all"], "no checkpoint"),
        (["--set", 'eval.sets=[{name="x",path="/nowhere"}]'], "no such file or folder"),
    ):
        done = invoke("evaluate", str(run / "seed"), *words)
        assert done.exit_code == 2 and said in done.stderr
