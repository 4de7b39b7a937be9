"""The groups of commands. An unknown command or option is reported with --json in JSON, as other errors."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import Any

import typer
from rich.markup import escape
from typer.core import TyperGroup

from orchestrator.cli.errors import INPUT, as_record

_USAGE_ERROR: Any = typer.BadParameter.__mro__[1]  # unknown commands and options are of it; Typer exports it by no name


class Group(TyperGroup):
    """Commands under one name, such as `diloco chaos`."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command, with the brackets in its help kept: Typer would read [fleet] as a tag of markup."""
        command = super().get_command(ctx, cmd_name)
        for parameter in getattr(command, "params", []):
            if (text := getattr(parameter, "help", None)) and "\\[" not in text:
                parameter.help = escape(text)
        return command


class Root(Group):
    """`diloco` itself."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **settings: Any) -> Any:
        words = sys.argv[1:] if args is None else list(args)
        try:
            return super().main(args, *rest, **settings)
        except SystemExit as ended:
            error: Any = ended.__context__  # Typer has said it on stderr, and leaves
            if "--json" in words and isinstance(error, _USAGE_ERROR):
                command = error.ctx.command_path if error.ctx else "diloco"
                message, fix = error.format_message(), f"see: {command} --help"
                problem = {"field": "command line", "value": shlex.join(words), "message": message, "fix": fix}
                print(as_record(INPUT, "input", "1 problem in the input", [problem]))
            raise
