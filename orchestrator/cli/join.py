"""`diloco join RECIPE --region REGION`: make a Ray cluster a region of a run, through the run's store alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from orchestrator.cli.errors import INTERRUPTED, reported
from orchestrator.cli.options import Cluster, Overrides, RecipeFile
from orchestrator.cli.recipes import prepare
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.problems import Problem, nearest
from orchestrator.regions.mail import SILENT_S


def join(
    recipe: RecipeFile,
    region: Annotated[str, typer.Option(help="A region of [[pools]] with joined = true.")],
    address: Cluster = None,
    overrides: Overrides = None,
) -> None:
    """Give a run the learners of one more region, until it ends."""
    with reported(False):
        resolved = prepare(recipe, overrides, further=lambda asked: _problems(asked, region))
        from orchestrator.runtime import launch  # Ray begins here, after everything that can be refused was

        told = ""

        def show(view: Mapping[str, Any]) -> None:
            nonlocal told
            if (words := _words(view)) != told:
                told = words
                typer.echo(f"{resolved.name}: region {region}: {words}", err=True)

        try:
            launch.join(resolved, region, address, show)
        except KeyboardInterrupt:
            typer.echo(f"{resolved.name}: region {region} has left; the same command joins again", err=True)
            raise typer.Exit(INTERRUPTED) from None
        typer.echo(f"{resolved.name}: region {region}: the run is over", err=True)


def _problems(recipe: Recipe, region: str) -> Iterator[Problem]:
    if region not in recipe.joined:
        near = nearest(region, list(recipe.joined))
        fix = f'did you mean "{near}"?' if near else f"regions that join are {', '.join(recipe.joined) or 'none'}"
        yield Problem("--region", region, "is the region of no pool with joined = true", fix)


def _words(view: Mapping[str, Any]) -> str:
    silent = [name for name, each in view["regions"].items() if each["silent_s"] is None or each["silent_s"] > SILENT_S]
    return f"waits for {', '.join(silent)}" if silent else "is part of the run"
