"""`diloco status` and `diloco stop`: show or follow a run, or ask it to end, through its store alone."""

from __future__ import annotations

import json
import time
from typing import Annotated, NoReturn

import typer

from orchestrator.cli import submit
from orchestrator.cli.errors import reported
from orchestrator.cli.options import AsJson, Name, RunDir
from orchestrator.cli.run import follow as follow_run
from orchestrator.recipe.problems import InputError, Problem, nearest
from orchestrator.store import status_text as words
from orchestrator.store.readers import RECIPE_FILE, STATUS_FILE, status_of
from orchestrator.store.run_store import RUNS, RunStore, known_runs


def status(
    name: Name = None,
    run_dir: RunDir = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Until the run ends, and with its exit code; Ctrl-C leaves it running."),
    ] = False,
    address: Annotated[
        str | None,
        typer.Option(help="With --follow: the job of that --name on the cluster of this dashboard, http://HOST:8265."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a run's latest status, or follow the run to its end."""
    with reported(as_json):
        if address is not None:
            _follow_job(address, name, run_dir, follow, as_json)
        store = find(name, run_dir)
        if follow:
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


def _follow_job(address: str, name: str | None, run_dir: str | None, follow: bool, as_json: bool) -> NoReturn:
    """Follow through the cluster's job server, where the run's store cannot be reached from here."""
    if not follow:
        fix = "add --follow; without --address, the status is read from the run's store"
        raise InputError([Problem("--address", address, "belongs to --follow", fix)])
    if name is None or run_dir is not None:
        fix = "give --name RUN, or the job's id; without --address, --run-dir"
        raise InputError([Problem("--name", name, "with --address, a run is found by its name alone", fix)])
    client = submit.server(address)
    from orchestrator.cli import jobs  # imports Ray

    job = jobs.find(client, name)
    record = {"submission_id": job.submission_id, "address": address, **(job.metadata or {})}
    submit.follow(client, job.submission_id, record, as_json)


def stop(
    name: Name = None,
    run_dir: RunDir = None,
    reason: Annotated[str, typer.Option(help="Stored with the run.")] = "asked for",
) -> None:
    """Stop a running job cleanly."""
    with reported():
        store = find(name, run_dir)
        state = words.part(status_of(store), "run").get("state")
        if state in words.ENDED:
            typer.echo(f"nothing to stop: the run has {state}")
            return
        store.write_json("stop", {"reason": reason, "at": time.time()})
        typer.echo("asked the run to stop; follow it with: diloco status --follow")


def find(name: str | None, run_dir: str | None) -> RunStore:
    """The store of a run that has written a status. Raises InputError with the runs that are known."""
    known = known_runs()
    fix = f"known runs: {', '.join(known)}" if known else f"no runs are kept in {RUNS.absolute()}; give --run-dir"
    if (name is None) == (run_dir is None):
        if name is None and len(known) == 1:
            return RunStore.named(known[0])
        raise InputError([Problem("--name", name, "name one run, by --name or by --run-dir", fix)])
    store = RunStore(run_dir) if run_dir is not None else RunStore.named(str(name))
    if not store.path(STATUS_FILE).exists():
        near = nearest(name, known) if name else None
        given = Problem(
            "--name" if name else "--run-dir",
            name or run_dir,
            f"no run has written a status in {store.root}",
            f'did you mean "{near}"? {fix}' if near else fix,
        )
        raise InputError([given])
    return store


def located(run: str) -> RunStore:
    """The store of a run given by its folder or its name. Raises InputError with the runs that are known."""
    for store in (RunStore(run), RunStore.named(run)):
        if store.path(RECIPE_FILE).is_file():
            return store
    known = known_runs()
    near = nearest(run, known)
    fix = f"known runs: {', '.join(known)}" if known else f"no runs are kept in {RUNS.absolute()}; give a run's folder"
    raise InputError(
        [Problem("RUN", run, "is no run's folder or name", f'did you mean "{near}"? {fix}' if near else fix)]
    )
