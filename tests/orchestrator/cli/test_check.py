"""`diloco check`: its exit code, and what it says in JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestrator.accounting.verdicts import Verdict
from orchestrator.cli.app import build

Invoke = Callable[..., Any]


@pytest.fixture
def invoke() -> Invoke:
    def call(*arguments: str) -> Any:
        return CliRunner().invoke(build(), arguments, catch_exceptions=False)

    return call


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        (["pass", "pass"], 0),
        (["pass", "idle"], 0),
        (["pass", "violated"], 5),
        (["pass", "unknown"], 5),
        (["idle"], 5),
        ([], 5),
    ],
)
def test_check_passes_only_what_is_known_to_be_kept(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, statuses: list[str], code: int
) -> None:
    verdicts = [Verdict(f"check-{number}", "a promise", status, "why") for number, status in enumerate(statuses)]  # type: ignore[arg-type]
    monkeypatch.setattr("orchestrator.checkers.suite.check_run", lambda *_: verdicts)
    assert invoke("check", str(tmp_path)).exit_code == code
    told = json.loads(invoke("check", str(tmp_path), "--json").stdout)
    assert told["ok"] == (code == 0)
    assert [check["status"] for check in told["checks"]] == statuses


def test_check_of_an_empty_folder_keeps_nothing_and_of_none_is_an_input_error(invoke: Invoke, tmp_path: Path) -> None:
    assert invoke("check", str(tmp_path)).exit_code == 5
    assert invoke("check", "no-such-run").exit_code == 2
