"""`diloco evaluate RUN`: the held-out loss and the task's own metrics of trained parameters, after the fact.

On all devices that JAX finds here, as a learner's step. Never on the learners' way: it reads files alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from orchestrator.cli.checkpoint import kept
from orchestrator.cli.errors import apart, reported
from orchestrator.cli.export import NEWEST, of_checkpoint
from orchestrator.cli.options import AsJson, Run
from orchestrator.cli.progress import Bars
from orchestrator.cli.recipes import recipe_of_parameters
from orchestrator.recipe.config import EvalConfig, Recipe
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.recipe.toml_text import parse
from orchestrator.store.readers import located, recipe_of
from orchestrator.store.run_store import RunStore

if TYPE_CHECKING:
    from orchestrator.store.export import ExportedModel

ALL = "all"
# A recipe for its [eval] alone, where parameters come from a file.
_AROUND: dict[str, Any] = {"name": "file", "pools": [{"name": "a"}], "budget": {"syncer_steps": 100}}
OWN = "held-out"


def evaluate(
    run: Run = None,
    from_: Annotated[Path | None, typer.Option("--from", help="Instead of a run, a file of diloco export.")] = None,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="N|newest|all", help="Of checkpoints, instead of the final parameters.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override a key of [eval], such as eval.sequences or eval.sets."
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(metavar="FACTORY", help="The parameters' task, if it is not built in: allows its code to run."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate trained parameters on held-out samples: loss, and what else the task measures."""
    with reported(as_json):
        if run is not None and from_ is not None:
            raise InputError([Problem("--from", str(from_), "is given with a run", "leave out one of the two")])
        if from_ is not None and checkpoint is not None:
            raise InputError([Problem("--checkpoint", checkpoint, "belongs to a run", "leave out one of the two")])
        with apart(as_json):
            rows = [*_rows(None if from_ is not None else located(run), from_, checkpoint, overrides or [], task)]
        if as_json:
            typer.echo(json.dumps(rows))
        else:
            Console().print(_table(rows))


def _rows(
    store: RunStore | None,
    file: Path | None,
    checkpoint: str | None,
    overrides: list[str],
    allowed: str | None,
) -> Iterator[dict[str, Any]]:
    """A row for each model and set. Raises InputError."""
    from learners.training import tree  # JAX starts here: while a task is built it would see CPUs alone
    from learners.training.devices.device import device_taken
    from learners.training.evaluator import Measurement
    from learners.training.task import loss_unit

    base = _AROUND if store is None else recipe_of(store).canonical()
    asked = parse(base, overrides).eval
    count = asked.sequences
    with Bars() as bars:
        sets: list[tuple[str, Measurement]] = []
        for name, model in _models(store, file, checkpoint):
            if not sets:  # all are of one run, so of one task
                sets = [
                    (label, Measurement(task, None))
                    for label, task in _sets(recipe_of_parameters(model, allowed), asked)
                ]
            for label, measurement in sets:
                task = measurement.task
                params = tree.parameters(
                    task, model.tensors, model.task["seed"], model.warm_start, measurement.shardings
                )
                found = measurement.means(
                    params, count, asked.batch_size, partial(_show, bars, f"{name}: {label}", count)
                )
                yield {
                    "parameters": name,
                    "syncer_step": int(model.metadata["syncer_step"]),
                    "tokens_committed": tokens if (tokens := model.metadata["tokens"]) == "unknown" else int(tokens),
                    "set": label,
                    "samples": count,
                    "loss": found.pop("loss"),
                    "loss_unit": loss_unit(task),
                    "metrics": found,
                    "device": device_taken(1).device,
                }


def _show(bars: Bars, line: str, total: int, done: int) -> None:
    bars.show(line, done, total, f"{done:,} of {total:,} samples")


def _models(store: RunStore | None, file: Path | None, checkpoint: str | None) -> Iterator[tuple[str, ExportedModel]]:
    from orchestrator.store import checkpoints, export

    if store is None:
        assert file is not None
        yield file.name, export.of_file(file)
    elif checkpoint is None:
        yield "final", export.of_run(store)
    elif checkpoint != ALL:
        model = of_checkpoint(store, checkpoint)
        yield f"checkpoint {model.metadata['checkpoint']}", model
    else:
        with kept(store) as where:
            numbers = [number for number in checkpoints.known(where) if checkpoints.complete(where, number)]
        for number in [*map(str, numbers)] or [NEWEST]:  # without any, the same error as for the newest
            yield f"checkpoint {number}", of_checkpoint(store, number)


def _sets(recipe: Recipe, asked: EvalConfig) -> Iterator[tuple[str, Any]]:
    """The run's held-out samples, those of its further sets, each as the task that gives them."""
    from learners.training.data import corpus
    from orchestrator.recipe.tasks import build_task

    yield OWN, build_task(recipe)
    for name, data in recipe.model_copy(update={"eval": asked}).held_out_sets.items():
        try:
            corpus.check_beside(recipe.data, data)
        except ValueError as error:
            message, _, fix = str(error).rpartition("; ")
            raise InputError([Problem("eval.sets", name, message or fix, fix)]) from error
        yield name, build_task(recipe.model_copy(update={"data": data}))


def _table(rows: list[dict[str, Any]]) -> Table:
    metrics = list(dict.fromkeys(name for row in rows for name in row["metrics"]))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("parameters", "syncer step", "set", f"loss, {rows[0]['loss_unit']}", *metrics):
        table.add_column(title, justify="left" if title in ("parameters", "set") else "right", overflow="fold")
    for row in rows:
        others = (f"{row['metrics'][name]:.4f}" if name in row["metrics"] else "-" for name in metrics)
        table.add_row(row["parameters"], f"{row['syncer_step']:,}", row["set"], f"{row['loss']:.4f}", *others)
    return table
