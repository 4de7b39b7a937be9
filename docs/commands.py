"""The table of docs/commands.md, and the tree of commands that the tests of the docs compare with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import typer

from orchestrator.__main__ import CHAOS
from orchestrator.cli.app import build

HIDDEN = {"--help", "--json"}  # explained once, above the table


def tree() -> dict[str, Any]:
    """Every command by its words without `diloco`, such as `chaos inject`; the values are click's commands."""
    root: Any = typer.main.get_command(build(extensions=[CHAOS]))
    return dict(_leaves({name: load() for name, load in root.imported().items()}, "", None))


def _leaves(commands: Mapping[str, Any], above: str, panel: str | None) -> Iterator[tuple[str, Any]]:
    for name, command in commands.items():
        command.rich_help_panel = getattr(command, "rich_help_panel", None) or panel
        if hasattr(command, "commands"):
            yield from _leaves(command.commands, f"{above}{name} ", command.rich_help_panel)
        else:
            yield f"{above}{name}", command


def options(command: Any) -> set[str]:
    """Every option of a command, short forms too."""
    return {word for parameter in command.params for word in parameter.opts if word.startswith("-")}


def _first_names(command: Any) -> set[str]:
    """Each option once, by its first long name."""
    names = ([word for word in parameter.opts if word.startswith("--")] for parameter in command.params)
    return {found[0] for found in names if found}


def arguments(command: Any) -> list[str]:
    """Its positional arguments in capitals; one that may be left out in brackets."""
    positional = [one for one in command.params if not any(word.startswith("-") for word in one.opts)]
    return [one.name.upper() if one.required else f"[{one.name.upper()}]" for one in positional]


def blocks() -> dict[str, str]:
    """The table, by the name of its place in the page."""
    lines = ["|command|does|options|", "|---|---|---|"]
    panel = None
    for words, command in sorted(tree().items(), key=lambda item: _panels().index(item[1].rich_help_panel)):
        if command.rich_help_panel != panel:
            panel = command.rich_help_panel
            lines.append(f"|**{panel}**|||")
        usage = " ".join(["diloco", words, *arguments(command)])
        long = sorted(_first_names(command) - HIDDEN)
        lines.append(f"|`{usage}`|{summary(command)}|{' '.join(f'`{word}`' for word in long)}|")
    return {"commands": "\n".join(lines)}


def _panels() -> list[str | None]:
    """The groups of `diloco --help`, in its order."""
    return list(dict.fromkeys(command.rich_help_panel for command in tree().values()))


def summary(command: Any) -> str:
    """The first sentence of the command's help."""
    text = " ".join((command.help or "").replace("\\[", "[").split("\n\n")[0].split())
    return text.split(". ")[0].split("; ")[0].removesuffix(".")
