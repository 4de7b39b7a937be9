"""What doctor finds on a machine, and when it fails."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestrator.cli import doctor
from orchestrator.cli.app import build

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _on_a_machine_without_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(build(), arguments, catch_exceptions=False)


def test_doctor_reports_every_matter() -> None:
    result = invoke("doctor", "--json")
    report = json.loads(result.stdout)
    assert (result.exit_code, report["ok"]) == (0, True)
    assert {"python", "ray", "jax", "authentication", "ports", "memory", "cores", "shared memory", "packages"} <= {
        finding["name"] for finding in report["findings"]
    }


def test_doctor_knows_the_bounds_that_the_project_declares() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    bounds = dict(re.sub(r"\[.*?\]", "", text).split(">=") for text in declared)
    assert bounds == doctor.TESTED


def test_doctor_fails_below_a_bound_and_without_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(doctor.TESTED, "rich", "999.0")
    monkeypatch.setitem(doctor.TESTED, "no-such-package-here", "1")
    result = invoke("doctor")
    assert result.exit_code == 2
    assert "below the tested 999.0" in result.stdout
    assert "no-such-package-here: not installed" in result.stdout


@pytest.mark.parametrize(
    ("mode", "bits", "status"),
    [
        (None, None, "warning"),
        (None, 0o644, "warning"),
        ("disabled", None, "warning"),
        ("token", None, "failure"),
        ("token", 0o644, "failure"),
        ("token", 0o600, "ok"),
        ("tokn", 0o600, "failure"),
    ],
)
def test_doctor_judges_authentication(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: str | None, bits: int | None, status: str
) -> None:
    token = tmp_path / "token"
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
    if mode is not None:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    if bits is not None:
        token.write_text("secret")
        token.chmod(bits)
    report = json.loads(invoke("doctor", "--json").stdout)
    assert [finding["status"] for finding in report["findings"] if finding["name"] == "authentication"] == [status]
