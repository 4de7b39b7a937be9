"""Requests to a running job, which its orchestrator finds in the run's store: to stop, to scale a pool, to checkpoint.

The commands and the live page make them. Each raises InputError for what cannot be done.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.lifecycle.pools import limits, request_file
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.problems import InputError, Problem, nearest
from orchestrator.store import checkpoints, watch
from orchestrator.store import status_text as words
from orchestrator.store.readers import CLUSTER_FILE, object_of, recipe_of, status_of
from orchestrator.store.run_store import RunStore

STOP_FILE = "stop"  # its presence requests a stop


def stop(store: RunStore, reason: str) -> str:
    """Ask the run to stop; the state in which it has ended already, and then nothing is asked."""
    state = words.part(status_of(store), "run").get("state")
    if state in words.ENDED:
        return str(state)
    store.write_json(STOP_FILE, {"reason": reason, "at": time.time()})
    return ""


def scale(store: RunStore, pool: str, learners: int) -> int | None:
    """Ask for another number of learners in a pool; returns the number before."""
    status = status_of(store)
    require_going_on(store, status)
    pools = words.part(status, "run").get("pools", {})
    local = bool((object_of(store, CLUSTER_FILE) or {}).get("token_path"))
    if found := list(problems(recipe_of(store), pools, pool, learners, local)):
        raise InputError(found)
    store.write_json(request_file(pool), {"learners": learners, "at": time.time()})
    before: int | None = pools.get(pool)
    return before


def checkpoint(store: RunStore) -> None:
    """Ask for a checkpoint."""
    require_going_on(store, status_of(store))
    store.write_json(checkpoints.REQUEST_FILE, {"at": time.time()})


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
