"""`diloco compare RECIPE`: train a recipe in several ways, and set them side by side."""

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
    from orchestrator.cli.app import Wiring
    from orchestrator.compare.modes import Case
    from orchestrator.compare.runs import ComparedRun

RESULT, LOCK = "compare.json", "compare.lock"


def compare(
    context: typer.Context,
    recipe: RecipeFile,
    modes: Annotated[str, typer.Option(help="Also diloco, streaming.")] = "decoupled,data_parallel",
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="How many, from the recipe's on.")] = 1,
    chaos: Annotated[bool, typer.Option("--chaos", help="Also train under the recipe's [chaos].")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="For MODE/seed-N and compare.json [runs/NAME-compare].")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(envvar="RAY_ADDRESS", help="A Ray cluster whose nodes share --out; without one, local ones."),
    ] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Train a recipe in several ways, and set them side by side; the same command continues."""
    with heard_or_not(), reported(as_json):
        from orchestrator.compare import comparison, runs
        from orchestrator.compare.modes import chosen, reference

        asked = chosen(modes)
        base = reference(asked)
        with apart(as_json):
            resolved = prepare(recipe, overrides)
            if chaos and not resolved.chaos.active:
                fix = "write [[chaos.faults]] or chaos.mtbf_s"
                raise InputError([Problem("--chaos", None, "the recipe's [chaos] has no faults", fix)])
            if address and chaos and any(mode.by_ray_train for mode in asked):
                fix = "leave out --chaos, or data_parallel in --modes"
                problem = "has ranks of Ray Train that the plan cannot strike: they are on other hosts"
                raise InputError([Problem("--address", address, problem, fix)])
            plan, resolved = resolved.chaos if chaos else None, runs.in_tokens(resolved)
            folder, numbers = out or RUNS / f"{resolved.name}-compare", range(resolved.seed, resolved.seed + seeds)
            all_runs = runs.planned(resolved, asked, numbers, folder, plan)
            if not resolved.eval.every:
                fix = "give the syncer steps between two held-out losses, some twenty for a run"
                raise InputError([Problem("eval.every", 0, "leaves nothing to compare but first and last losses", fix)])
        store = RunStore(folder)
        with ExitStack() as held:
            try:
                store.create()
                held.enter_context(alone(store.path(LOCK)))
            except OSError as error:
                fix = "wait until another command has ended, or give another --out"
                raise InputError([Problem("--out", str(folder), f"cannot be used: {error}", fix)]) from error
            _train([run for run in all_runs if not run.finished], context.obj, as_json, address)
        found: dict[Case, list[Any]] = {}
        for run in all_runs:
            found.setdefault(run.case, []).append(run.outcome())
        result = comparison.compared(found, base)
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
            typer.echo(f"{folder / RESULT}; the runs are beside it, in MODE/seed-N")
        failed = [run for run in all_runs if not run.outcome().ok]
        for run in failed:
            typer.echo(f"warning: {run.store.root} is NOT OK: {runs.reason(run)}", err=True)
        if failed:
            raise typer.Exit(CHECK_FAILED)


# ------------------------------------------------------------------ training


def _train(waiting: Sequence[ComparedRun], by: Wiring, as_json: bool, address: str | None) -> None:
    from orchestrator.compare import runs

    newest: dict[Path, float] = {}  # held-out loss, by the run's folder

    def show(run: ComparedRun, news: Mapping[str, Any]) -> None:
        if isinstance(news["eval_loss"], float):
            newest[run.store.root] = news["eval_loss"]
        words = f"held-out loss {number(newest.get(run.store.root), 4)}"
        bars.show(f"{run.case.name}, seed {run.recipe.seed}", news["progress"], 1.0, words)

    with Bars() as bars, apart(as_json):
        for run in waiting:
            runs.train(run, by.starter, by.faults, show, address)
            show(run, {"progress": 1.0, "eval_loss": None})
