"""`diloco export RUN`: a run's final parameters as one safetensors file. Needs no cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.errors import reported
from orchestrator.cli.status import located


def export(
    run: Annotated[str, typer.Argument(help="The run's folder or name, for example runs/demo.")],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("model.safetensors"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Write a run's final parameters as a safetensors file, and read it back."""
    with reported(as_json):
        store = located(run)
        from orchestrator import export as files

        model = files.of_run(store)
        files.write(model, out)
        elements = sum(values.size for values in model.tensors.values())
        if as_json:
            told = {"path": str(out), "tensors": len(model.tensors), "elements": elements, "metadata": model.metadata}
            typer.echo(json.dumps(told))
            return
        typer.echo(
            f"wrote {out}: {len(model.tensors)} tensors, {elements:,} elements in float32, "
            f"{out.stat().st_size:,} bytes; read back with digest {model.metadata['digest']}"
        )
