"""`diloco status` and `diloco stop`: show or follow a run, or ask it to end, through its store alone."""

from __future__ import annotations

import json
import time
from typing import Annotated, NoReturn

import typer

from orchestrator.cli.errors import reported
from orchestrator.cli.options import AsJson, Run
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.store import status_text as words
from orchestrator.store.readers import located, status_of


def status(
    run: Run = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Until the run ends, and with its exit code; Ctrl-C leaves it running."),
    ] = False,
    address: Annotated[
        str | None,
        typer.Option(help="With --follow: RUN is a job on the cluster of this dashboard, http://HOST:8265."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a run's latest status, or follow the run to its end."""
    with reported(as_json):
        if address is not None:
            _follow_job(address, run, follow, as_json)
        store = located(run)
        if follow:
            from orchestrator.cli.run import follow as follow_run  # which takes its time to import

            follow_run(store, as_json)
        said = status_of(store)
        written_at = said.get("written_at")
        age_s = None if written_at is None else max(0.0, time.time() - written_at)
        if as_json:
            typer.echo(json.dumps(said | {"age_s": age_s}))
            return
        for line in words.lines(said):
            typer.echo(line)
        typer.echo(f"written {words.seconds(age_s)} ago, in {store.root}")


def _follow_job(address: str, run: str | None, follow: bool, as_json: bool) -> NoReturn:
    """Follow through the cluster's job server, where the run's store cannot be reached from here."""
    if not follow:
        fix = "add --follow; without --address, the status is read from the run's store"
        raise InputError([Problem("--address", address, "belongs to --follow", fix)])
    if run is None:
        raise InputError([Problem("RUN", None, "is required with --address", "give the run's name, or the job's id")])
    from orchestrator.cli import submit

    client = submit.server(address)
    from orchestrator.cli import jobs  # imports Ray

    job = jobs.find(client, run)
    record = {"submission_id": job.submission_id, "address": address, **(job.metadata or {})}
    submit.follow(client, job.submission_id, record, as_json)


def stop(
    run: Run = None,
    reason: Annotated[str, typer.Option(help="Stored with the run.")] = "asked for",
) -> None:
    """Stop a running job cleanly."""
    with reported():
        store = located(run)
        state = words.part(status_of(store), "run").get("state")
        if state in words.ENDED:
            typer.echo(f"nothing to stop: the run has {state}")
            return
        store.write_json("stop", {"reason": reason, "at": time.time()})
        typer.echo("asked the run to stop; follow it with: diloco status --follow")
