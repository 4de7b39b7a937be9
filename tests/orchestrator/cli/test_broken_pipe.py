"""A reader of our output may close it early: the command then ends without a failure and without a traceback."""

from __future__ import annotations

import errno
import io
import sys
from pathlib import Path

import pytest
import typer
from rich.console import Console

from orchestrator.cli.errors import FAILED, reported


class Gone(io.StringIO):
    """A pipe that nobody reads."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


def test_a_console_whose_reader_has_gone_ends_as_any_other_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "stdout").open("w") as file:
        monkeypatch.setattr(sys, "stdout", file)  # rich closes what is behind it
        with pytest.raises(BrokenPipeError), reported():
            Console(file=Gone()).print("a table")
        monkeypatch.undo()


def test_that_a_task_leaves_is_a_failure_still(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, reported():
        sys.exit(1)
    assert ended.value.exit_code == FAILED and "SystemExit: 1" in capsys.readouterr().err
