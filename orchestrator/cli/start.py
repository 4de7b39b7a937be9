"""Start or resume a run: check its recipe, take its store, and train. Imported once the first words are on screen."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import typer

from orchestrator.cli.recipes import prepare, store_of
from orchestrator.cli.terminal import LiveView
from orchestrator.cli.track import beside as tracked
from orchestrator.cli.watch import beside as watched
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.recipe.toml_text import dump
from orchestrator.report.write import SUMMARY
from orchestrator.runtime.job import config as job_config
from orchestrator.runtime.job import misplaced
from orchestrator.store.readers import RECIPE_FILE, object_of
from orchestrator.store.resume import data_changed, occupied, reopen
from orchestrator.store.run_lock import RunLock
from orchestrator.store.run_store import RunStore
from outer.journal.object_store import Folder

STOPPED = "ended at once; the same command resumes the run from its last commit"


def train(
    recipe: Path,
    address: str | None,
    overrides: Sequence[str] | None,
    fresh: bool,
    starter: Callable[..., Any] | None,
    view: LiveView,
) -> tuple[RunStore, dict[str, Any]]:
    """Train to the end; returns the run's store and summary. Raises InputError, KeyboardInterrupt."""
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
        view.stage(f"joining the Ray cluster at {address}" if address else "starting Ray")
        from orchestrator.runtime import launch  # Ray begins here, after everything that can be refused was

        more = starter, view.update, lock, view.stage
        with ExitStack() as stack:
            if resolved.run.track:
                stack.enter_context(tracked(store, resolved.run.track, view.note))
            if resolved.run.watch and job_config() is None:  # nobody opens a page on a job's node
                stack.enter_context(watched(store, view.note))
            if address:
                return store, launch.run_attached(resolved, store, address, *more)
            return store, launch.run_embedded(resolved, store, *more, note=view.note)
    except BaseException as error:
        lock.stop()
        if isinstance(error, KeyboardInterrupt) and (summary := object_of(store, SUMMARY)):
            return store, dict(summary)  # it came at the run's end
        if not begun and lock.held and store.read_text("status.json") is None:
            shutil.rmtree(store.root)  # nothing has begun: nothing is left
        if not isinstance(error, KeyboardInterrupt):
            raise
        told = f"detached: the run goes on; follow it: diloco status --follow {store.name}" if address else STOPPED
        raise KeyboardInterrupt(told) from None
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
