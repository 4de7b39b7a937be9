"""`diloco run RECIPE`: check everything, train, and print a summary."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from orchestrator.cli.errors import CHECK_FAILED, FAILED, INTERRUPTED, OK, apart, heard_or_not, reported
from orchestrator.cli.options import AsJson, Overrides, RunDir
from orchestrator.cli.recipes import prepare, store_of
from orchestrator.cli.terminal import LiveView
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.recipe.toml_text import dump
from orchestrator.report.headline import STATUS_WORDS, checks_words, tiles
from orchestrator.report.write import HTML
from orchestrator.runtime.job import misplaced
from orchestrator.store import watch
from orchestrator.store.readers import RECIPE_FILE, status_of
from orchestrator.store.resume import data_changed, occupied, reopen
from orchestrator.store.run_lock import RunLock
from orchestrator.store.run_store import RunStore
from orchestrator.store.status_text import DASH, seconds, text
from outer.journal.object_store import Folder


def run(
    context: typer.Context,
    recipe: Annotated[Path, typer.Argument(help="A TOML file; diloco init writes one.")],
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
            help="Begin anew, and rename an earlier run's folder.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train by a recipe, or resume a run that was stopped or died."""
    with heard_or_not(), reported(as_json):
        with apart(as_json):
            resolved = prepare(recipe, overrides, further=lambda asked: _misused_store(asked, run_dir, fresh))
            store = store_of(resolved, run_dir)
        lock = _alone(store, resolved, fresh)
        view = LiveView(Console(stderr=as_json), as_json)
        begun = not store.empty
        try:
            if begun:
                reopen(store)
                typer.echo(f"{resolved.name}: resuming the run in {store.root}; --fresh would start again", err=True)
            store.write_text(RECIPE_FILE, dump(resolved))
            if data_changed(store, resolved):
                told = "the data's text files are not what they were; samples from here on are of the files as they are"
                typer.echo(f"{resolved.name}: warning: {told}", err=True)
            with apart(as_json):  # Ray prints too
                summary = _train(resolved, store, address, context.obj, view.update, lock)
        except BaseException:
            lock.stop()
            if not begun and lock.held and store.read_text("status.json") is None:
                shutil.rmtree(store.root)  # nothing has begun: nothing is left
            raise
        finally:
            view.close()
            lock.release()
        typer.echo(json.dumps(summary) if as_json else block(summary, str(store.root)))
        if not store.path(HTML).exists():
            typer.echo(f"warning: no report was written; see why with: diloco report {store.root}", err=True)
        raise typer.Exit(code_of(summary))


def _misused_store(recipe: Recipe, run_dir: str | None, fresh: bool) -> list[Problem]:
    """List why the run may not be kept in its store, or not begin or resume there."""
    store = store_of(recipe, run_dir)
    return misplaced(run_dir, store.root, Path.cwd()) or occupied(store, fresh, recipe)


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
        fix = "give another --run-dir"
        raise InputError([Problem("run-dir", str(store.root), f"cannot be used: {error}", fix)]) from error
    lock.keep()
    return lock


def _train(
    recipe: Recipe,
    store: RunStore,
    address: str | None,
    starter: Callable[..., Any] | None,
    on_status: Callable[[Mapping[str, Any]], None],
    lock: RunLock,
) -> dict[str, Any]:
    from orchestrator.runtime import launch  # Ray begins here, after everything that can be refused was

    try:
        if address:
            return launch.run_attached(recipe, store, address, starter, on_status, lock)
        return launch.run_embedded(recipe, store, starter, on_status, lock)
    except KeyboardInterrupt:
        if not address:
            raise
        typer.echo(f"detached: the run goes on; follow it with: diloco status --follow {store.root}", err=True)
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


WIDTH = 19  # of the labels


def block(summary: Mapping[str, Any], folder: str) -> str:
    """The summary of a run for people, with the place of its files. Unknown values show as a dash."""
    return "\n".join(f"  {label:<{WIDTH}}{words}".rstrip() for label, words in _lines(summary, folder))[2:]


def _lines(summary: Mapping[str, Any], folder: str) -> Iterator[tuple[str, str]]:
    """(label, words) of each line."""
    ended = ", ok" if summary.get("ok") else "" if summary.get("state") == "stopped" else ", NOT OK"
    yield f"{text(summary.get('name'))}: {text(summary.get('state'))}{ended}", ""
    if summary.get("state") != "finished":
        yield "because", text(summary.get("reason"))
    for tile in tiles(summary):
        yield tile.label.lower(), f"{tile.value}, {tile.detail}"
    for fault in summary.get("faults") or []:
        origin = "" if fault.get("injected", True) else " (not injected)"
        yield (
            "",
            f"{text(fault.get('kind'))} {text(fault.get('target'))} at {seconds(fault.get('at_s'))}{origin}: "
            f"detected after {seconds(fault.get('detection_s'))}, recovered after {seconds(fault.get('recovery_s'))}",
        )
    checks = summary.get("checks") or []
    yield "checks", checks_words(checks) if checks else DASH
    for check in checks:
        if check.get("status") not in ("pass", "idle"):
            status = STATUS_WORDS.get(str(check.get("status")), DASH)
            yield "", f"{status} {text(check.get('name'))}: {text(check.get('reason'))}"
    yield "files", folder
