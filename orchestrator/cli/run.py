"""`diloco run RECIPE`: check everything, train, and print a summary."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from orchestrator.cli.doctor import foreign_packages
from orchestrator.cli.errors import CHECK_FAILED, FAILED, INTERRUPTED, OK, apart, reported
from orchestrator.cli.options import AsJson, NewName, Overrides, RunDir
from orchestrator.cli.summary import block
from orchestrator.cli.terminal import LiveView
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.recipe.toml_text import dump, load, stored_hash, validate
from orchestrator.recipe.validation import resolve
from orchestrator.report.write import HTML
from orchestrator.runtime.job import misplaced
from orchestrator.store import watch
from orchestrator.store.readers import RECIPE_FILE, status_if_any, status_of
from orchestrator.store.resume import reopen, taken, unlike
from orchestrator.store.run_store import RunStore

SILENT_S = 15.0  # the age from which a status is that of a dead run
LOOK_S, LOOK_POLL_S = 4.0, 0.2  # for another status to follow


def run(
    context: typer.Context,
    recipe: Annotated[Path, typer.Argument(help="A TOML file; diloco init writes one.")],
    name: NewName = None,
    run_dir: RunDir = None,
    address: Annotated[
        str | None,
        typer.Option(envvar="RAY_ADDRESS", help="A Ray cluster; without one, a local one is started."),
    ] = None,
    overrides: Overrides = None,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh",
            help="Remove an earlier run from the same store, instead of resuming it.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train by a recipe, or resume a run that was stopped or died."""
    with reported(as_json):
        named = [] if name is None else [f"name={json.dumps(name)}"]
        with apart(as_json):
            resolved, store = prepare(recipe, [*(overrides or []), *named], run_dir, fresh)
        if fresh and store.exists:
            shutil.rmtree(store.root)
        if going_on(store):
            typer.echo(f"{resolved.name}: is running already; following it. Ctrl-C leaves it running.", err=True)
            follow(store, as_json)
        store.create()
        resumed = not store.empty
        if resumed:
            reopen(store)
            typer.echo(f"{resolved.name}: resuming the run in {store.root}; --fresh would start again", err=True)
        store.write_text(RECIPE_FILE, dump(resolved))
        view = LiveView(Console(stderr=as_json), as_json)
        try:
            with apart(as_json):  # Ray prints too
                summary = _train(resolved, store, address, context.obj.starter, view.update)
        except BaseException:
            if not resumed and store.read_text("status.json") is None:
                shutil.rmtree(store.root)  # nothing has begun: nothing is left
            raise
        finally:
            view.close()
        typer.echo(json.dumps(summary) if as_json else block(summary, str(store.root)))
        if not store.path(HTML).exists():
            typer.echo(f"warning: no report was written; see why with: diloco report {store.root}", err=True)
        raise typer.Exit(code_of(summary))


def prepare(path: Path, overrides: Sequence[str], run_dir: str | None, fresh: bool) -> tuple[Recipe, RunStore]:
    """The resolved recipe and the store of a run that may start. Raises InputError with all problems."""

    def store_of(recipe: Recipe) -> RunStore:
        return RunStore(run_dir) if run_dir is not None else RunStore.named(recipe.name)

    def place(recipe: Recipe) -> list[Problem]:
        store = store_of(recipe)
        return misplaced(run_dir, store.root, Path.cwd()) or occupied(store, fresh, recipe)

    recipe = checked(path, overrides, Path.cwd(), place)
    return recipe, store_of(recipe)


def checked(path: Path, overrides: Sequence[str], folder: Path, further: Callable[[Recipe], list[Problem]]) -> Recipe:
    """The resolved recipe, after its own checks, those of the workers' folder, and `further`. Raises InputError."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # a task of the user's own, as workers find it; ours come first
    problems = foreign_packages(folder)
    try:
        recipe = load(path, overrides)
        problems += further(recipe)
        validate(recipe)
    except InputError as error:
        raise InputError([*problems, *error.problems]) from error
    if problems:
        raise InputError(problems)
    return resolve(recipe)


def occupied(store: RunStore, fresh: bool, recipe: Recipe) -> list[Problem]:
    """Why no run may start or resume in that folder: it holds something else, or a run of another recipe."""
    if store.root.exists() and not store.exists:
        return [_occupied(store, "is a file", "give another --run-dir")]
    if store.empty:
        return list(taken(recipe))
    if stored_hash(store.read_text(RECIPE_FILE) or "") is None:
        return [_occupied(store, "is not empty and holds no run", "give another --name or --run-dir")]
    if fresh and going_on(store):
        return [_occupied(store, "holds a run that is still running", "stop it first, or give another --name")]
    return list(taken(recipe) if fresh else unlike(store, recipe))


def going_on(store: RunStore) -> bool:
    """Whether the run's orchestrator is alive: it writes its status twice a second."""
    status = status_if_any(store) or {}
    running = (status.get("run") or {}).get("state") in ("starting", "running")
    if not running or time.time() - (status.get("written_at") or 0.0) > SILENT_S:
        return False
    give_up_at = time.monotonic() + LOOK_S
    while time.monotonic() < give_up_at:
        if (status_if_any(store) or status).get("written_at") != status.get("written_at"):
            return True
        time.sleep(LOOK_POLL_S)
    return False


def _occupied(store: RunStore, message: str, fix: str) -> Problem:
    return Problem("run-dir", str(store.root), message, fix)


def _train(
    recipe: Recipe,
    store: RunStore,
    address: str | None,
    starter: Callable[..., Any] | None,
    on_status: Callable[[Mapping[str, Any]], None],
) -> dict[str, Any]:
    from orchestrator.runtime import launch  # Ray begins here, after everything that can be refused was

    try:
        if address:
            return launch.run_attached(recipe, store, address, starter, on_status)
        return launch.run_embedded(recipe, store, starter, on_status)
    except KeyboardInterrupt:
        if not address:
            raise
        typer.echo(
            f"detached: the run goes on; follow it with: diloco status --follow --run-dir {store.root}", err=True
        )
        raise typer.Exit(INTERRUPTED) from None


def follow(store: RunStore, as_json: bool) -> NoReturn:
    """Follow a run through its store to its end, and exit with its code."""
    status_of(store)  # what is damaged from the beginning is not waited for
    view = LiveView(Console(stderr=as_json), as_json)
    try:
        summary = watch.follow(store, view.update)
    except KeyboardInterrupt:
        view.close()
        typer.echo("detached: the run goes on", err=True)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        view.close()
    typer.echo(json.dumps(summary) if as_json else block(summary, str(store.root)))
    raise typer.Exit(code_of(summary))


def code_of(summary: Mapping[str, Any]) -> int:
    """The exit code of a run that came to an end. A check that could not be made has not passed."""
    violated = any(check["status"] == "violated" for check in summary["checks"])
    if summary["ok"] or (summary["state"] == "stopped" and not violated):
        return OK  # stopped early, some checks may not have been exercised yet
    return FAILED if summary["state"] == "failed" else CHECK_FAILED
