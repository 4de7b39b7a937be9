"""`diloco init PATH`: write a commented recipe to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.errors import reported
from orchestrator.recipe.config import is_name
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.recipe.toml_text import template


def init(path: Annotated[Path, typer.Argument(help="The file to write, for example my-run.toml.")]) -> None:
    """Write a commented recipe with good defaults."""
    with reported():
        name = path.stem if is_name(path.stem) else "my-run"
        try:
            with open(path, "x", encoding="utf-8") as file:
                file.write(template(name))
        except FileExistsError:
            problem = Problem("PATH", str(path), "exists already", "give another path; nothing was overwritten")
            raise InputError([problem]) from None
        except OSError as error:
            problem = Problem("PATH", str(path), f"cannot be written: {error}", "give a path in a folder that exists")
            raise InputError([problem]) from error
        typer.echo(f"wrote {path}; start it with: diloco run {path}")
