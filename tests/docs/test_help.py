"""The help of the command line says what it is meant to say."""

from __future__ import annotations

import re
from typing import Any

import typer
from typer.testing import CliRunner

from docs import commands
from orchestrator.__main__ import CHAOS
from orchestrator.cli.app import COMMANDS, build


def test_brackets_in_the_help_of_options_are_shown() -> None:
    app, missing = build(extensions=[CHAOS]), []
    for words, command in commands.tree().items():
        given = [getattr(parameter, "help", None) or "" for parameter in command.params]
        parts = [part for text in given for part in re.findall(r"\[[^\]]+\]", text.replace("\\[", "["))]
        if parts:
            shown = CliRunner().invoke(app, [*words.split(), "--help"], env={"COLUMNS": "300"}).output
            missing += [(words, part) for part in parts if part not in shown]
    assert missing == []


def test_the_summaries_of_help_which_imports_no_command_are_the_commands_own() -> None:
    shown = {each.name: each.summary for each in (*COMMANDS, CHAOS)}
    root: Any = typer.main.get_command(build(extensions=[CHAOS]))
    assert shown == {name: commands.summary(command) for name, command in root.commands.items()}
