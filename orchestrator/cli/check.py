"""`diloco check RUN_DIR`: hold a run's log against every promise. Needs no cluster."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from orchestrator.cli.errors import BROKEN_PROMISE, reported
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.store.run_store import RunStore


def check(
    run_dir: Annotated[str, typer.Argument(help="The run's store, for example runs/demo.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Check every promise on a run's log; exit code 5 if one is broken, or could not be checked."""
    with reported(as_json):
        store = RunStore(run_dir)
        if not store.exists:
            problem = Problem("RUN_DIR", run_dir, "no such folder", "give a run's folder, for example runs/demo")
            raise InputError([problem])
        from orchestrator.accounting.verdicts import sound
        from orchestrator.checkers.suite import check_run

        verdicts = check_run(store.root)
        kept = sound(verdicts)
        if as_json:
            typer.echo(json.dumps({"ok": kept, "checks": [asdict(verdict) for verdict in verdicts]}))
        else:
            for verdict in verdicts:
                typer.echo(f"{verdict.status:8}  {verdict.name}: {verdict.claim}")
                if verdict.status != "pass":
                    typer.echo(f"          {verdict.reason}")
        if not kept:
            raise typer.Exit(BROKEN_PROMISE)  # what is unknown is not kept
