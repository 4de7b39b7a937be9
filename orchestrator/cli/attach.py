"""`diloco attach`: follow a run that another shell has started, to its end, with its exit code."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli import submit
from orchestrator.cli.errors import reported
from orchestrator.cli.run import follow
from orchestrator.cli.status import AsJson, Name, RunDir, find
from orchestrator.recipe.problems import InputError, Problem


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
            follow(find(name, run_dir), as_json)
        else:
            _through_server(address, name, run_dir, as_json)


def _through_server(address: str, name: str | None, run_dir: str | None, as_json: bool) -> None:
    if name is None or run_dir is not None:
        fix = "give --name RUN, or the job's id; without --address, --run-dir"
        raise InputError([Problem("--name", name, "with --address, a run is found by its name alone", fix)])
    client = submit.server(address)
    from orchestrator.cli import jobs  # Ray has begun

    job = jobs.find(client, name)
    record = {"submission_id": job.submission_id, "address": address, **(job.metadata or {})}
    submit.follow(client, job.submission_id, record, as_json)
