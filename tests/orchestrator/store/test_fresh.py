"""Folders of this machine that are written to without a word: benchmarks' runs, and compiled programs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.fresh import emptied
from learners.training.devices.device import host_kind
from orchestrator.store.compile_cache import compilation_cache


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
