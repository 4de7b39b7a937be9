"""`diloco evaluate`: what the log said of a run, again and of other sets."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks.harness.seed_run import SeedRun
from learners.training import weights
from learners.training.tree import deal
from orchestrator.cli.app import build
from orchestrator.eventlog.facts import Evaluated
from orchestrator.eventlog.reader import read_run
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.tasks import build_task
from orchestrator.recipe.toml_text import dump
from orchestrator.store import checkpoints
from orchestrator.store.checkpoints import CheckpointManifest, CheckpointPart
from orchestrator.store.readers import recipe_of
from orchestrator.store.run_store import RunStore
from outer.journal import checkpoint_parts
from outer.journal.groups import Logged
from outer.journal.journal import StoredJournal
from outer.journal.object_store import Folder
from outer.numeric import codec
from outer.protocol.facts import Committed, Participant
from outer.protocol.recovery import Entry


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
    done = CliRunner().invoke(build(), ["evaluate", *words, "--json"])
    assert done.exit_code == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def test_the_final_parameters_have_the_loss_that_the_run_logged(run: Path) -> None:
    logged = json.loads((run / "seed/study.json").read_text())
    row, _ = told(str(run / "seed"))
    assert row["loss"] == pytest.approx(logged["eval_loss"], rel=1e-6) and row["samples"] == 40
    assert (row["syncer_step"], row["tokens_committed"]) == (logged["syncer_steps"], logged["tokens"])
    again, _ = told(str(run / "seed"), "--set", "eval.batch_size=7")
    assert again["loss"] == pytest.approx(row["loss"], rel=1e-5), "batches are means weighed by their samples"


def test_a_set_of_the_recipe_was_measured_in_the_run_and_is_again(run: Path) -> None:
    logged = [event.fact for event in read_run(run / "seed") if isinstance(event.fact, Evaluated)]
    assert [fact.syncer_step for fact in logged] == [0, 20, 40]
    own, strange = told(str(run / "seed"))
    assert (own["set"], strange["set"]) == ("held-out", "strange")
    assert logged[-1].metrics == {"strange/loss": pytest.approx(strange["loss"], rel=1e-6)}
    assert strange["loss"] > own["loss"] + 1, "it was not trained on that"
    summary = json.loads((run / "seed/summary.json").read_text())
    assert summary["eval_metrics"] == logged[-1].metrics


def test_other_text_is_another_set_beside_the_runs_own(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "one.txt").write_text("abcd" * 200)
    own, _, known = told(str(run / "seed"), "--on", f"known={other}")
    assert known["set"] == "known" and known["loss"] == pytest.approx(own["loss"], rel=0.2)
    _, replaced = told(str(run / "seed"), "--on", f"strange={other}")
    assert replaced["loss"] == known["loss"], "of the same name as a set of the recipe: in its place"


def test_checkpoints_have_the_loss_of_the_parameters_that_they_keep(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run / "seed", tmp_path / "run")
    store = RunStore(tmp_path / "run")
    recipe = recipe_of(store)
    fragments = deal(build_task(recipe), recipe.sync)
    thetas = weights.dealt(weights.read(run / "seed"), fragments)
    kept = Folder(store.root)
    journal = StoredJournal(kept, "journal", 1, len(fragments))
    journal.open()
    for step, theta in enumerate(thetas, start=1):
        one = Participant("learner-a-0", 1, 1, 0, 1, 8, 1.0, "d", 8)
        record = Committed(step, step - 1, 1, 0, (one,), 1, codec.digest(theta), 1.0, 8, 0.1, 0.2, 0.3, "why")
        journal.write([Logged(Entry(step, 0, record), step - 1, 1.0, [theta, np.arange(3)])])
    for snapshot in (1, 2):
        header, arrays = journal.cut().part(1, snapshot, fragments, {})
        part = CheckpointPart(**checkpoint_parts.write(kept, snapshot, checkpoint_parts.SYNCER, header, arrays))
        about = {"run": journal.run or "", "config_hash": "c", "final": False, "epoch": 1, "created_at": 1.0}
        checkpoints.write(
            kept,
            CheckpointManifest(snapshot=snapshot, syncer_step=4, tokens_committed=8, parts=[part], omitted=[], **about),
        )
    final, _ = told(str(run / "seed"))
    rows = [row for row in told(str(store.root), "--checkpoint", "all") if row["set"] == "held-out"]
    assert [row["parameters"] for row in rows] == ["checkpoint 1", "checkpoint 2"]
    assert [row["loss"] for row in rows] == [final["loss"]] * 2
    assert [row["syncer_step"] for row in rows] == [4, 4]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name one run"),
        (["--checkpoint", "newest"], "no checkpoint"),
        (["--checkpoint", "all"], "no checkpoint"),
        (["--on", "nothing"], "is no NAME=PATH"),
        (["--on", "x=/nowhere"], "no such file or folder"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(run: Path, words: list[str], said: str) -> None:
    where = [str(run / "seed")] if words else []
    done = CliRunner().invoke(build(), ["evaluate", *where, *words])
    assert done.exit_code == 2 and said in done.stderr
