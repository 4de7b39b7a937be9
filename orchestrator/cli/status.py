"""`diloco status` and `diloco stop`: show or follow a run, or ask it to end, through its store alone."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

from orchestrator.cli.errors import reported
from orchestrator.cli.options import AsJson, Run
from orchestrator.store import status_text as words
from orchestrator.store import watch
from orchestrator.store.readers import located, status_of


def status(
    run: Run = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Until the run ends, and with its exit code; Ctrl-C leaves it running."),
    ] = False,
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
        for line in words.lines(said):
            typer.echo(line)
        typer.echo(f"written {words.seconds(age_s)} ago, in {store}")
        over = words.part(said, "run").get("state") in words.ENDED
        if not over and (age_s or 0.0) > watch.SILENT_S and not watch.has_news(store, said):
            typer.echo("NOT how it is now: the run is dead, which diloco run resumes, or cannot reach this folder")


def stop(run: Run = None, reason: Annotated[str, typer.Option(help="Stored with the run.")] = "asked for") -> None:
    """Stop a running job cleanly."""
    with reported():
        from orchestrator.lifecycle import requests  # which takes its time to import

        if state := requests.stop(located(run), reason):
            typer.echo(f"nothing to stop: the run has {state}")
            return
        typer.echo("asked the run to stop; follow it with: diloco status --follow")
