"""Run folders that are damaged, or go away: said in words by every command that reads them, and never a traceback."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.recipe.resources import ACCELERATOR
from orchestrator.recipe.toml_text import dump, load
from orchestrator.runtime.launch import unplaceable
from orchestrator.store.readers import recipe_of, status_if_any, status_of
from orchestrator.store.run_store import RunStore
from tests.orchestrator.calling import invoke

RECIPE = load(Path(__file__).parents[3] / "deploy" / "recipes" / "local.toml")
DAMAGED = [
    *("", '{"run": {"state": "runn', "[]", "[1]", "null ,", "3", '"text"', '{"run": []}', '{"learners": [1]}'),
    *(
        '{"learners": {"a": 1}}',
        '{"written_at": "now"}',
        '{"written_at": NaN}',
        '{"run": {"pools": [1]}}',
        "[" * 9999,
        b"\xff\xfe",
    ),
]
READERS = [["status"], ["status", "--follow"], ["scale", "local", "2"], ["stop"]]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    monkeypatch.chdir(tmp_path)
    made = RunStore(tmp_path / "run")
    made.write_text("config.toml", dump(RECIPE))
    run = {"name": "local", "state": "running", "pools": {"local": 4}}
    made.write_json("status.json", {"run": run, "learners": [], "written_at": time.time()})
    return made


def assert_said(result: Any, *words: str) -> None:
    """An input error in words, on stderr and as JSON."""
    assert result.exit_code == 2, result.stderr
    assert "Traceback" not in result.stderr
    assert all(word in result.stderr for word in words), result.stderr
    assert result.stderr.count("fix: ") >= 1
    if result.stdout:
        assert json.loads(result.stdout)["error"]["kind"] == "input"


def test_a_damaged_status_is_said_by_every_command_that_reads_it(store: RunStore) -> None:
    assert status_of(store) == store.read_json("status.json")
    for status in ({}, {"run": None, "learners": None, "written_at": None}):
        store.write_json("status.json", status)
        assert status_of(store) == status
    for content in DAMAGED:
        store.path("status.json").write_bytes(content.encode() if isinstance(content, str) else content)
        for command in READERS if content == "[]" else READERS[:1]:
            assert_said(invoke(*command, str(store.root)), "status.json is damaged")
        assert status_if_any(store) is None
    assert not list(store.root.glob("scale*")) and not store.path("stop").exists()
    store.path("status.json").unlink()
    assert_said(invoke("status", str(store.root)), "holds no status.json")
    store.path("status.json").mkdir()
    assert_said(invoke("status", str(store.root), "--json"), "is damaged")
    assert_said(invoke("status", str(store.path("config.toml"))), "is no run's folder or name")


def test_a_missing_or_damaged_recipe_is_said_and_no_other_is_advised(store: RunStore) -> None:
    assert recipe_of(store).config_hash == RECIPE.config_hash
    for content in ("name = ", "[pools]\n", 'name = "x"\n', None):
        if content is None:
            store.path("config.toml").unlink()
        else:
            store.write_text("config.toml", content)
        result = invoke("scale", "local", "2", str(store.root), "--json")
        assert_said(result, "holds no config.toml" if content is None else "config.toml is damaged")
        assert "diloco init" not in result.stderr


# ------------------------------------------------------------------ what a local Ray has a place for


def test_a_local_accelerator_is_known_by_the_label_that_ray_gives_the_node() -> None:
    """As on clusters; the resource of that name is not asked for any more."""
    pool = {"name": "a", "accelerator": "H100", "resources": {"GPU": 1.0}}
    wants = RECIPE.model_validate(RECIPE.canonical() | {"pools": [pool]})
    assert list(unplaceable(wants, {"CPU": 4.0, "GPU": 1.0}, {ACCELERATOR: "H100"})) == []
    for labels, says in (({ACCELERATOR: "A100"}, "is A100"), ({}, "no node has a label")):
        [problem] = unplaceable(wants, {"CPU": 4.0, "GPU": 1.0, "accelerator_type:H100": 1.0}, labels)
        assert (problem.field, says in problem.message) == ("pools.0.accelerator", True)
    [problem] = unplaceable(wants, {"CPU": 4.0}, {ACCELERATOR: "H100"})
    assert problem.field == "pools.0.resources"
    wants = RECIPE.model_validate(wants.canonical() | {"eval": {"resources": {"GPU": 1.0}}})
    [problem] = unplaceable(wants, {"CPU": 4.0, "GPU": 1.0}, {ACCELERATOR: "H100"})
    assert problem.field == "eval.resources", "the pool has the only one"
