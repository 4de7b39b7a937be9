"""`diloco check RUN_DIR`: check a run's log."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer

from orchestrator.cli.errors import CHECK_FAILED, reported
from orchestrator.cli.options import AsJson, RunFolder
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.store.run_store import RunStore


def check(
    run_dir: RunFolder,
    as_json: AsJson = False,
) -> None:
    """Make every check on a run's log; exit code 5 if one fails, or cannot be made."""
    with reported(as_json):
        store = RunStore(run_dir)
        if not store.exists:
            problem = Problem("RUN_DIR", run_dir, "no such folder", "give a run's folder, for example runs/demo")
            raise InputError([problem])
        from orchestrator.accounting.verdicts import sound
        from orchestrator.checkers.suite import check_run
        from orchestrator.report.headline import STATUS_WORDS

        verdicts = check_run(store.root)
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
