"""What the tests of jobs share: a folder with a recipe, and the command in it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestrator.cli.app import build
from orchestrator.recipe.toml_text import template

SHARED = "file:///shared/runs/a"


def alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in this folder, with a recipe in it, and with nobody's settings of Ray."""
    monkeypatch.chdir(folder)
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setattr(sys, "path", list(sys.path))
    (folder / "recipe.toml").write_text(template("demo"))


def arguments(address: str) -> list[str]:
    return ["submit", "recipe.toml", "--address", address, "--run-dir", SHARED]


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(build(), arguments, catch_exceptions=False)
