"""`init_from`: what a run starts from is checked before anything starts, hashed by content, and used everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from learners.config import WarmStart
from learners.training import weights
from learners.training.initial_state import InitialState
from learners.training.models.causal_lm import CausalLM
from learners.training.tree import deal, initial_parameters
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.problems import InputError
from orchestrator.recipe.toml_text import dump, load, validate
from orchestrator.recipe.validation import resolve
from orchestrator.store.export import write_final
from orchestrator.store.run_store import RunStore
from outer.config import SyncConfig

MODEL = {"layers": 1, "width": 16, "heads": 2}
SYNC = SyncConfig(P=4, H=4)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("text")
    for number in range(4):
        (folder / f"{number}.txt").write_text(f"the {number} quick brown foxes jump over lazy dogs\n" * 60)
    return str(folder)


@pytest.fixture
def path(tmp_path: Path, corpus: str) -> Path:
    """The tensors of the model under another seed."""
    save_file(tensors(recipe(corpus, seed=99)), tmp_path / "other.safetensors")
    return tmp_path / "other.safetensors"


def recipe(corpus: str, **changes: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "warm",
            "model": MODEL,
            "data": {"path": corpus, "sequence_length": 16, "held_out": 0.25},
            "sync": {"P": 4, "H": 4},
            "pools": [{"name": "a", "learners": 2}],
            "budget": {"syncer_steps": 40},
        }
        | changes
    )


def task_of(recipe: Recipe) -> CausalLM:
    return CausalLM(recipe.data, recipe.seed, **recipe.model)


def tensors(recipe: Recipe) -> dict[str, Any]:
    task = task_of(recipe)
    fragments = deal(task, SYNC)
    thetas = initial_parameters(task, fragments, recipe.seed)
    return {
        t.name: theta[cut].reshape(t.shape) for f, theta in zip(fragments, thetas, strict=True) for t, cut in f.slices()
    }


def test_the_resolved_recipe_and_its_hash_follow_the_content(corpus: str, path: Path, tmp_path: Path) -> None:
    first = resolve(recipe(corpus, init_from=str(path)))
    assert first.init_digest == weights.digest(weights.read(path))
    (tmp_path / "config.toml").write_text(dump(first))
    again = load(tmp_path / "config.toml")
    validate(again)
    assert again.config_hash == resolve(again).config_hash == first.config_hash

    save_file(weights.read(path) | {"norm": np.zeros(16, np.float32)}, path)
    assert resolve(recipe(corpus, init_from=str(path))).config_hash != first.config_hash
    with pytest.raises(InputError, match=r"init_digest.*is not the digest of init_from"):
        validate(again)
    assert "init" not in dump(resolve(recipe(corpus))), "a run without it is what it was"


def test_the_syncer_the_first_evaluation_and_lock_step_start_from_it(corpus: str, path: Path, tmp_path: Path) -> None:
    resolved = resolve(recipe(corpus, init_from=str(path)))
    task, fragments = task_of(resolved), deal(task_of(resolved), SYNC)
    wanted = weights.dealt(weights.read(path), fragments)
    fresh = initial_parameters(task, fragments, resolved.seed)
    assert not all(np.array_equal(a, b) for a, b in zip(fresh, wanted, strict=True))

    state = InitialState(resolved.task, resolved.model, resolved.data, resolved.seed, SYNC, resolved.warm_start)
    _, thetas, _, described = state(lambda _: True)
    assert described["tokens_per_sample"] == task.tokens(1)
    for found in (thetas, initial_parameters(task, fragments, resolved.seed, resolved.warm_start)):
        assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))
    _, some, _, _ = state(lambda fragment: fragment == 1)
    assert [theta is None for theta in some] == [index != 1 for index in range(len(fragments))]
    assert np.array_equal(some[1], wanted[1])

    store = RunStore(tmp_path / "run")  # so too from the folder of a run that has ended
    store.create()
    write_final(store, 24, fragments, wanted)
    for place in (tmp_path / "run", tmp_path / "run" / "final"):
        start = WarmStart(str(place), weights.digest(weights.read(place)))
        found = initial_parameters(task, fragments, resolved.seed, start)
        assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_what_a_run_cannot_start_from_is_refused_with_every_difference(corpus: str, path: Path, tmp_path: Path) -> None:
    for change, count, message in (
        ({"layers": 2}, 9, "blocks/1/attention/key is missing"),
        ({"width": 32}, 11, r"embed has shape \[256, 16\], the model's has \[256, 32\]"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            validate(recipe(corpus, init_from=str(path), model=MODEL | change))
        (problem,) = caught.value.problems
        assert problem.field == "init_from"
        assert problem.message.count("missing") + problem.message.count("has shape") == count
    (tmp_path / "bad").write_text("no")
    for changes, words in (
        ({"init_from": str(tmp_path / "none")}, "no such file or folder"),
        ({"init_from": str(tmp_path / "bad")}, "is not a safetensors file"),
        ({"init_digest": "0123"}, "without init_from"),
    ):
        with pytest.raises(InputError, match=words):
            validate(recipe(corpus, **changes))
