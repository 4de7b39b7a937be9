"""`diloco status` and `diloco stop`: show or follow a run, or ask it to end, through its store alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from orchestrator.cli.errors import reported
from orchestrator.cli.options import AsJson, Run
from orchestrator.cli.terminal import on_stdout, table
from orchestrator.recipe.problems import InputError
from orchestrator.store import status_text as words
from orchestrator.store import watch
from orchestrator.store.readers import located, status_of
from orchestrator.store.run_store import RUNS, RunStore, known_runs


def status(
    run: Run = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Until the run ends, with its exit code.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a run's latest status, or follow the run to its end."""
    with reported(as_json):
        store = located(run)
        if follow:
            from orchestrator.cli.run import follow as follow_run  # which takes its time to import

            follow_run(store, as_json)
        said = status_of(store)
        age_s = None if said.get("written_at") is None else max(0.0, watch.age_s(said))
        if as_json:
            typer.echo(json.dumps(said | {"age_s": age_s}))
            return
        for line in (*words.details(said), f"written {words.seconds(age_s)} ago, in {store}"):
            typer.echo(line)
        over = words.part(said, "run").get("state") in words.ENDED
        if not over and (age_s or 0.0) > watch.SILENT_S and not watch.has_news(store, said):
            typer.echo("NOT how it is now: the run is dead, which diloco run resumes, or cannot reach this folder")
        on_stdout().print(table(said, on_stdout().width))


def ls(folder: Annotated[Path, typer.Argument(help="Where the runs are.")] = RUNS, as_json: AsJson = False) -> None:
    """List runs: how far each is, and why it ended; the last written first."""
    with reported(as_json):
        rows = [_row(RunStore(folder / name)) for name in known_runs(folder)]
        rows.sort(key=lambda row: -(row["written_at"] or 0.0))
        if as_json:
            typer.echo(json.dumps({"runs": rows}))
            return
        shown = Table(box=None, pad_edge=False, header_style="bold")
        for title in ("run", "state", "progress", "held-out loss", "written", "why"):
            shown.add_column(title, no_wrap=title != "why")
        for row in rows:
            cells = (words.percent(row["progress"]), words.loss(row["eval_loss"], row["loss_unit"]))
            shown.add_row(row["run"], row["state"], *cells, f"{words.seconds(row['age_s'])} ago", Text(row["why"]))
        on_stdout().print(shown if rows else f"no runs are kept in {folder.absolute()}", markup=False)


def _row(store: RunStore) -> dict[str, Any]:
    """What is said of a run in the list of runs."""
    try:
        said, why = status_of(store), ""
    except InputError as error:
        said, why = {}, error.problems[0].message
    run, written_at = words.part(said, "run"), said.get("written_at")
    age_s = None if written_at is None else watch.age_s(said)
    lost = run.get("state") not in words.ENDED and (age_s or 0.0) > watch.LOST_S
    return {
        "run": store.name,
        "state": "lost" if lost else words.text(run.get("state")),
        **{key: run.get(key) for key in ("progress", "syncer_step", "eval_loss", "loss_unit")},
        "written_at": written_at,
        "age_s": age_s,
        "why": why or ("its processes have ended; the same diloco run resumes it" if lost else words.why(said)),
    }


Reason = Annotated[str, typer.Option(help="Stored with the run.")]


def stop(run: Run = None, reason: Reason = "asked for", as_json: AsJson = False) -> None:
    """Stop a running job cleanly."""
    with reported(as_json):
        from orchestrator.lifecycle import requests  # which takes its time to import

        store = located(run)
        told = f"asked the run to stop; follow it with: diloco status --follow {store.name}"
        if state := requests.stop(store, reason):
            told = f"nothing to stop: the run has {state}"
        typer.echo(json.dumps({"run": store.name, "asked": not state, "state": state or None}) if as_json else told)
