"""`diloco chaos`: faults by hand, on a running job."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from orchestrator.cli.errors import reported
from orchestrator.cli.run import RECIPE_FILE
from orchestrator.cli.status import find
from orchestrator.problems import InputError, Problem, nearest
from orchestrator.recipes import load

app = typer.Typer(help="Inject faults into a running job.", no_args_is_help=True)

Learner = Annotated[str, typer.Argument(help="The learner's name, e.g. learner-local-0.")]
Name = Annotated[str | None, typer.Option(help="The run's name.")]
RunDir = Annotated[str | None, typer.Option(help="The run's store, instead of its name.")]
Json = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]


@app.command()
def kill(learner: Learner, name: Name = None, run_dir: RunDir = None, as_json: Json = False) -> None:
    """SIGKILL a learner's process."""
    _strike("kill", learner, 0.0, name, run_dir, as_json)


@app.command()
def freeze(
    learner: Learner,
    seconds: Annotated[float, typer.Option(min=0.1, help="For how long.")] = 5.0,
    name: Name = None,
    run_dir: RunDir = None,
    as_json: Json = False,
) -> None:
    """SIGSTOP a learner's process for a while."""
    _strike("freeze", learner, seconds, name, run_dir, as_json)


def _strike(kind: str, learner: str, seconds: float, name: str | None, run_dir: str | None, as_json: bool) -> None:
    with reported(as_json):
        store = find(name, run_dir)
        known = list(load(store.path(RECIPE_FILE)).learners)
        if learner not in known:
            near = nearest(learner, known)
            fix = f'did you mean "{near}"?' if near else f"its learners are {', '.join(known)}"
            raise InputError([Problem("LEARNER", learner, "is not a learner of this run", fix)])
        from chaos.live import strike  # Ray begins here

        told = strike(store, kind, learner, seconds)
        typer.echo(json.dumps({"result": told}) if as_json else told)
        if not told.startswith("injected"):
            raise typer.Exit(2)
