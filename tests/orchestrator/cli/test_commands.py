"""Which commands there are, and that other rooms can add theirs."""

from __future__ import annotations

from pathlib import Path

import typer
from typer.testing import CliRunner

from orchestrator.cli.app import build


def test_other_rooms_add_their_commands(tmp_path: Path) -> None:
    group = typer.Typer()

    @group.command()
    def hello() -> None:
        typer.echo("from elsewhere")

    @group.command()
    def goodbye() -> None:
        typer.echo("also")

    result = CliRunner().invoke(build(extensions=[("other", group)]), ["other", "hello"])
    assert (result.exit_code, result.stdout) == (0, "from elsewhere\n")


def test_the_commands_and_their_options_are_these() -> None:
    """Scripts rely on them: a change here is a change for users."""
    root = typer.main.get_command(build())
    commands = {
        name: sorted(option for parameter in command.params for option in parameter.opts if option.startswith("--"))
        for name, command in root.commands.items()  # type: ignore[attr-defined]
    }
    assert commands == {
        "init": [],
        "plan": [
            *(
                "--address",
                "--calibrate",
                "--json",
                "--name",
                "--node",
                "--nodes",
                "--run-dir",
                "--save",
                "--set",
            ),
            *("--step-seconds", "--syncer-region", "--trials"),
        ],
        "run": ["--address", "--fresh", "--json", "--name", "--run-dir", "--set"],
        "submit": [
            *("--address", "--fresh", "--json", "--name", "--no-wait", "--run-dir", "--set", "--working-dir"),
        ],
        "status": ["--address", "--follow", "--json", "--name", "--run-dir"],
        "stop": ["--name", "--reason", "--run-dir"],
        "scale": ["--json", "--name", "--run-dir", "--wait"],
        "check": ["--jobs", "--json"],
        "check-task": ["--json", "--set"],
        "checkpoint": [],  # its own commands: test_checkpoint_cli.py
        "data": [],  # its own commands: tests/orchestrator/prepare
        "simulate": [],  # its own commands: test_simulate_cli.py
        "compare": [
            *("--against", "--chaos", "--checkpoint-s", "--harness", "--json", "--modes", "--out", "--seeds", "--set")
        ],
        "study": ["--against", "--json", "--out", "--seeds", "--set", "--vmap"],
        "tape": ["--chips", "--json", "--profile", "--seed", "--set", "--startup-seconds", "--step-seconds"],
        "evaluate": ["--batch", "--checkpoint", "--from", "--json", "--on", "--sequences", "--task"],
        "export": ["--checkpoint", "--format", "--json", "--out"],
        "sample": ["--from", "--json", "--length", "--prompt", "--seed", "--task", "--temperature", "--top-k"],
        "report": ["--json", "--name", "--out"],
        "track": ["--every", "--follow", "--to"],
        "log": ["--follow", "--kind"],
        "metrics": ["--json"],
        "doctor": ["--gpu", "--json"],
        "replay": ["--diff", "--evaluate-every", "--json", "--out", "--rule", "--task", "--until"],
    }
