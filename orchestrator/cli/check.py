"""`diloco check RUN`: check a run's log."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer

from orchestrator.cli.errors import CHECK_FAILED, reported
from orchestrator.cli.options import AsJson, Run
from orchestrator.cli.progress import Bars
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
