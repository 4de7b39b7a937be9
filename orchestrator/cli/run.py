"""`diloco run RECIPE`: check everything first, then train, then say how it went."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from orchestrator.cli.doctor import foreign_packages
from orchestrator.cli.errors import BROKEN_PROMISE, FAILED, OK, reported
from orchestrator.cli.live import LiveView
from orchestrator.cli.summary import block
from orchestrator.config import Recipe
from orchestrator.problems import InputError, Problem
from orchestrator.recipes import dump, load, stored_hash, validate
from orchestrator.store import RunStore

RECIPE_FILE = "config.toml"  # in the store: the resolved recipe, by which a run knows its own folder again


def run(
    context: typer.Context,
    recipe: Annotated[Path, typer.Argument(help="A TOML file; diloco init writes one.")],
    name: Annotated[str | None, typer.Option(help="Instead of the recipe's name.")] = None,
    run_dir: Annotated[str | None, typer.Option(help="The run's store, a folder or file:// URI [runs/NAME].")] = None,
    address: Annotated[
        str | None,
        typer.Option(envvar="RAY_ADDRESS", help="A Ray cluster; without one, a local one is started."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override, e.g. sync.quorum=2; KEY= takes one out."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON on stdout.")] = False,
) -> None:
    """Train by a recipe."""
    with reported(as_json):
        named = [] if name is None else [f"name={json.dumps(name)}"]
        resolved, store = prepare(recipe, [*(overrides or []), *named], run_dir)
        store.create()
        store.write_text(RECIPE_FILE, dump(resolved))
        view = LiveView(Console(stderr=as_json), as_json)
        try:
            summary = _train(resolved, store, address, context.obj, view.update)
        finally:
            view.close()
        typer.echo(json.dumps(summary) if as_json else block(summary, str(store.root)))
        raise typer.Exit(code_of(summary))


def prepare(path: Path, overrides: Sequence[str], run_dir: str | None) -> tuple[Recipe, RunStore]:
    """The recipe and the store of a run that may start. Raises InputError with every reason why not."""
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)  # a task of the user's own, as workers find it; ours come first
    problems = foreign_packages(Path.cwd())
    try:
        recipe = load(path, overrides)
        store = RunStore(run_dir) if run_dir is not None else RunStore.named(recipe.name)
        problems += occupied(store, recipe)
        validate(recipe)
    except InputError as error:
        raise InputError([*problems, *error.problems]) from error
    if problems:
        raise InputError(problems)
    return recipe, store


def occupied(store: RunStore, recipe: Recipe) -> list[Problem]:
    """Why this recipe may not run in that folder: it is something else's, or its run is complete."""
    if store.exists and not store.empty:
        theirs = stored_hash(store.read_text(RECIPE_FILE) or "")
        if theirs is None:
            return [_occupied(store, "is not empty and holds no run")]
        if theirs != recipe.config_hash:
            return [_occupied(store, f"belongs to another config ({theirs}; this one is {recipe.config_hash})")]
        if ((store.read_json("status.json") or {}).get("run") or {}).get("state") == "finished":
            return [_occupied(store, "holds this very run, which has finished")]
    elif store.root.exists() and not store.exists:
        return [_occupied(store, "is a file")]
    return []


def _occupied(store: RunStore, message: str) -> Problem:
    return Problem("run-dir", str(store.root), message, "give another --name or --run-dir, or remove that one")


def _train(
    recipe: Recipe,
    store: RunStore,
    address: str | None,
    starter: Callable[..., Any] | None,
    on_status: Callable[[Mapping[str, Any]], None],
) -> dict[str, Any]:
    from orchestrator import launch  # Ray begins here, after everything that can be refused was

    try:
        if address:
            return launch.run_attached(recipe, store, address, starter, on_status)
        return launch.run_embedded(recipe, store, starter, on_status)
    except launch.ClusterUnreachable as error:
        raise ConnectionError(str(error)) from error


def code_of(summary: Mapping[str, Any]) -> int:
    """The exit code of a run that came to an end. A promise that could not be checked is not kept."""
    if summary["ok"]:
        return OK
    doubtful = any(check["status"] != "pass" for check in summary["checks"])
    return BROKEN_PROMISE if summary["state"] == "finished" and doubtful else FAILED
