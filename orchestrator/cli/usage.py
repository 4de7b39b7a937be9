"""The groups of commands, and what they say of words that they do not know.

An unknown command is answered with the nearest one, or with what has replaced it; with --json in JSON, as other errors.
"""

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

_FAULTS = ("kill", "freeze", "slow", "straggle", "link", "corrupt", "non-finite", "wrong-config")
_STUDIES = ("bandwidth", "heterogeneous", "scavenging", "upsize")
REPLACED = {
    "attach": "diloco status --follow",
    "simulate tape": "diloco tape",
    "chaos tape": "diloco tape --profile calm",
    **{f"chaos {kind}": f"diloco chaos inject {kind} LEARNER" for kind in _FAULTS},
    **{f"simulate {study}": f"python benchmarks/studies/{study}.py" for study in _STUDIES},
}


class Group(TyperGroup):
    """Commands under one name, such as `diloco chaos`."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command, with the brackets in its help kept: Typer would read [fleet] as a tag of markup."""
        command = super().get_command(ctx, cmd_name)
        for parameter in getattr(command, "params", []):
            if (text := getattr(parameter, "help", None)) and "\\[" not in text:
                parameter.help = escape(text)
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except _USAGE_ERROR as error:
            words: Any = error
            group = str(ctx.command_path).removeprefix(str(ctx.find_root().command_path)).split()
            path = " ".join([*group, *args[:1]])
            if path in REPLACED:
                words.message = f"No such command '{path}'. Use: {REPLACED[path]}"
            raise


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
