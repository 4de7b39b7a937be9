"""`diloco run RECIPE`: train, and print a summary. Its first words come before what takes its time to import."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import typer

from orchestrator.cli.errors import CHECK_FAILED, FAILED, OK, apart, heard_or_not, reported
from orchestrator.cli.options import AsJson, Cluster, Fresh, Overrides, RecipeFile
from orchestrator.cli.terminal import LiveView
from orchestrator.report.headline import STATUS_WORDS, checks_words, tiles
from orchestrator.store import watch
from orchestrator.store.readers import status_of
from orchestrator.store.run_store import RunStore
from orchestrator.store.status_text import DASH, seconds, text


def run(
    context: typer.Context,
    recipe: RecipeFile,
    address: Cluster = None,
    overrides: Overrides = None,
    fresh: Fresh = False,
    as_json: AsJson = False,
) -> None:
    """Train by a recipe, or resume a run that was stopped or died."""
    with heard_or_not(), reported(as_json):
        hint = "Ctrl-C: the run goes on without this command" if address else "Ctrl-C: learners save, and the run stops"
        with apart(as_json), LiveView(hint) as view:  # a task prints, and Ray
            view.stage("checking the recipe")
            from orchestrator.cli.start import train

            store, summary = train(recipe, address, overrides, fresh, context.obj.starter, view)
        _conclude(store, summary, as_json)


def follow(store: RunStore, as_json: bool) -> NoReturn:
    """Follow a run through its store to its end, and exit with its code."""
    status_of(store)  # what is damaged from the beginning is not waited for
    try:
        with LiveView("Ctrl-C: the run goes on") as view:
            summary = watch.follow(store, view.update)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("detached: the run goes on") from None
    _conclude(store, summary, as_json)


def _conclude(store: RunStore, summary: Mapping[str, Any], as_json: bool) -> NoReturn:
    """Print the summary of a run that came to an end, and exit with its code."""
    typer.echo(json.dumps(summary) if as_json else block(summary, store))
    raise typer.Exit(code_of(summary))


def code_of(summary: Mapping[str, Any]) -> int:
    """The exit code of a run that came to an end. A check that could not be made has not passed."""
    violated = any(check["status"] == "violated" for check in summary["checks"])
    if summary["ok"] or (summary["state"] == "stopped" and not violated):
        return OK  # stopped early, some checks may not have been exercised yet
    return FAILED if summary["state"] == "failed" else CHECK_FAILED


WIDTH = 19  # of the labels
HTML = "report.html"
NEXT = ("watch", "check", "export", "replay")


def block(summary: Mapping[str, Any], store: RunStore) -> str:
    """The summary of a run for people, with the place of its files. Unknown values show as a dash."""
    return "\n".join(f"  {label:<{WIDTH}}{words}".rstrip() for label, words in _lines(summary, store))[2:]


def _lines(summary: Mapping[str, Any], store: RunStore) -> Iterator[tuple[str, str]]:
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
    yield "files", str(store)
    yield "report", str(store.path(HTML)) if store.path(HTML).exists() else f"none; see why: diloco report {store.name}"
    again = "; the same diloco run resumes it" if summary.get("state") != "finished" else ""
    yield "next", f"{', '.join(f'diloco {word} {store.name}' for word in NEXT)}{again}"
