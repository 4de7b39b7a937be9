"""Hugging Face folders in and out by the commands, and Orbax out: the same tensors, or a refusal in words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learners.training import weights
from learners.training.models import huggingface
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.toml_text import dump
from orchestrator.recipe.validation import problems, resolve
from orchestrator.store.export import write_final
from orchestrator.store.run_store import RunStore
from outer.protocol.fragments import Fragment, Tensor
from tests.orchestrator.calling import invoke

FOLDERS = Path(__file__).parents[2] / "learners" / "training" / "huggingface"
MODELS = Path(__file__).parents[3] / "docs" / "models.md"
LLAMA, QWEN = FOLDERS / "llama", FOLDERS / "qwen3"


def recipe(**changes: Any) -> Recipe:
    small = {"name": "one", "task": huggingface.TASK, "pools": [{"name": "a"}], "budget": {"syncer_steps": 100}}
    return Recipe.model_validate(small | {"data": {"sequence_length": 32}} | changes)


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a run that ended with some tensors, runs/one of the working directory."""
    monkeypatch.chdir(tmp_path)

    def make(recipe: Recipe, named: weights.Named) -> None:
        tensors = tuple(Tensor(name, value.shape, "float32") for name, value in named.items())
        store = RunStore.named("one")
        store.create()
        store.write_text("config.toml", dump(recipe))
        write_final(
            store, 40, [Fragment(0, tensors)], [np.concatenate([value.reshape(-1) for value in named.values()])]
        )

    return make


def export(*words: str) -> Any:
    return invoke("export", "one", *words)


@pytest.mark.parametrize("folder", [LLAMA, QWEN])
def test_a_run_starts_from_a_folder_and_what_it_ends_with_goes_back_into_one(folder: Path, ended: Any) -> None:
    start = recipe(model=huggingface.model_table(folder), init_from=str(folder))
    assert list(problems(start)) == []
    named = weights.read(folder)
    assert resolve(start).init_digest == weights.digest(named)
    ended(start, named)
    done = export("--format", "huggingface", "--out", "again")
    assert done.exit_code == 0 and weights.digest(named) in done.stdout, done.stderr
    assert sorted(path.name for path in Path("again").iterdir()) == ["config.json", "model.safetensors"]
    assert huggingface.model_table(Path("again")) == huggingface.model_table(folder)
    assert weights.metadata("again/model.safetensors")["format"] == "pt"
    assert export("--out", "model.safetensors").exit_code == 0
    (snippet,) = re.findall(r"As the task's own tree:\n\n```python\n(.*?)```", MODELS.read_text(), re.DOTALL)
    exec(snippet, made := {})
    assert np.array_equal(made["params"]["blocks"][0]["mlp"]["up"], named["blocks/0/mlp/up"])
    twice = export("--format", "huggingface", "--out", "again")
    assert twice.exit_code == 2 and "exists already" in twice.stderr
    assert [path.name for path in Path().iterdir() if path.name.startswith(".")] == [], "no draft is left"


def test_what_a_recipe_says_otherwise_than_the_folder_is_named_with_the_fix_key_by_key() -> None:
    table = huggingface.model_table(QWEN)
    other = recipe(model=table | {"rope_theta": 1e4, "tied": False, "layers": 3}, init_from=str(QWEN))
    found = {problem.field: problem.fix for problem in problems(other)}
    assert found == {
        "model.layers": "set model.layers = 2",
        "model.rope_theta": "set model.rope_theta = 1000000.0",
        "model.tied": "set model.tied = true",
    }
    (problem,) = problems(recipe(task="examples.spirals.task:Spirals", init_from=str(QWEN)))
    assert problem.field == "task" and huggingface.TASK in problem.fix


def test_models_without_a_form_are_refused(ended: Any) -> None:
    ended(recipe(task="examples.spirals.task:Spirals"), {"embed": np.zeros((2, 2), np.float32)})
    done = export("--format", "huggingface")
    assert done.exit_code == 2 and "has no form for the model of examples.spirals.task:Spirals" in done.stderr
    assert not Path("model").exists()


def test_samples_longer_than_the_sliding_window_are_refused() -> None:
    mistral = FOLDERS / "mistral"
    wide = recipe(model=huggingface.model_table(mistral), init_from=str(mistral), data={"sequence_length": 33})
    assert [(each.field, each.fix) for each in problems(wide)] == [("data.sequence_length", "set at most 32")]
