"""`diloco scale`: change the number of learners in a pool of a running job, through its store alone."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from orchestrator.cli.errors import reported
from orchestrator.cli.options import AsJson, Run
from orchestrator.lifecycle import requests
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.store import status_text as words
from orchestrator.store.readers import located, status_of
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
        before = requests.scale(store, pool, learners)
        _until(store, lambda now: _wanted(now, pool) == learners, HEARD_S)
        if wait:
            _until(store, lambda now: _settled(now, pool, learners), SETTLED_S)
        if as_json:
            typer.echo(json.dumps({"pool": pool, "before": before, "learners": learners, "settled": wait}))
        else:
            typer.echo(f"pool {pool}: {before} -> {learners} learners; follow it with: diloco status")


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
