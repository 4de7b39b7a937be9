"""`diloco report`: write a run's report from its log, also while it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.errors import reported
from orchestrator.cli.options import AsJson, Name
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.report.write import RECIPE, write
from orchestrator.store.run_store import RunStore, known_runs


def report(
    run_dir: Annotated[str | None, typer.Argument(help="The run's store, for example runs/demo.")] = None,
    name: Name = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write here, and as .md beside it [report.html in the store].")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write report.html and report.md from a run's log as it is now."""
    with reported(as_json):
        store = _store(run_dir, name)
        _check_out(out)
        try:
            paths = [str(path) for path in write(store, out)]
        except ValueError as error:
            fix = "restore the file, or take the damaged line out of a copy of the folder and report on that"
            raise InputError([Problem("RUN_DIR", str(store.root), f"its log is damaged: {error}", fix)]) from error
        typer.echo(json.dumps({"written": paths}) if as_json else "\n".join(paths))


def _store(run_dir: str | None, name: str | None) -> RunStore:
    """The store that holds the log. Raises InputError, which names the known runs."""
    known = known_runs()
    fix = f"known runs: {', '.join(known)}" if known else "give a run's folder, for example runs/demo"
    if (run_dir is None) == (name is None):
        raise InputError([Problem("RUN_DIR", run_dir, "name one run, by its folder or by --name", fix)])
    store = RunStore(run_dir) if run_dir is not None else RunStore.named(str(name))
    given = ("RUN_DIR", run_dir) if run_dir is not None else ("--name", name)
    if not store.exists:
        raise InputError([Problem(*given, f"there is no folder {store.root}", fix)])
    if store.read_text(RECIPE) is None and not store.path("log").is_dir():
        raise InputError([Problem(*given, f"{store.root} holds no run: neither {RECIPE} nor a log", fix)])
    return store


def _check_out(out: Path | None) -> None:
    if out is None:
        return
    if out.suffix not in (".html", ".htm"):
        raise InputError([Problem("--out", str(out), "must end in .html", f"write --out {out}.html")])
    if not out.absolute().parent.is_dir():
        fix = f"create it: mkdir -p {out.absolute().parent}"
        raise InputError([Problem("--out", str(out), f"there is no folder {out.absolute().parent}", fix)])
