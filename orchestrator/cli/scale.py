"""`diloco scale`: give a running job's pool another number of learners; through its store alone."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from orchestrator import status as words
from orchestrator.cli.errors import reported
from orchestrator.cli.run import RECIPE_FILE
from orchestrator.cli.status import AsJson, Name, RunDir, find
from orchestrator.problems import InputError, Problem
from orchestrator.recipes import stored
from orchestrator.scaling import SCALE, problems
from orchestrator.store import RunStore

POLL_S = 0.2
HEARD_S = 10.0  # the orchestrator looks for requests several times a second
SETTLED_S = 300.0


def scale(
    pool: Annotated[str, typer.Argument(help="The pool's name.")],
    learners: Annotated[int, typer.Argument(min=0, metavar="N", help="How many learners it is to have.")],
    name: Name = None,
    run_dir: RunDir = None,
    wait: Annotated[bool, typer.Option("--wait", help="Until they step, and those that leave have left.")] = False,
    as_json: AsJson = False,
) -> None:
    """Add learners to a running job, or drain some; the others train on."""
    with reported(as_json):
        store = find(name, run_dir)
        status = store.read_json("status.json")
        _refuse(store, status, pool, learners)
        before = words.part(status, "run")["pools"][pool]
        request = store.read_json(SCALE) or {"pools": {}}
        store.write_json(SCALE, {"pools": request["pools"] | {pool: learners}, "at": time.time()})
        status = _until(store, lambda now: words.part(now, "run")["pools"][pool] == learners, HEARD_S)
        if wait:
            status = _until(store, lambda now: _settled(now, pool, learners), SETTLED_S)
        if as_json:
            typer.echo(json.dumps({"pool": pool, "before": before, "learners": learners, "settled": wait}))
        else:
            typer.echo(f"pool {pool}: {before} -> {learners} learners; follow it with: diloco status")


def _refuse(store: RunStore, status: Mapping[str, Any], pool: str, learners: int) -> None:
    """Raises InputError for what cannot be done."""
    run = words.part(status, "run")
    if run.get("state") in words.ENDED:
        raise InputError([Problem("--name", run.get("name"), f"the run has {run['state']}", "name a run that goes on")])
    if found := list(problems(stored(store.path(RECIPE_FILE)), run.get("pools", {}), pool, learners)):
        raise InputError(found)


def _settled(status: Mapping[str, Any], pool: str, learners: int) -> bool:
    states = [item["state"] for item in status["learners"] if item["pool"] == pool]
    return states == ["stepping"] * learners


def _until(store: RunStore, holds: Any, seconds: float) -> Mapping[str, Any]:
    """The first status of which it holds. Raises InputError when none comes in time, or the run ends before."""
    deadline = time.monotonic() + seconds
    while True:
        status: Mapping[str, Any] = store.read_json("status.json")
        if holds(status):
            return status
        if words.part(status, "run").get("state") in words.ENDED:
            raise InputError([Problem("--name", store.root.name, "the run ended meanwhile", "see: diloco status")])
        if time.monotonic() >= deadline:
            fix = "the request stays in force; see: diloco status"
            raise InputError([Problem("N", None, f"not done after {seconds:.0f} s", fix)])
        time.sleep(POLL_S)
