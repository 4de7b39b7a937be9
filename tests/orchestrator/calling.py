"""The command line in this process."""

from __future__ import annotations

from typing import Any

from typer.testing import CliRunner

from orchestrator.cli.app import build


def invoke(*words: str, **options: Any) -> Any:
    """The result of a command. What it raises, the test sees."""
    return CliRunner().invoke(build(), words, catch_exceptions=False, **options)
