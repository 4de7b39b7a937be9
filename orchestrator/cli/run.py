"""`diloco run RECIPE`: check everything, train, and print a summary."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from orchestrator.cli.errors import CHECK_FAILED, FAILED, INTERRUPTED, OK, apart, heard_or_not, reported
from orchestrator.cli.options import AsJson, Overrides, RunDir
from orchestrator.cli.recipes import prepare, store_of
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.recipe.toml_text import dump
from orchestrator.report.headline import STATUS_WORDS, checks_words, tiles
from orchestrator.report.write import HTML, SUMMARY
from orchestrator.runtime.job import misplaced
from orchestrator.store import status_text as words
from orchestrator.store import watch
from orchestrator.store.readers import RECIPE_FILE, object_of, status_of
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
        str | None, typer.Option(envvar="RAY_ADDRESS", help="A Ray cluster; without one, a local one is started.")
    ] = None,
    overrides: Overrides = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin anew, and rename an earlier run's folder.")] = False,
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
            if sys.stderr.isatty():
                typer.echo(f"a live page of it: diloco watch {os.path.relpath(store.root)}", err=True)
            with apart(as_json):  # Ray prints too
                summary = _train(resolved, store, address, context.obj.starter, view.update, lock)
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
        if summary := object_of(store, SUMMARY):  # it came at the run's end
            return dict(summary)
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
        if check.get("status") not in ("pass", "idle", "unknown" if summary.get("state") == "failed" else ""):
            status = STATUS_WORDS.get(str(check.get("status")), DASH)
            yield "", f"{status} {text(check.get('name'))}: {text(check.get('reason'))}"
    yield "files", folder


PLAIN_EVERY_S = 5.0
# Columns in the order in which a narrow terminal keeps them, with the width from which each is shown.
SHOWN_FROM = {
    "learner": 0,
    "state": 0,
    "step": 40,
    "tokens/s": 50,
    "lag": 60,
    "last fault": 76,
    "loss": 96,
    "round": 104,
    "lease": 112,
}
STYLES = {"stepping": "green", "running": "green", "finished": "green", "failed": "red", "stopped": "yellow"}


class LiveView:
    """Update it with each new status; close it before printing anything else.

    With `json_mode` it prints plain lines, on a console that should then be stderr.
    """

    def __init__(self, console: Console, json_mode: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._live: Live | None = None
        self._said_at = float("-inf")
        self._last: Mapping[str, Any] = {}
        if console.is_terminal and not console.is_dumb_terminal and not json_mode:
            self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")
            self._live.start()

    def update(self, status: Mapping[str, Any]) -> None:
        if self._live is not None:
            self._live.update(picture(status, self._console.width), refresh=True)
        else:
            self._print_news(status)
        self._last = status

    def close(self) -> None:
        """Leave the last picture standing and give the terminal back."""
        if self._live is not None:
            self._live.stop()

    def _print_news(self, status: Mapping[str, Any]) -> None:
        news = words.states(status) != words.states(self._last)
        if not news and self._clock() - self._said_at < PLAIN_EVERY_S:
            return
        self._said_at = self._clock()
        for line in [*words.changes(self._last, status), words.headline(status)]:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def picture(status: Mapping[str, Any], width: int) -> RenderableType:
    """The whole status for a terminal of this many columns."""
    lines = [words.headline(status), *words.aux_line(status), words.syncer_line(status)]
    lines += [*words.shard_lines(status), *words.conditions(status)]
    return Group(*(Text(line) for line in lines), _bar(status, width), _table(status, width))


def _bar(status: Mapping[str, Any], width: int) -> RenderableType:
    left = words.seconds(words.part(status, "run").get("eta_s"))
    line = Table.grid(padding=(0, 1))
    line.add_row(
        ProgressBar(total=1.0, completed=words.progress(status), width=max(5, min(60, width - 30))),
        Text(f"{100 * words.progress(status):.0f} %, {left} left", no_wrap=True),
    )
    return line


def _table(status: Mapping[str, Any], width: int) -> Table:
    shown = [column for column in words.COLUMNS if SHOWN_FROM.get(column, 10**6) <= width]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in shown:
        table.add_column(column, no_wrap=True, overflow="ellipsis", justify="left" if column in _LEFT else "right")
    for learner in status.get("learners") or []:
        cells = dict(zip(words.COLUMNS, words.row(learner), strict=True))
        style = STYLES.get(cells["state"], "yellow")
        table.add_row(*(Text(cells[column], style=style if column == "state" else "") for column in shown))
    return table


_LEFT = ("learner", "state", "last fault")
