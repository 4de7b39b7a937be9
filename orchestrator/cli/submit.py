"""`diloco submit RECIPE`: check a recipe here, run it as a job of a cluster, and follow it to its end."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from orchestrator.cli.errors import INTERRUPTED, OK, apart, reported
from orchestrator.cli.options import Fresh, Overrides, RecipeFile
from orchestrator.cli.recipes import prepare, store_of
from orchestrator.cli.submission import Submission, joining, problems, submission
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.problems import Problem
from orchestrator.runtime.job import unshared

Address = Annotated[
    str | None, typer.Option(envvar="RAY_API_SERVER_ADDRESS", help="The dashboard of a Ray cluster, http://HOST:8265.")
]


def submit(
    recipe: RecipeFile,
    address: Address = None,
    region: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=http://...", help="The same of a region with joined = true, or of the run's own."),
    ] = None,
    overrides: Overrides = None,
    working_dir: Annotated[Path, typer.Option(help="The folder that is sent to the cluster.")] = Path("."),
    fresh: Fresh = False,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Return once the job is submitted.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout; the job's output on stderr.")] = False,
) -> None:
    """Train by a recipe on a cluster, as a Ray job."""
    with reported(as_json):
        typer.echo("checking the recipe", err=True)
        folder = working_dir.absolute()
        with apart(as_json):
            regions = {name: url for name, _, url in (each.partition("=") for each in region or ())}
            places = problems(recipe, folder)
            resolved = prepare(recipe, overrides, folder, places, lambda asked: _wrong(asked, address, regions))
        address = regions.get(resolved.home, address)
        assert address is not None and resolved.run.folder is not None
        about = {"run": resolved.name, "config_hash": resolved.config_hash}
        job = submission(recipe, folder, resolved.run.folder, overrides or [], fresh, about, resolved.run.control)
        record: dict[str, Any] = {"submission_id": job.submission_id, "address": address, **job.metadata}
        typer.echo(f"sending {folder} to {address}", err=True)
        from orchestrator.cli import jobs  # Ray begins here

        client = jobs.connect(address)
        jobs.send(client, job, lambda words: typer.echo(words, err=True))
        typer.echo(f"submitted {job.submission_id}, config hash {resolved.config_hash}", err=as_json)
        if resolved.joined:
            record["regions"] = _join(job, resolved, regions)
        if no_wait:
            typer.echo(json.dumps(record | {"status": "PENDING"}) if as_json else hint(address, job.submission_id))
            raise typer.Exit(OK)
        follow(client, job.submission_id, record, as_json)


def _join(job: Submission, recipe: Recipe, regions: Mapping[str, str]) -> dict[str, Any]:
    """Have each region that joins do so by a job of its own; say what came of it, and how to do it later."""
    from orchestrator.cli import jobs

    def say(words: str) -> None:
        typer.echo(f"region {name}: {words}", err=True)

    found, store = dict[str, Any](), str(recipe.durability.store)
    for name in recipe.joined:
        part = joining(job, store, name)
        try:
            if name not in regions:
                raise ConnectionError(f"no --region {name}=http://HOST:8265 was given")
            jobs.send(jobs.connect(regions[name]), part, say)
            found[name] = {"submission_id": part.submission_id, "address": regions[name]}
            say(f"submitted {part.submission_id}")
        except ConnectionError as error:
            line = shlex.join(["diloco", "join", store, "--region", name])
            found[name] = {"error": str(error), "join": line}
            say(f"{error}\n    to join later, there: {line}")
    return found


def follow(client: Any, submission_id: str, record: dict[str, Any], as_json: bool) -> NoReturn:
    """Print the job's output until it ends, and exit with the run's code. Ctrl-C leaves the job running."""
    from orchestrator.cli import jobs

    try:
        ended = jobs.follow(client, submission_id, lambda text: typer.echo(text, nl=False, err=as_json))
    except KeyboardInterrupt:
        typer.echo(f"\ndetached: the job goes on\n{hint(client.get_address(), submission_id)}", err=True)
        if as_json:
            typer.echo(json.dumps(record | {"status": "RUNNING"}))
        raise typer.Exit(INTERRUPTED) from None
    code, words = jobs.outcome(ended)
    if words:
        typer.echo(f"error: {words}", err=True)
        if (ended.metadata or {}).get("run_folder"):
            typer.echo(f"follow the run with: diloco status --follow {ended.metadata['run_folder']}", err=True)
    if as_json:
        told = {"status": str(ended.status), "driver_exit_code": ended.driver_exit_code, "exit_code": code}
        typer.echo(json.dumps(record | told))
    raise typer.Exit(code)


def hint(address: str, submission_id: str) -> str:
    """How to follow a job again, and how to stop it."""
    given = shlex.join(["--address", address])
    return (
        f"follow it: ray job logs --follow {given} {submission_id}\n"
        f"end it:    ray job stop {given} {submission_id}, or diloco stop where its folder is"
    )


def _wrong(recipe: Recipe, address: str | None, regions: Mapping[str, str]) -> Iterator[Problem]:
    """What is wrong with the run's folder and the job servers of its own cluster and of its regions."""
    yield from unshared(recipe.run.folder)
    known = recipe.home, *recipe.joined
    for name, url in {"": regions.get(recipe.home, address), **regions}.items():
        option, given = ("--region", f"{name}=") if name else ("--address", "")
        if name and name not in known:
            yield Problem(option, name, "is no region of this run", f"its regions are {', '.join(known)}")
        elif not (url or "").startswith(("http://", "https://")):
            fix = f"give the address of the cluster's dashboard: {option} {given}http://HOST:8265"
            yield Problem(option, url, "must be the http:// or https:// address of a job server", fix)
    store_of(recipe)  # raises InputError
