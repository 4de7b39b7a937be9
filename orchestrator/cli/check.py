"""`diloco check RUN` and `diloco report RUN`: check a run's log, or write its report, also while it runs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.errors import CHECK_FAILED, reported
from orchestrator.cli.options import AsJson, Run
from orchestrator.cli.progress import Bars
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.report.write import write
from orchestrator.store.readers import located


def check(run: Run = None, as_json: AsJson = False) -> None:
    """Make every check on a run's log; exit code 5 if one fails, or cannot be made."""
    with reported(as_json):
        store = located(run, any_folder=True)
        from orchestrator.analysis.folder import check_run
        from orchestrator.analysis.verdicts import sound
        from orchestrator.report.headline import STATUS_WORDS

        with Bars() as bars:
            verdicts = check_run(
                store.root, lambda facts: bars.show("reading the log", facts, None, f"{facts:,} facts read")
            )
        passed = sound(verdicts)
        if as_json:
            typer.echo(json.dumps({"ok": passed, "checks": [asdict(verdict) for verdict in verdicts]}))
        else:
            for verdict in verdicts:
                typer.echo(f"{STATUS_WORDS[verdict.status]:13}  {verdict.name}: {verdict.claim}")
                if verdict.status != "pass":
                    typer.echo(f"{'':15}{verdict.reason}")
        if not passed:
            raise typer.Exit(CHECK_FAILED)


def report(
    run: Run = None,
    out: Annotated[Path | None, typer.Option("--out", help="Write here [report.html in the store].")] = None,
    as_json: AsJson = False,
) -> None:
    """Write report.html from a run's log as it is now."""
    with reported(as_json):
        store = located(run)
        try:
            path = str(write(store, out))
        except ValueError as error:
            fix = "restore the log as it was written; what is wrong with it: diloco check"
            raise InputError([Problem("RUN", str(store.root), f"its log is damaged: {error}", fix)]) from error
        typer.echo(json.dumps({"written": path}) if as_json else path)
