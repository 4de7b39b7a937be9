"""`diloco scale`: change the number of learners in a pool of a running job, through its store alone."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from orchestrator.cli.errors import reported
from orchestrator.cli.options import AsJson, Run
from orchestrator.lifecycle.scaling import limits, request_file
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.problems import InputError, Problem, nearest
from orchestrator.store import status_text as words
from orchestrator.store import watch
from orchestrator.store.readers import CLUSTER_FILE, located, object_of, recipe_of, status_of
from orchestrator.store.run_store import RunStore

POLL_S = 0.2
HEARD_S = 10.0  # the orchestrator looks for requests several times a second
SETTLED_S = 300.0


def scale(
    pool: Annotated[str, typer.Argument(help="The pool's name.")],
    learners: Annotated[int, typer.Argument(min=0, metavar="N", help="The wanted number of learners.")],
    run: Run = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until new learners step and leaving ones have left.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Change the number of learners in a pool of a running job; the others train on."""
    with reported(as_json):
        store = located(run)
        status = status_of(store)
        _refuse(store, status, pool, learners)
        before = _wanted(status, pool)
        store.write_json(request_file(pool), {"learners": learners, "at": time.time()})
        status = _until(store, lambda now: _wanted(now, pool) == learners, HEARD_S)
        if wait:
            status = _until(store, lambda now: _settled(now, pool, learners), SETTLED_S)
        if as_json:
            typer.echo(json.dumps({"pool": pool, "before": before, "learners": learners, "settled": wait}))
        else:
            typer.echo(f"pool {pool}: {before} -> {learners} learners; follow it with: diloco status")


def _refuse(store: RunStore, status: Mapping[str, Any], pool: str, learners: int) -> None:
    """Raises InputError for what cannot be done."""
    require_going_on(store, status)
    local = bool((object_of(store, CLUSTER_FILE) or {}).get("token_path"))
    if found := list(problems(recipe_of(store), words.part(status, "run").get("pools", {}), pool, learners, local)):
        raise InputError(found)


def problems(recipe: Recipe, pools: Mapping[str, int], pool: str, learners: int, local: bool) -> Iterator[Problem]:
    """The reasons against scaling this pool to so many learners; `pools`: the present sizes."""
    known = {each.name: each for each in recipe.pools}
    if pool not in known:
        near = nearest(pool, list(known))
        fix = f'did you mean "{near}"?' if near else f"its pools are {', '.join(known)}"
        yield Problem("POOL", pool, "is not a pool of this run", fix)
        return
    if known[pool].opportunistic:
        message = "follows the nodes that are there, between its min and max"
        yield Problem("POOL", pool, message, "add or drain nodes, or resume the run with another max")
        return
    low, high = limits(known[pool], local)
    if not low <= learners <= high:
        why = "by its min and max"
        if known[pool].max is None and learners > high:
            why = "the room that its local Ray was given" if local else "as its recipe sets no max"
        yield Problem("N", learners, f"pool {pool} has {low} to {high} learners, {why}", f"give {low} to {high}")
    if recipe.sync.overlap == "strict":
        yield Problem("sync.overlap", "strict", "in lock step nobody joins or leaves", 'use overlap = "free"')
    if recipe.sync.quorum == "all":
        yield Problem("sync.quorum", "all", "is every learner that the run began with", "give the quorum as a number")
        return
    total = sum({**pools, pool: learners}.values())
    if total < recipe.quorum:
        yield Problem(
            "N",
            learners,
            f"would leave {total} learners, and below the quorum of {recipe.quorum} nothing commits",
            f"give at least {learners + recipe.quorum - total}",
        )


def require_going_on(store: RunStore, status: Mapping[str, Any]) -> None:
    """Raises InputError for a run that has ended, or that has been silent for too long."""
    run = words.part(status, "run")
    if run.get("state") in words.ENDED:
        raise InputError([Problem("RUN", run.get("name"), f"the run has {run['state']}", "name a run that goes on")])
    if watch.age_s(status) > watch.SILENT_S and not watch.has_news(store, status):
        message = f"the run has said nothing for {watch.SILENT_S:.0f} s or more: it is starting, ending or dead"
        fix = "see: diloco status; diloco run goes on with a dead one"
        raise InputError([Problem("RUN", run.get("name"), message, fix)])


def _wanted(status: Mapping[str, Any], pool: str) -> int | None:
    return words.part(words.part(status, "run"), "pools").get(pool)


def _settled(status: Mapping[str, Any], pool: str, learners: int) -> bool:
    states = [item.get("state") for item in status.get("learners") or [] if item.get("pool") == pool]
    return states == ["stepping"] * learners


def _until(store: RunStore, holds: Any, seconds: float) -> dict[str, Any]:
    """The first status for which `holds` is true. Raises InputError if none comes in time, or the run ends before."""
    deadline = time.monotonic() + seconds
    while True:
        status = status_of(store)
        if holds(status):
            return status
        if words.part(status, "run").get("state") in words.ENDED:
            raise InputError([Problem("RUN", store.root.name, "the run ended meanwhile", "see: diloco status")])
        if time.monotonic() >= deadline:
            fix = "the request stays in force; see: diloco status"
            raise InputError([Problem("N", None, f"not done after {seconds:.0f} s", fix)])
        time.sleep(POLL_S)
