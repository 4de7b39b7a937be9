"""`diloco export RUN`: trained parameters for other programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from orchestrator.cli.checkpoint import kept
from orchestrator.cli.errors import reported
from orchestrator.cli.options import AsJson, Run
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.store.readers import located
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
            known = ", ".join(map(str, numbers))
            fix = f"there are {known}" if known else "there is none: diloco checkpoint now takes one"
            raise InputError([Problem("--checkpoint", wanted, "is no checkpoint of this run", fix)])
        snapshot = numbers[-1] if wanted == NEWEST else int(wanted)
        try:
            return export.of_checkpoint(store, where, snapshot)
        except Damaged as error:
            others = ", ".join(str(number) for number in numbers if number != snapshot) or "none"
            fix = f"give another: {others}; which are whole: diloco checkpoint list --verify"
            problem = Problem("--checkpoint", wanted, f"checkpoint {snapshot} is damaged: {error}", fix)
            raise InputError([problem]) from error
