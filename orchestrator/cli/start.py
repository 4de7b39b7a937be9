"""Start or resume a run: check its recipe, take its store, and train. Imported once the first words are on screen."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer

from orchestrator.cli.errors import INTERRUPTED
from orchestrator.cli.recipes import prepare, store_of
from orchestrator.cli.terminal import LiveView
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.recipe.toml_text import dump
from orchestrator.runtime.job import misplaced
from orchestrator.store.readers import RECIPE_FILE
from orchestrator.store.resume import data_changed, occupied, reopen
from orchestrator.store.run_lock import RunLock
from orchestrator.store.run_store import RunStore
from outer.journal.object_store import Folder


def train(
    recipe: Path,
    address: str | None,
    overrides: Sequence[str] | None,
    fresh: bool,
    starter: Callable[..., Any] | None,
    view: LiveView,
) -> tuple[RunStore, dict[str, Any]]:
    """Train to the end; returns the run's store and summary. Raises InputError, typer.Exit where it goes on alone."""
    resolved = prepare(recipe, overrides, further=lambda asked: _misused_store(asked, fresh))
    store = store_of(resolved)
    lock = _alone(store, resolved, fresh)
    begun = not store.empty
    try:
        if begun:
            reopen(store)
            typer.echo(f"{resolved.name}: resuming the run in {store.root}; --fresh would start again", err=True)
        store.write_text(RECIPE_FILE, dump(resolved))
        if data_changed(store, resolved):
            told = "the data's text files are not what they were; samples from here on are of the files as they are"
            typer.echo(f"{resolved.name}: warning: {told}", err=True)
        return store, _train(resolved, store, address, starter, view, lock)
    except BaseException:
        lock.stop()
        if not begun and lock.held and store.read_text("status.json") is None:
            shutil.rmtree(store.root)  # nothing has begun: nothing is left
        raise
    finally:
        lock.release()


def _misused_store(recipe: Recipe, fresh: bool) -> list[Problem]:
    """List why the run may not be kept in its store, or not begin or resume there."""
    store = store_of(recipe)
    return misplaced(recipe.run.folder, store.root, Path.cwd()) or occupied(store, fresh, recipe)


def _alone(store: RunStore, recipe: Recipe, fresh: bool) -> RunLock:
    """Take the run's lock, in the folder that an earlier run is renamed from where the run is to begin anew."""

    def taken() -> RunLock:
        store.create()
        lock = RunLock(Folder(store.root), str(store.root))
        lock.take(lambda words: typer.echo(words, err=True))
        return lock

    try:
        lock = taken()
        if problems := occupied(store, fresh, recipe):  # it may have changed while the lock was waited for
            lock.release()
            raise InputError(problems)
        if fresh and not store.empty:
            typer.echo(f"{recipe.name}: the earlier run is in {store.set_aside()}", err=True)
            lock = taken()
    except OSError as error:
        fix = "give another: --set run.folder=FOLDER"
        raise InputError([Problem("run.folder", str(store.root), f"cannot be used: {error}", fix)]) from error
    lock.keep()
    return lock


def _train(
    recipe: Recipe,
    store: RunStore,
    address: str | None,
    starter: Callable[..., Any] | None,
    view: LiveView,
    lock: RunLock,
) -> dict[str, Any]:
    view.stage("starting Ray" if address is None else f"joining the Ray cluster at {address}")
    from orchestrator.runtime import launch  # Ray begins here, after everything that can be refused was

    try:
        if address:
            return launch.run_attached(recipe, store, address, starter, view.update, lock, view.stage)
        return launch.run_embedded(recipe, store, starter, view.update, lock, view.stage)
    except KeyboardInterrupt:
        if not address:
            raise KeyboardInterrupt("ended at once; the same command resumes the run from its last commit") from None
        typer.echo(f"detached: the run goes on; follow it with: diloco status --follow {store.name}", err=True)
        raise typer.Exit(INTERRUPTED) from None
