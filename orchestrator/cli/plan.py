"""`diloco plan RECIPE`: what a run needs and sends, and whether it fits, before anything starts."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from rich.console import Console

from orchestrator.cli.errors import UNFIT, apart, reported
from orchestrator.cli.options import AsJson, Cluster, Overrides, RecipeFile
from orchestrator.cli.recipes import prepare, store_of
from orchestrator.cli.terminal import on_stdout
from orchestrator.planner.sizing import nodes as known
from orchestrator.planner.sizing.nodes import Node
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.recipe.resources import most_resources
from orchestrator.store.run_store import RunStore

# File systems that several hosts can mount; FUSE's are named fuse.WHAT.
NETWORK = ("nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "9p", "afs", "fuse.")


def plan(
    recipe: RecipeFile,
    address: Cluster = None,
    overrides: Overrides = None,
    node: Annotated[
        list[str] | None,
        typer.Option("--node", metavar="KEY=VALUE,...", help=f"Declare a node, e.g. {known.EXAMPLE}; repeat."),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Every part of it, however long.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a run needs, sends and survives, and whether it fits; exit code 6 if not."""
    with reported(as_json):
        with apart(as_json), Console(stderr=True).status("planning"):
            resolved = prepare(recipe, overrides)
            store = store_of(resolved)
            shapes = _shapes(resolved)
            declared = known.from_text(node or [])
            from orchestrator.planner.make import make
            from orchestrator.planner.plan import as_json as plan_json

            plan_context, busy = _plan_context(resolved, store, declared, address)
            made = make(resolved, shapes, plan_context, busy)
        given = [str(recipe), *(part for item in overrides or [] for part in ("--set", item))]
        commands = _commands(given, store, address, made)
        if as_json:
            typer.echo(json.dumps(plan_json(made, commands), allow_nan=False))
        else:
            from orchestrator.cli.planview import show

            show(made, commands, on_stdout(), full)
        if not made.ok:
            raise typer.Exit(UNFIT)


def _shapes(recipe: Recipe) -> Any:
    """The task's shapes. An exception of the task's own code becomes an InputError."""
    from orchestrator.planner.sizing.model_sizes import shapes_of

    try:
        return shapes_of(recipe)
    except Exception as error:
        message = f"its shapes cannot be found: {type(error).__name__}: {error}"
        raise InputError([Problem("task", recipe.task, message, "correct the task's own code")]) from error


# ------------------------------------------------------------------ where


def _plan_context(
    recipe: Recipe, store: RunStore, declared: Sequence[Node], address: str | None
) -> tuple[Any, list[Problem]]:
    """The context, with the declared nodes, or else the cluster's, or else this machine; and warnings about them."""
    from orchestrator.planner.plan import PlanContext

    busy: list[Problem] = []
    if declared:
        source, there = "declared", list(declared)
    elif address:
        source, (there, busy) = "cluster", _cluster(address)
    else:
        source, there = "this machine", [known.this_machine(_wanted(recipe))]
    place: dict[str, Any] = {"source": source, "store": str(store.root), "shared_store": on_network(store.root)}
    return PlanContext(nodes=there, **place), busy


def _wanted(recipe: Recipe) -> dict[str, float]:
    """Resources that a local Ray is started with."""
    from orchestrator.planner.sizing.capacity import AGENT_CPUS, SERVICE_CPUS

    asked = most_resources(recipe)
    return asked | {"CPU": asked.get("CPU", 0.0) + sum(SERVICE_CPUS.values()) + AGENT_CPUS}


def _cluster(address: str) -> tuple[list[Node], list[Problem]]:
    """A cluster's nodes, counted as empty, and a warning where something runs on them."""
    import ray

    from orchestrator.runtime.launch import connect

    connect(address, "diloco-plan")
    try:
        there, free, whole = known.from_ray(ray.nodes()), ray.available_resources(), ray.cluster_resources()
    finally:
        ray.shutdown()
    taken = {kind: whole[kind] - free.get(kind, 0.0) for kind in ("CPU", "GPU", "TPU") if kind in whole}
    used = ", ".join(f"{amount:g} {kind}" for kind, amount in taken.items() if amount > 1e-4)
    if not used:
        return there, []
    message = f"{used} are taken there by something else; the plan counts nodes as empty"
    return there, [Problem("address", address, message, "wait for it to end, or declare what is left with --node")]


def on_network(folder: Path) -> bool:
    """True if a folder, or the nearest one above it that exists, is on a file system that other hosts can mount."""
    mounts = {part.mountpoint: part.fstype for part in psutil.disk_partitions(all=True)}
    path = folder.resolve()
    kind = next((mounts[str(above)] for above in (path, *path.parents) if str(above) in mounts), "")
    return kind.startswith(NETWORK)


# ------------------------------------------------------------------ what next


def _commands(given: Sequence[str], store: RunStore, address: str | None, made: Any) -> list[str]:
    """The next commands; none if the plan cannot run. `given`: the recipe and its overrides."""
    if not made.ok:
        return []
    commands = [["diloco", "run", *given, *(["--address", address] if address else [])]]
    commands += [["diloco", command, store.name] for command in ("status", "check", "report")]
    return [shlex.join(command) for command in commands]
