"""`diloco export RUN` and `diloco evaluate RUN`: trained parameters for other programs, and their losses.

Evaluated on all devices that JAX finds here, as a learner's step. Never on the learners' way: it reads files alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from orchestrator.cli.checkpoint import kept, unknown
from orchestrator.cli.errors import apart, reported
from orchestrator.cli.options import AsJson, Overrides, Run, Task
from orchestrator.cli.progress import Bars
from orchestrator.cli.recipes import import_from, permit
from orchestrator.recipe.config import EvalConfig, Recipe
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.recipe.toml_text import parse
from orchestrator.store.readers import located, recipe_of
from orchestrator.store.run_store import RunStore

if TYPE_CHECKING:
    from orchestrator.store.export import ExportedModel

NEWEST = "newest"


def export(
    run: Run = None,
    out: Annotated[Path | None, typer.Option(help="A file or folder [model.safetensors, or model].")] = None,
    form: Annotated[
        Literal["safetensors", "huggingface"], typer.Option("--format", help="One file; a folder for transformers.")
    ] = "safetensors",
    checkpoint: Annotated[str | None, typer.Option(metavar="N|newest", help="Not the final parameters.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write a run's parameters for other programs, and read them back."""
    with reported(as_json):
        store = located(run)
        from orchestrator.store import export as files

        model = files.of_run(store) if checkpoint is None else of_checkpoint(store, checkpoint)
        out = out or Path("model.safetensors" if form == "safetensors" else "model")
        files.write(model, out, form)
        written = sum(each.stat().st_size for each in (out.rglob("*") if out.is_dir() else [out]) if each.is_file())
        elements = sum(values.size for values in model.tensors.values())
        if as_json:
            told = {"path": str(out), "tensors": len(model.tensors), "elements": elements, "metadata": model.metadata}
            typer.echo(json.dumps(told))
            return
        if model.left_out:
            names = ", ".join(sorted(model.left_out))
            typer.echo(f"left out: {names}; they are in no commit, and the task's init gives their initial values")
        typer.echo(
            f"wrote {out}: {len(model.tensors)} tensors, {elements:,} elements in float32, "
            f"{written:,} bytes; read back with digest {model.metadata['digest']}"
        )


def of_checkpoint(store: RunStore, wanted: str) -> ExportedModel:
    """Raises InputError for a checkpoint that is missing or damaged."""
    from orchestrator.store import checkpoints, export
    from outer.journal.framing import Damaged

    with kept(store) as where:
        numbers = [number for number in checkpoints.known(where) if checkpoints.complete(where, number)]
        if not numbers or not (wanted == NEWEST or (wanted.isdecimal() and int(wanted) in numbers)):
            raise InputError([unknown("--checkpoint", wanted, numbers)])
        snapshot = numbers[-1] if wanted == NEWEST else int(wanted)
        try:
            return export.of_checkpoint(store, where, snapshot)
        except Damaged as error:
            others = ", ".join(str(number) for number in numbers if number != snapshot) or "none"
            fix = f"give another: {others}; which are whole: diloco checkpoint list --verify"
            problem = Problem("--checkpoint", wanted, f"checkpoint {snapshot} is damaged: {error}", fix)
            raise InputError([problem]) from error


ALL = "all"
OWN = "held-out"


def evaluate(
    run: Run = None,
    checkpoint: Annotated[str | None, typer.Option(metavar="N|newest|all", help="Not the final parameters.")] = None,
    overrides: Overrides = None,
    task: Task = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate trained parameters on held-out samples: loss, and what else the task measures."""
    with reported(as_json):
        with apart(as_json):
            rows = [*_rows(located(run), checkpoint, overrides or [], task)]
        if as_json:
            typer.echo(json.dumps(rows))
        else:
            Console().print(_table(rows))


def _rows(
    store: RunStore, checkpoint: str | None, overrides: list[str], allowed: str | None
) -> Iterator[dict[str, Any]]:
    """A row for each model and set. Raises InputError."""
    from learners.training import tree  # JAX starts here: while a task is built it would see CPUs alone
    from learners.training.devices.device import device_taken
    from learners.training.evaluator import Measurement
    from learners.training.task import loss_unit

    recipe = recipe_of(store)
    asked = parse(recipe.canonical(), overrides).eval
    permit(recipe.task, allowed)
    import_from(Path.cwd())
    count = asked.sequences
    with Bars() as bars:
        sets: list[tuple[str, Measurement]] = []
        for name, model in _models(store, checkpoint):
            sets = sets or [(label, Measurement(task, None)) for label, task in _sets(recipe, asked)]
            for label, measurement in sets:
                task = measurement.task
                params = tree.parameters(task, model.tensors, recipe.seed, recipe.warm_start, measurement.shardings)
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


def _models(store: RunStore, checkpoint: str | None) -> Iterator[tuple[str, ExportedModel]]:
    from orchestrator.store import checkpoints
    from orchestrator.store import export as files

    if checkpoint is None:
        yield "final", files.of_run(store)
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
