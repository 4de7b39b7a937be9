"""`diloco check-task`: check a user's own task before a run."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli.errors import CHECK_FAILED, apart, reported
from orchestrator.cli.options import AsJson, Overrides
from orchestrator.cli.recipes import import_from
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.tasks import build_task, host_only
from orchestrator.recipe.toml_text import load, parse
from orchestrator.store.compile_cache import compilation_cache

_FACTORY = re.compile(r"[\w.]+:[\w.]+")
# The rest of a recipe for a task that comes without one.
_AROUND: dict[str, Any] = {"name": "check", "pools": [{"name": "one"}], "budget": {"syncer_steps": 1000}}


def check_task(
    task: Annotated[str, typer.Argument(metavar="RECIPE|FACTORY", help="A TOML file, or package.module:factory.")],
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Check that a task does what learners and syncer rely on; exit code 5 if a check fails."""
    with reported(as_json), tempfile.TemporaryDirectory(prefix="diloco-check-") as folder:
        os.environ |= compilation_cache(Path(folder)) | os.environ  # before JAX is imported
        import_from(Path.cwd())
        with apart(as_json):
            alone = _FACTORY.fullmatch(task) and not Path(task).exists()
            recipe = parse(_AROUND | {"task": task}, overrides or []) if alone else load(task, overrides or [])
            build_task(recipe)
            findings = _findings(recipe, as_json)
        counts = Counter(finding.status for finding in findings)
        if as_json:
            told = {"task": recipe.task, "ok": not counts["fail"], "checks": [asdict(each) for each in findings]}
            typer.echo(json.dumps(told))
        else:
            words = {"pass": "passed", "warn": "to look at", "fail": "failed"}
            words |= {"skip": "skipped"} if counts["skip"] else {}
            typer.echo(f"{recipe.task}: {', '.join(f'{counts[each]} {word}' for each, word in words.items())}")
        if counts["fail"]:
            raise typer.Exit(CHECK_FAILED)


def _findings(recipe: Recipe, quiet: bool) -> list[Any]:
    """All findings; each is printed as it comes."""
    with host_only():
        from learners.conformance import checks, fingerprint
    batch_size, data = recipe.pools[0].batch_size, recipe.data.model_dump(mode="json")
    subject = checks.Subject(
        build=lambda: build_task(recipe),
        inner=recipe.inner,
        batch_size=batch_size,
        seed=recipe.seed,
        elsewhere=lambda: fingerprint.elsewhere(recipe.task, recipe.model, data, recipe.seed, batch_size),
    )
    findings = []
    for finding in checks.run_checks(subject):
        findings.append(finding)
        if not quiet:
            fix = f"\n      fix: {finding.fix}" if finding.fix else ""
            typer.echo(f"{finding.status:5} {finding.name}: {finding.message}{fix}")
    return findings
