"""`diloco attach`: follow a run that another shell has started, to its end, with its exit code."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console

from orchestrator import following
from orchestrator.cli import submit
from orchestrator.cli.errors import INTERRUPTED, reported
from orchestrator.cli.live import LiveView
from orchestrator.cli.run import code_of
from orchestrator.cli.status import AsJson, Name, RunDir, find
from orchestrator.cli.summary import block
from orchestrator.problems import InputError, Problem
from orchestrator.store import RunStore
from orchestrator.stored import status_of


def attach(
    name: Name = None,
    run_dir: RunDir = None,
    address: Annotated[
        str | None,
        typer.Option(help="Follow the job of that --name on the cluster of this dashboard, http://HOST:8265."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Follow a run to its end; Ctrl-C leaves it going. Through its store, or through its cluster's job server."""
    with reported(as_json):
        if address is None:
            _through_store(find(name, run_dir), as_json)
        else:
            _through_server(address, name, run_dir, as_json)


def _through_store(store: RunStore, as_json: bool) -> None:
    status_of(store)  # what is damaged from the beginning is not waited for
    view = LiveView(Console(stderr=as_json), as_json)
    try:
        summary = following.follow(store, view.update)
    except KeyboardInterrupt:
        view.close()
        typer.echo("left: the run goes on", err=True)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        view.close()
    typer.echo(json.dumps(summary) if as_json else block(summary, str(store.root)))
    raise typer.Exit(code_of(summary))


def _through_server(address: str, name: str | None, run_dir: str | None, as_json: bool) -> None:
    if name is None or run_dir is not None:
        fix = "give --name RUN, or the job's id; without --address, --run-dir"
        raise InputError([Problem("--name", name, "with --address, a run is found by its name alone", fix)])
    client = submit.server(address)
    from orchestrator.cli import jobs  # Ray has begun

    job = jobs.find(client, name)
    record = {"submission_id": job.submission_id, "address": address, **(job.metadata or {})}
    submit.follow(client, job.submission_id, record, as_json)
