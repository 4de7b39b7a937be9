"""The help of the command line says what it is meant to say."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from docs import commands
from orchestrator.__main__ import CHAOS
from orchestrator.cli.app import COMMANDS, build

BRACKETED = [
    words
    for words, command in commands.tree().items()
    if any("[" in (getattr(parameter, "help", None) or "") for parameter in command.params)
]


@pytest.mark.parametrize("words", BRACKETED)
def test_brackets_in_the_help_of_an_option_are_shown(words: str) -> None:
    app = build(extensions=[CHAOS])
    shown = CliRunner().invoke(app, [*words.split(), "--help"], env={"COLUMNS": "300"}).output
    given = [parameter.help or "" for parameter in commands.tree()[words].params if hasattr(parameter, "help")]
    missing = [
        part for text in given for part in re.findall(r"\[[^\]]+\]", text.replace("\\[", "[")) if part not in shown
    ]
    assert missing == []


def test_the_summaries_of_help_which_imports_no_command_are_the_commands_own() -> None:
    shown = {each.name: each.summary for each in (*COMMANDS, CHAOS)}
    root: Any = typer.main.get_command(build(extensions=[CHAOS]))
    assert shown == {name: commands.summary(command) for name, command in root.commands.items()}
