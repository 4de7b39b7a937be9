"""The run store: atomic writes, and numbers that are granted once. Folders that are written to without a word."""

from __future__ import annotations

import json
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.fresh import emptied
from learners.training.devices.device import host_kind
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.store.compile_cache import compilation_cache
from orchestrator.store.run_store import GRANTS_KEPT, RunStore
from tests.waiting import DEADLINE_S


def test_a_store_is_a_path_or_a_file_uri_and_naming_it_creates_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    expected = tmp_path / "a run"
    for name in (expected, "a run", f"file://{tmp_path}/a%20run", f"file://localhost{tmp_path}/a%20run"):
        assert RunStore(name).root == expected
    assert RunStore.named("demo").root == tmp_path / "runs" / "demo"
    store = RunStore(expected)
    assert (store.exists, store.empty, store.read_json("x"), store.read_text("x")) == (False, True, None, None)
    assert list(tmp_path.iterdir()) == []
    store.create()
    store.create()
    assert store.exists and store.empty
    for uri in ("s3://bucket/run", "gs://bucket/run", "file://host/run", "memory://"):
        with pytest.raises(InputError, match="not supported yet") as caught:
            RunStore(uri)
        assert caught.value.problems[0].value == uri and "folder" in caught.value.problems[0].fix


def test_json_comes_back_no_draft_is_left_and_a_write_that_fails_leaves_the_old_content(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    store.write_json("deep/status.json", {"a": [1, 2.5, None]})
    store.write_json("deep/status.json", {"a": "again"})
    with pytest.raises(ValueError, match="not JSON compliant"):
        store.write_json("deep/status.json", {"loss": float("nan")})
    with pytest.raises(UnicodeEncodeError):
        store.write_text("deep/status.json", "\ud800")
    assert store.read_json("deep/status.json") == {"a": "again"}
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["status.json"]


def test_a_reader_never_sees_part_of_a_file(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    store.write_json("status.json", [0] * 20_000)
    done = threading.Event()

    def write() -> None:
        try:
            for value in range(1, 40):
                store.write_json("status.json", [value] * 20_000)
        finally:
            done.set()

    writer = threading.Thread(target=write)
    writer.start()
    reads = 0
    while not done.is_set() or reads == 0:
        values = store.read_json("status.json")
        assert len(values) == 20_000
        assert len(set(values)) == 1
        reads += 1
    writer.join()


def test_no_number_is_granted_twice_to_concurrent_callers(tmp_path: Path) -> None:
    barrier = threading.Barrier(8)

    def ask(_: int) -> list[int]:
        store = RunStore(tmp_path)
        barrier.wait(DEADLINE_S)
        return [store.grant("epoch", "syncer") for _ in range(25)]

    with ThreadPoolExecutor(8) as pool:
        granted = [number for numbers in pool.map(ask, range(8)) for number in numbers]
    assert sorted(granted) == list(range(1, 201))
    assert RunStore(tmp_path).grant("epoch", "other") == RunStore(tmp_path).grant("incarnation", "syncer") == 1


def test_old_grants_go_and_none_of_their_numbers_is_granted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, slow = RunStore(tmp_path), RunStore(tmp_path)
    looks = iter([4])  # then it is as quick as any other
    monkeypatch.setattr(slow, "granted", lambda kind, who: next(looks, store.granted(kind, who)))
    for number in range(1, 2 * GRANTS_KEPT):
        assert store.grant("epoch", "syncer") == number
    assert len(list((tmp_path / "grants/epoch/syncer").iterdir())) == GRANTS_KEPT
    assert slow.grant("epoch", "syncer") == 2 * GRANTS_KEPT, "it looked long ago, and its number was free again"
    assert store.granted("epoch", "syncer") == 2 * GRANTS_KEPT


def test_stores_and_input_errors_travel_between_processes(tmp_path: Path) -> None:
    assert pickle.loads(pickle.dumps(RunStore(tmp_path))).root == tmp_path
    error = InputError([Problem("sync.H", -1, "must be above 0", "raise it")])
    again = pickle.loads(pickle.dumps(error))
    assert (again.problems, str(again)) == (error.problems, str(error))
    assert json.loads(json.dumps(str(again))).startswith("sync.H = -1: must be above 0")


def test_a_benchmark_deletes_an_earlier_run_and_nothing_else(tmp_path: Path) -> None:
    run, mine = tmp_path / "run", tmp_path / "mine"
    for _ in range(2):
        store = emptied(run)
        for name in ("events", "grants"):
            (store.root / name).mkdir(exist_ok=True)
        (store.root / "old").touch()
    assert not (emptied(run).root / "old").exists()
    mine.mkdir()
    assert emptied(mine).root == mine, "an empty folder is nobody's"
    (mine / "config.toml").touch()
    with pytest.raises(SystemExit, match="neither empty nor a run's folder"):
        emptied(mine)
    with pytest.raises(SystemExit, match="give another folder"):
        emptied(mine / "config.toml")
    assert (mine / "config.toml").exists()


def cached(fallback: Path) -> Path:
    return Path(compilation_cache(fallback)["JAX_COMPILATION_CACHE_DIR"])


def test_compiled_programs_go_to_the_users_cache_and_where_that_cannot_be_to_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    run = tmp_path / "run"
    assert cached(run) == tmp_path / "home" / ".cache" / "decoupled-diloco" / "compiled" / host_kind()
    assert not (tmp_path / "relative").exists()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert cached(run) == tmp_path / "cache" / "decoupled-diloco" / "compiled" / host_kind()
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert cached(run) == run / "compiled" / host_kind()
