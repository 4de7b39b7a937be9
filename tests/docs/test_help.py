"""The help of the command line says what it is meant to say."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from chaos.cli import app as chaos_app
from docs import commands
from orchestrator.cli.app import build

BRACKETED = [
    words
    for words, command in commands.tree().items()
    if any("[" in (getattr(parameter, "help", None) or "") for parameter in command.params)
]


@pytest.mark.parametrize("words", BRACKETED)
def test_brackets_in_the_help_of_an_option_are_shown(words: str) -> None:
    app = build(extensions=[("chaos", chaos_app)])
    shown = CliRunner().invoke(app, [*words.split(), "--help"], env={"COLUMNS": "300"}).output
    given = [parameter.help or "" for parameter in commands.tree()[words].params if hasattr(parameter, "help")]
    missing = [
        part for text in given for part in re.findall(r"\[[^\]]+\]", text.replace("\\[", "[")) if part not in shown
    ]
    assert missing == []
