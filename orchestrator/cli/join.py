"""`diloco join STORE --region REGION`: make a Ray cluster a region of a run, through the run's store alone."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from orchestrator.cli.errors import INTERRUPTED, reported
from orchestrator.cli.options import Cluster
from orchestrator.cli.recipes import prepare
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.problems import InputError, Problem, nearest
from orchestrator.recipe.toml_text import load
from orchestrator.regions.mail import SILENT_S
from orchestrator.store import status_text as words
from orchestrator.store.published import RECIPE, STATUS, VERSIONS, StoredRun
from orchestrator.store.readers import object_of
from outer.journal.object_store import absolute
from outer.protocol.manifest import code_digest, difference, flatten

LOOK_S = 1.0  # between two looks for a run that has not begun


def join(
    store: Annotated[
        str,
        typer.Argument(help="The run's durability.store as this region reaches it: s3://..., https://..., a folder."),
    ],
    region: Annotated[str, typer.Option(help="A region of [[pools]] with joined = true.")],
    address: Cluster = None,
    wait: Annotated[float, typer.Option(min=0.0, help="Seconds to wait for the run to begin.")] = 0.0,
) -> None:
    """Give a run the learners of one more region, until it ends."""
    with reported(False):
        resolved = _resolved(_going_on(absolute(store), wait), region)
        from orchestrator.runtime import launch  # Ray begins here, after everything that can be refused was

        told = ""

        def show(view: Mapping[str, Any]) -> None:
            nonlocal told
            if (said := _words(view)) != told:
                told = said
                typer.echo(f"{resolved.name}: region {region}: {said}", err=True)

        try:
            launch.join(resolved, region, address, show)
        except PermissionError as error:
            fix = f"give this region's own rights to the store; behind a door, `diloco invite {region}` makes them"
            raise InputError([Problem("STORE", store, str(error.strerror or error), fix)]) from error
        except KeyboardInterrupt:
            typer.echo(f"{resolved.name}: region {region} has left; the same command joins again", err=True)
            raise typer.Exit(INTERRUPTED) from None
        typer.echo(f"{resolved.name}: region {region}: the run is over", err=True)


def _going_on(uri: str, wait_s: float) -> StoredRun:
    """The run of this store, once it is there and not over. Raises InputError if it is not within `wait_s`."""
    give_up_at = time.monotonic() + wait_s
    while True:
        try:
            run = StoredRun(uri)
            state = words.part(object_of(run, STATUS) or {}, "run").get("state")
            if state not in words.ENDED:
                return run
            raise InputError([Problem("STORE", uri, f"its run has {state}", "resume it first, where it was started")])
        except InputError:
            if time.monotonic() >= give_up_at:
                raise
        time.sleep(LOOK_S)


def _resolved(run: StoredRun, region: str) -> Recipe:
    """The run's recipe with its store as it is called here. Raises InputError where this cannot be a region of it."""
    code = (object_of(run, VERSIONS) or {}).get("code")
    if code != (here := code_digest()):
        fix = "use the same sources here: no code crosses regions"
        raise InputError(
            [Problem("STORE", run.uri, f"its run has sources of the digest {code}, these have {here}", fix)]
        )
    path, settings = run.path(RECIPE), [f"durability.store={run.uri}"]
    resolved = prepare(path, settings, further=lambda asked: _problems(asked, region))
    if told := difference(flatten(resolved.canonical()), flatten(load(path, settings).canonical())):
        fix = "give this region the same data and initial parameters, at the same paths"
        raise InputError([Problem("STORE", run.uri, f"its run has others than are here: {told}", fix)])
    return resolved


def _problems(recipe: Recipe, region: str) -> Iterator[Problem]:
    if region not in recipe.joined:
        near = nearest(region, list(recipe.joined))
        fix = f'did you mean "{near}"?' if near else f"regions that join are {', '.join(recipe.joined) or 'none'}"
        yield Problem("--region", region, "is the region of no pool with joined = true", fix)


def _words(view: Mapping[str, Any]) -> str:
    if view["trouble"]:
        return f"the store does not do what it is asked: {view['trouble']}"
    silent = [name for name, each in view["regions"].items() if each["silent_s"] is None or each["silent_s"] > SILENT_S]
    return f"waits for {', '.join(silent)}" if silent else "is part of the run"
