"""`diloco metrics RUN_DIR`: a run's metrics from its folder alone."""

from __future__ import annotations

import json

import typer

from orchestrator.cli.errors import reported
from orchestrator.cli.options import AsJson, RunFolder
from orchestrator.eventlog.events import finite
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.store.readers import recipe_of
from orchestrator.store.run_store import RunStore


def metrics(
    run_dir: RunFolder,
    as_json: AsJson = False,
) -> None:
    """Print a run's metrics as Prometheus text, under the names without Ray's prefix."""
    with reported(as_json):
        store = RunStore(run_dir)
        if not store.exists:
            problem = Problem("RUN_DIR", run_dir, "no such folder", "give a run's folder, for example runs/demo")
            raise InputError([problem])
        recipe = recipe_of(store)
        from orchestrator.telemetry.exposition import exposition_of

        exposition = exposition_of(store, recipe.name, recipe.sync.codec)
        typer.echo(json.dumps(finite(exposition.samples())) if as_json else exposition.text(), nl=as_json)
