"""The reader of exported files: it needs nothing of this project, and shows what is in one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from orchestrator.recipe.config import Recipe
from orchestrator.recipe.toml_text import dump
from orchestrator.store.export import of_run, write, write_final
from orchestrator.store.run_store import RunStore
from outer.protocol.fragments import Fragment, Tensor
from tests.waiting import DEADLINE_S

READER = Path(__file__).parents[2] / "examples" / "read_export.py"


def read(path: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """From a folder where none of our packages is, and without a path to them."""
    code = (
        "import runpy, sys\n"
        f"sys.argv[1:] = [{str(path)!r}]\n"
        f"runpy.run_path({str(READER)!r}, run_name='__main__')\n"
        "ours = {'outer', 'learners', 'orchestrator'} & {name.split('.')[0] for name in sys.modules}\n"
        "assert not ours, ours"
    )
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S)


def test_it_shows_every_tensor_and_where_they_come_from(tmp_path: Path) -> None:
    recipe = Recipe.model_validate({"name": "one", "pools": [{"name": "a"}], "budget": {"tokens": 10}})
    fragments = [Fragment(0, (Tensor("up", (2, 2), "float32"),)), Fragment(1, (Tensor("embed", (2,), "bfloat16"),))]
    thetas = [np.full(4, 1.5, np.float32), np.array([3.0, 4.0], np.float32)]
    store = RunStore(tmp_path / "run")
    store.create()
    store.write_text("config.toml", dump(recipe))
    store.write_json("summary.json", {"tokens": {"committed": 123}})
    write_final(store, 40, fragments, thetas)
    write(of_run(store), tmp_path / "model.safetensors")
    done = read(tmp_path / "model.safetensors", tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["run", "one"] in lines and ["syncer_step", "40"] in lines and ["tokens", "123"] in lines
    assert ["up", "[2,", "2]", "float32", "norm", "3"] in lines
    assert ["embed", "[2]", "bfloat16", "norm", "5"] in lines
    assert lines[-1] == ["2", "tensors,", "6", "elements"]


def test_another_safetensors_file_is_refused_in_words(tmp_path: Path) -> None:
    save_file({"a": np.zeros(1, np.float32)}, tmp_path / "other.safetensors")
    done = read(tmp_path / "other.safetensors", tmp_path)
    assert done.returncode == 1 and "diloco export" in done.stderr and "Traceback" not in done.stderr
