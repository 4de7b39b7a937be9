"""Export: what a run ended with is what the file holds, and nothing is written over or half."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from learners.training import weights
from orchestrator.cli.recipes import permit
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.problems import InputError
from orchestrator.recipe.toml_text import dump
from orchestrator.store import export
from orchestrator.store.export import write_final
from orchestrator.store.run_store import RunStore
from outer.numeric import codec
from outer.protocol.fragments import Fragment, Tensor
from tests.orchestrator.calling import invoke

FRAGMENTS = (
    Fragment(0, (Tensor("blocks/0/up", (2, 3), "float32"), Tensor("scale", (), "float32"))),
    Fragment(1, (Tensor("embed", (4,), "bfloat16"),)),
)
THETAS = [np.arange(7, dtype=np.float32), np.full(4, 0.1, np.float32)]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    """A run that has ended, in runs/one of the working directory."""
    monkeypatch.chdir(tmp_path)
    recipe = Recipe.model_validate(
        {"name": "one", "seed": 7, "pools": [{"name": "a"}], "budget": {"tokens": 10}, "model": {"layers": 1}}
    )
    store = RunStore.named("one")
    store.create()
    store.write_text("config.toml", dump(recipe))
    store.write_json("summary.json", {"eval_loss": 2.5, "tokens": {"committed": 123}})
    write_final(store, 40, FRAGMENTS, THETAS)
    return store


def test_the_file_holds_the_runs_tensors_and_says_where_they_come_from(store: RunStore) -> None:
    told = json.loads(invoke("export", "one", "--json").stdout)
    assert told["tensors"] == 3 and told["elements"] == 11
    tensors = load_file("model.safetensors")
    np.testing.assert_array_equal(tensors["blocks/0/up"], THETAS[0][:6].reshape(2, 3))
    assert tensors["scale"].shape == () and tensors["scale"] == 6.0
    Path("another").touch()
    assert Path("model.safetensors").stat().st_mode == Path("another").stat().st_mode, "others may read it"
    np.testing.assert_array_equal(tensors["embed"], THETAS[1])
    with safe_open("model.safetensors", "np") as file:
        about = file.metadata()
    assert about == told["metadata"]
    assert (about["run"], about["tokens"], about["syncer_step"], about["eval_loss"]) == ("one", "123", "40", "2.5")
    assert json.loads(about["fragments"]) == [codec.digest(theta) for theta in THETAS]
    assert json.loads(about["dtypes"])["embed"] == "bfloat16"
    assert (about["task"], json.loads(about["model"]), about["seed"]) == (
        Recipe.model_fields["task"].default,
        {"layers": 1},
        "7",
    )
    assert [path.name for path in Path().iterdir() if path.name.startswith(".")] == [], "no draft is left"
    assert weights.digest(tensors) == about["digest"]


def test_leaves_that_are_not_sent_are_in_the_file_or_named_in_it(store: RunStore) -> None:
    left_out = {"table": "bfloat16[3] frozen", "seen": "int32[] local"}
    write_final(store, 40, FRAGMENTS, THETAS, left_out, {"table": np.full(3, 0.5, np.float32)})
    told = invoke("export", "one")
    assert "left out: seen;" in told.stdout
    about, tensors = weights.metadata("model.safetensors"), load_file("model.safetensors")
    np.testing.assert_array_equal(tensors["table"], [0.5, 0.5, 0.5])
    assert json.loads(about["left_out"]) == {"seen": "int32[] local"}
    assert json.loads(about["kinds"])["table"] == "frozen"
    assert json.loads(about["dtypes"])["table"] == "bfloat16"
    assert json.loads(about["fragments"]) == [codec.digest(theta) for theta in THETAS]


def test_what_cannot_be_exported_is_refused_with_the_fix_and_nothing_is_overwritten(store: RunStore) -> None:
    def refused(says: str, *words: str) -> None:
        result = invoke("export", *words)
        assert result.exit_code == 2 and says in result.stderr and "fix: " in result.stderr, result.stderr

    Path("mine").write_text("precious")
    refused("exists already", "one", "--out", "mine")
    refused("cannot be written", "one", "--out", "no/such/model.safetensors")
    manifest = store.read_json("final/manifest.json")
    scale = manifest["tensors"]["scale"] | {"sha256": "0" * 64}
    store.write_json("final/manifest.json", manifest | {"tensors": manifest["tensors"] | {"scale": scale}})
    refused("scale do not match the manifest", "one")
    store.path("final/parameters.npz").write_bytes(b"PK\x03\x04 cut off")
    refused("cannot be read as final parameters", "one")
    store.path("final/manifest.json").unlink()
    refused("holds no final parameters", "one")
    store.write_json("status.json", {})
    refused("known runs: one", "noe")
    assert Path("mine").read_text() == "precious" and not Path("model.safetensors").exists()


def test_bytes_that_read_back_otherwise_get_no_name(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(tensors: Any, path: Path, metadata: Any) -> None:
        save_file(tensors | {"scale": np.zeros((), np.float32)}, path, metadata=metadata)

    monkeypatch.setattr(export, "save_file", forgetful)
    with pytest.raises(RuntimeError, match="reads back"):
        export.write(export.of_run(store), Path("model.safetensors"))
    assert sorted(path.name for path in Path().iterdir()) == ["runs"]


def test_code_that_only_a_folder_names_is_not_run() -> None:
    for named in (  # only the names of built-in models are run without asking
        "parrots:Talking",
        "learners.training.models.decoder.x:Y",
        "learners.training.models.decoder:os.system",
        "learners.modelsx:Y",
        "os:system",
    ):
        with pytest.raises(InputError, match=f"--task: is required: .*\n.*add --task {named}"):
            permit(named, None)
        permit(named, named)
    with pytest.raises(InputError, match="is not the task of this run, parrots:Talking"):
        permit("parrots:Talking", "parrots:Parrot")


def test_tensors_that_were_cut_are_whole_in_the_file(store: RunStore) -> None:
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    first, last = (
        Tensor(f"table[{start}:{start + 2}]", (2, 3), "float32", leaf="table", start=start) for start in (0, 2)
    )
    cut = (Fragment(0, (last, Tensor("scale", (), "float32"))), Fragment(1, (first,)))
    thetas = [np.append(table[2:], np.float32(7.0)), table[:2].reshape(-1)]
    write_final(store, 40, cut, thetas)
    about = store.read_json("final/manifest.json")["tensors"]["table"]
    assert (about["fragment"], about["pieces"]) == (None, {"table[0:2]": 1, "table[2:4]": 0})
    told = json.loads(invoke("export", "one", "--json").stdout)
    tensors = load_file("model.safetensors")
    np.testing.assert_array_equal(tensors["table"], table)
    assert tensors["scale"] == 7.0
    assert json.loads(told["metadata"]["fragments"]) == [codec.digest(theta) for theta in thetas]
