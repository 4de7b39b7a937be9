"""Run folders that are damaged, or go away: said in words by every command that reads them, and never a traceback."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestrator.cli.app import build
from orchestrator.recipe.problems import InputError
from orchestrator.recipe.resources import ACCELERATOR
from orchestrator.recipe.toml_text import dump, load
from orchestrator.runtime.launch import unplaceable
from orchestrator.store import watch
from orchestrator.store.readers import recipe_of, status_if_any, status_of
from orchestrator.store.run_store import RunStore
from orchestrator.store.watch import LOOK_S, RunLost, follow

ROOT = Path(__file__).parents[3]
RECIPE = load(ROOT / "deploy" / "recipes" / "local.toml")
DAMAGED = [
    *("", '{"run": {"state": "runn', "[]", "[1]", "null ,", "3", '"text"', '{"run": []}', '{"learners": [1]}'),
    *('{"learners": {"a": 1}}', '{"written_at": "now"}', '{"written_at": NaN}', '{"run": {"pools": [1]}}', "[" * 9999),
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


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(build(), arguments)


def assert_said(result: Any, *words: str) -> None:
    """An input error in words, on stderr and as JSON."""
    assert result.exit_code == 2, result.stderr
    assert "Traceback" not in result.stderr
    assert all(word in result.stderr for word in words), result.stderr
    assert result.stderr.count("fix: ") >= 1
    if result.stdout:
        assert json.loads(result.stdout)["error"]["kind"] == "input"


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_status_is_said_by_every_command_that_reads_it(store: RunStore, content: str) -> None:
    store.write_text("status.json", content)
    for command in READERS:
        assert_said(invoke(*command, str(store.root)), "status.json is damaged")
    assert status_if_any(store) is None
    assert not list(store.root.glob("scale*")) and not store.path("stop").exists()


def test_a_status_that_is_no_text_or_no_file_is_damaged_too(store: RunStore) -> None:
    store.path("status.json").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="is damaged"):
        status_of(store)
    store.path("status.json").unlink()
    with pytest.raises(InputError, match=r"holds no status\.json"):
        status_of(store)
    store.path("status.json").mkdir()
    assert_said(invoke("status", str(store.root), "--json"), "is damaged")


def test_a_folder_that_is_a_file_holds_no_run(store: RunStore) -> None:
    assert_said(invoke("status", str(store.path("config.toml"))), "is no run's folder or name")


@pytest.mark.parametrize("content", [None, "name = ", "[pools]\n", 'name = "x"\n'])
def test_a_missing_or_damaged_recipe_is_said_and_no_other_is_advised(store: RunStore, content: str | None) -> None:
    if content is None:
        store.path("config.toml").unlink()
    else:
        store.write_text("config.toml", content)
    result = invoke("scale", "local", "2", str(store.root), "--json")
    assert_said(result, "holds no config.toml" if content is None else "config.toml is damaged")
    assert "diloco init" not in result.stderr


def test_what_is_whole_is_read_as_it_was_written(store: RunStore) -> None:
    assert status_of(store) == store.read_json("status.json")
    assert recipe_of(store).config_hash == RECIPE.config_hash
    for status in ({}, {"run": None, "learners": None, "written_at": None}):
        store.write_json("status.json", status)
        assert status_of(store) == status


# ------------------------------------------------------------------ while a run is followed


@pytest.mark.parametrize("lost", ["removed", "damaged", "unwritten"])
def test_a_folder_that_goes_away_while_it_is_followed_is_a_run_that_is_lost(store: RunStore, lost: str) -> None:
    now = 0.0

    def pause(seconds: float) -> None:
        nonlocal now
        now += seconds
        if lost == "removed":
            shutil.rmtree(store.root, ignore_errors=True)
        elif lost == "damaged":
            store.write_text("status.json", "[]")
        else:
            store.path("status.json").unlink(missing_ok=True)

    words = {"removed": "has been removed", "damaged": "is damaged", "unwritten": "holds no status"}
    with pytest.raises(RunLost, match=words[lost]):
        follow(store, lambda _: None, clock=lambda: now, pause=pause)
    assert now == pytest.approx(LOOK_S, abs=1.0)


def test_a_status_that_is_damaged_for_a_moment_is_no_loss(store: RunStore) -> None:
    now, whole = 0.0, store.read_text("status.json")
    assert whole is not None

    def pause(seconds: float) -> None:
        nonlocal now
        now += seconds
        store.write_text(
            "status.json", "" if now % 2 < 1 else whole.replace("running", "finished" if now > 60 else "running")
        )

    store.write_text("summary.json", '{"ok": true}')
    assert follow(store, lambda _: None, clock=lambda: now, pause=pause) == {"ok": True}


@pytest.mark.parametrize("content", ["", "[]", "{"])
def test_a_damaged_summary_is_none(store: RunStore, monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    monkeypatch.setattr(watch, "SUMMARY_S", -1.0)
    store.write_text("status.json", '{"run": {"state": "finished"}, "written_at": 1.0}')
    store.write_text("summary.json", content)
    lost = invoke("status", "--follow", str(store.root))
    assert lost.exit_code == 4
    assert "left no summary" in lost.stderr and "Traceback" not in lost.stderr


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
