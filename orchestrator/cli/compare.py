"""`diloco compare RECIPE`: train a recipe in several ways, and set them side by side."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console

from orchestrator.cli.errors import CHECK_FAILED, apart, heard_or_not, reported
from orchestrator.cli.options import AsJson, Overrides, RecipeFile
from orchestrator.cli.progress import Bars
from orchestrator.cli.recipes import prepare
from orchestrator.recipe.config import ChaosConfig, Recipe
from orchestrator.recipe.problems import InputError, Problem, explain
from orchestrator.store.run_store import RUNS, RunStore, alone
from orchestrator.store.status_text import number

if TYPE_CHECKING:
    from orchestrator.cli.app import Wiring
    from orchestrator.compare.modes import Case
    from orchestrator.compare.runs import ComparedRun

RESULT, LOCK = "compare.json", "compare.lock"
OWN_PLAN = "recipe"
SEEDS_MOST = 1000


def compare(
    context: typer.Context,
    recipe: RecipeFile,
    modes: Annotated[
        str, typer.Option(help="Of decoupled, data_parallel, diloco, streaming.")
    ] = "decoupled,data_parallel",
    seeds: Annotated[str, typer.Option(help="How many, from the recipe's on; or a list, such as 0,1,5.")] = "1",
    chaos: Annotated[
        str | None,
        typer.Option(metavar="PLAN", help="Also train under faults: a TOML file with [chaos], or `recipe`: its own."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="For MODE/seed-N and compare.json [runs/NAME-compare].")
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
            plan = _plan(chaos, resolved)
            resolved = runs.in_tokens(resolved)
            numbers = seeds_of(seeds, resolved.seed)
            folder = out or RUNS / f"{resolved.name}-compare"
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
            _train([run for run in all_runs if not run.finished], context.obj, as_json)
        found: dict[Case, list[Any]] = {}
        for run in all_runs:
            found.setdefault(run.case, []).append(run.outcome())
        result = comparison.compared(found, base)
        told = comparison.as_json(result, str(folder)) | {"name": resolved.name}
        store.write_json(RESULT, told)
        if as_json:
            typer.echo(json.dumps(told))
        else:
            for table in comparison.tables(result):
                Console().print(table)
            typer.echo(comparison.sentence(result))
            typer.echo(f"{folder / RESULT}; the runs are beside it, in MODE/seed-N")
        failed = [run for run in all_runs if not run.outcome().ok]
        for run in failed:
            typer.echo(f"warning: {run.store.root} is NOT OK: {runs.reason(run)}", err=True)
        if failed:
            raise typer.Exit(CHECK_FAILED)


def seeds_of(text: str, first: int) -> list[int]:
    if not re.fullmatch(r"\d+(,\d+)*", text) or text == "0":
        raise InputError([Problem("--seeds", text, "must be a number above 0, or a list", "write 5, or 0,1,2")])
    numbers = [int(part) for part in text.split(",")]
    if len(numbers) == 1:
        numbers = list(range(first, first + min(numbers[0], SEEDS_MOST + 1)))
    if len(numbers) > SEEDS_MOST:
        raise InputError([Problem("--seeds", text, f"are more than {SEEDS_MOST}", "give fewer")])
    return list(dict.fromkeys(numbers))


def _plan(chaos: str | None, recipe: Recipe) -> ChaosConfig | None:
    """The faults of a plan. Raises InputError for one that cannot be read, or has none."""
    if chaos is None:
        return None
    if chaos == OWN_PLAN:
        plan = recipe.chaos
    else:
        try:
            with open(chaos, "rb") as file:
                tables = tomllib.load(file)
            plan = ChaosConfig.model_validate(tables.get("chaos", {}))
        except OSError as error:
            fix = f"give a TOML file with a [chaos] table, or `{OWN_PLAN}` for the recipe's own"
            raise InputError([Problem("--chaos", chaos, f"cannot be read: {error.strerror}", fix)]) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InputError([Problem("--chaos", chaos, f"is not TOML: {error}", "correct that line")]) from error
        except ValidationError as error:
            raise InputError(list(explain(error, ChaosConfig, "chaos."))) from error
    if not plan.active:
        fix = "write [[chaos.faults]] or chaos.mtbf_s"
        raise InputError([Problem("--chaos", chaos, "has no faults", fix)])
    return plan


# ------------------------------------------------------------------ training


def _train(waiting: Sequence[ComparedRun], by: Wiring, as_json: bool) -> None:
    from orchestrator.compare import runs

    newest: dict[Path, float] = {}  # held-out loss, by the run's folder

    def show(run: ComparedRun, news: Mapping[str, Any]) -> None:
        if isinstance(news["eval_loss"], float):
            newest[run.store.root] = news["eval_loss"]
        words = f"held-out loss {number(newest.get(run.store.root), 4)}"
        bars.show(f"{run.case.name}, seed {run.recipe.seed}", news["progress"], 1.0, words)

    with Bars() as bars, apart(as_json):
        for run in waiting:
            runs.train(run, by.starter, by.faults, show)
            show(run, {"progress": 1.0, "eval_loss": None})
