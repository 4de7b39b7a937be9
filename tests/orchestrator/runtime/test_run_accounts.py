"""How a run is summed up: by the analysis in a process of its own, whose failures are told and cost the run nothing."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from orchestrator.analysis.checks import check
from orchestrator.analysis.summary import summarise
from orchestrator.eventlog.reader import read_run
from orchestrator.recipe.toml_text import dump, load, template
from orchestrator.runtime import actor
from orchestrator.runtime.actor import NotAnalysed, finish
from orchestrator.store.run_store import RunStore
from tests.orchestrator.eventlog.logs import write_log
from tests.orchestrator.eventlog.test_reader import EVENTS


def test_the_summary_is_that_of_the_whole_log(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(template("demo"))
    recipe = load(tmp_path / "config.toml")
    (tmp_path / "config.toml").write_text(dump(recipe))
    write_log(tmp_path, EVENTS)
    summary, log = finish(RunStore(tmp_path)), read_run(tmp_path)
    assert summary == summarise(log, recipe, check(log))
    assert RunStore(tmp_path).read_json("summary.json") == summary
    assert (tmp_path / "report.html").stat().st_size > 10_000


@pytest.fixture
def analysis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module in place of the analysis: its source, which the test writes."""
    package = tmp_path / "stands_in"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(actor, "ANALYSIS", package.name)
    return package / "__main__.py"


def test_the_analysis_gets_the_runs_folder_in_a_process_of_its_own(tmp_path: Path, analysis: Path) -> None:
    store = RunStore(tmp_path / "run")
    analysis.write_text(
        "import json, os, pathlib, sys\n"
        "pathlib.Path(sys.argv[1], 'summary.json').write_text(json.dumps({'process': os.getppid()}))\n"
    )
    store.root.mkdir()

    assert finish(store) == {"process": os.getpid()}


@pytest.mark.parametrize(
    ("source", "error", "told"),
    [
        ("raise SystemExit('out of memory')", NotAnalysed, "exit status 1: out of memory; repeat it: "),
        ("import os; os.kill(os.getpid(), 9)", NotAnalysed, "exit status -9: it said nothing"),
        ("import sys; print('503', file=sys.stderr); sys.exit(75)", OSError, "503"),
        ("pass", NotAnalysed, "left no summary.json that can be read"),
        ("import threading; threading.Event().wait()", NotAnalysed, "took longer than 0.5 s"),
    ],
    ids=["fails", "is killed", "store away", "writes nothing", "hangs"],
)
def test_an_analysis_that_does_not_end_well_is_told_with_what_to_do(
    tmp_path: Path, analysis: Path, source: str, error: type[Exception], told: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if "wait" in source:
        monkeypatch.setattr(actor, "DEADLINE_S", 0.5)
    analysis.write_text(source)
    with pytest.raises(error, match=told) as raised:
        finish(RunStore(tmp_path))
    if error is NotAnalysed:
        assert f"{sys.executable} -m stands_in {tmp_path}" in str(raised.value)
