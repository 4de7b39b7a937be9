"""`diloco compare RECIPE`: train a recipe, and conventionally by Ray Train, and set both side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from orchestrator.cli.errors import CHECK_FAILED, apart, heard_or_not, reported
from orchestrator.cli.options import AsJson, Overrides, RecipeFile
from orchestrator.cli.progress import Bars
from orchestrator.cli.recipes import prepare
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.store.run_store import RUNS, RunStore, alone
from orchestrator.store.status_text import number

if TYPE_CHECKING:
    from orchestrator.compare.runs import ComparedRun

RESULT, LOCK = "compare.json", "compare.lock"


def compare(
    recipe: RecipeFile,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="For MODE and compare.json [runs/NAME-compare].")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(envvar="RAY_ADDRESS", help="A Ray cluster whose nodes share --out; without one, local ones."),
    ] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Train a recipe, and conventionally by Ray Train, and set both side by side; the same command continues."""
    with heard_or_not(), reported(as_json):
        from orchestrator.compare import comparison, runs
        from orchestrator.compare.modes import unfit

        with apart(as_json):
            resolved = runs.in_tokens(prepare(recipe, overrides, further=unfit))
            folder = out or RUNS / f"{resolved.name}-compare"
            all_runs = runs.planned(resolved, folder)
        store = RunStore(folder)
        with ExitStack() as held:
            try:
                store.create()
                held.enter_context(alone(store.path(LOCK)))
            except OSError as error:
                fix = "wait until another command has ended, or give another --out"
                raise InputError([Problem("--out", str(folder), f"cannot be used: {error}", fix)]) from error
            _train([run for run in all_runs if not run.finished], as_json, address)
        found = {run.mode: run.outcome() for run in all_runs}
        result = comparison.compared(found)
        with apart(as_json):
            ring = runs.ideal_ring(resolved)
        told = comparison.as_json(result, str(folder), ring) | {"name": resolved.name}
        store.write_json(RESULT, told)
        if as_json:
            typer.echo(json.dumps(told))
        else:
            for table in comparison.tables(result, ring):
                Console().print(table)
            typer.echo(comparison.sentence(result))
            typer.echo(f"{folder / RESULT}; the runs are beside it")
        failed = [run for run in all_runs if not found[run.mode].ok]
        for run in failed:
            typer.echo(f"warning: {run.store.root} is NOT OK: {runs.reason(run)}", err=True)
        if failed:
            raise typer.Exit(CHECK_FAILED)


# ------------------------------------------------------------------ training


def _train(waiting: Sequence[ComparedRun], as_json: bool, address: str | None) -> None:
    from orchestrator.compare import runs

    newest: dict[Path, float] = {}  # held-out loss, by the run's folder

    def show(run: ComparedRun, news: Mapping[str, Any]) -> None:
        if isinstance(news["eval_loss"], float):
            newest[run.store.root] = news["eval_loss"]
        words = f"held-out loss {number(newest.get(run.store.root), 4)}"
        bars.show(run.mode, news["progress"], 1.0, words)

    with Bars() as bars, apart(as_json):
        for run in waiting:
            runs.train(run, show, address)
            show(run, {"progress": 1.0, "eval_loss": None})
