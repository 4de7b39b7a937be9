"""Which commands there are, and that other rooms can add theirs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from orchestrator.cli.app import PROVE, CommandEntry, build
from tests.waiting import DEADLINE_S

ROOT = Path(__file__).parents[3]


def test_other_rooms_add_their_commands(tmp_path: Path) -> None:
    group = typer.Typer()

    @group.command()
    def hello() -> None:
        typer.echo("from elsewhere")

    @group.command()
    def goodbye() -> None:
        typer.echo("also")

    result = CliRunner().invoke(
        build(extensions=[CommandEntry(PROVE, "other", "Say something", lambda: group)]), ["other", "hello"]
    )
    assert (result.exit_code, result.stdout) == (0, "from elsewhere\n")


@pytest.mark.parametrize("words", [["--help"], ["status", "demo"]])
def test_help_and_status_start_at_once_for_they_import_nothing_heavy(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    (tmp_path / "runs" / "demo" / "status.json").write_text("{}")
    heavy = ("ray", "jax", "numpy", "pyarrow", "orchestrator.recipe.config", "chaos")
    code = (
        "import sys\nfrom orchestrator.__main__ import main\n"
        f"try:\n    main()\nfinally:\n    print([name for name in {heavy} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert (done.returncode, done.stderr) == (0, "[]\n")
