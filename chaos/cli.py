"""`diloco chaos`: faults by hand, on a running job."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from orchestrator.cli.errors import reported
from orchestrator.cli.status import find
from orchestrator.problems import InputError, Problem, nearest
from orchestrator.store import RunStore
from orchestrator.stored import recipe_of, status_of

app = typer.Typer(help="Inject faults into a running job.", no_args_is_help=True)

Learner = Annotated[str, typer.Argument(help="The learner's name, e.g. learner-local-0.")]
Seconds = Annotated[float, typer.Option(min=0.1, help="For how long; then it heals by itself.")]
Delay = Annotated[float, typer.Option(min=0.001, help="Seconds of delay per step.")]
Name = Annotated[str | None, typer.Option(help="The run's name.")]
RunDir = Annotated[str | None, typer.Option(help="The run's store, instead of its name.")]
Json = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]


@app.command()
def kill(learner: Learner, name: Name = None, run_dir: RunDir = None, as_json: Json = False) -> None:
    """SIGKILL a learner's process."""
    _strike("kill", learner, name, run_dir, as_json)


@app.command()
def freeze(
    learner: Learner, seconds: Seconds = 5.0, name: Name = None, run_dir: RunDir = None, as_json: Json = False
) -> None:
    """SIGSTOP a learner's process for a while."""
    _strike("freeze", learner, name, run_dir, as_json, seconds)


@app.command()
def slow(
    learner: Learner,
    seconds: Seconds = 10.0,
    delay: Delay = 0.2,
    name: Name = None,
    run_dir: RunDir = None,
    as_json: Json = False,
) -> None:
    """Make every step of a learner last longer for a while."""
    _strike("slow", learner, name, run_dir, as_json, seconds, delay)


@app.command()
def straggle(
    learner: Learner,
    seconds: Seconds = 10.0,
    delay: Delay = 0.2,
    name: Name = None,
    run_dir: RunDir = None,
    as_json: Json = False,
) -> None:
    """Make some steps of a learner last much longer for a while; --delay is the average over all steps."""
    _strike("straggle", learner, name, run_dir, as_json, seconds, delay)


@app.command()
def link(
    learner: Learner, seconds: Seconds = 5.0, name: Name = None, run_dir: RunDir = None, as_json: Json = False
) -> None:
    """Let nothing to or from a learner through for a while; what is held back arrives late."""
    _strike("link", learner, name, run_dir, as_json, seconds)


@app.command()
def corrupt(
    learner: Learner, seconds: Seconds = 5.0, name: Name = None, run_dir: RunDir = None, as_json: Json = False
) -> None:
    """Flip one bit in everything that a learner contributes for a while."""
    _strike("corrupt", learner, name, run_dir, as_json, seconds)


@app.command()
def non_finite(learner: Learner, name: Name = None, run_dir: RunDir = None, as_json: Json = False) -> None:
    """Make a learner's parameters NaN; it has to start anew."""
    _strike("non_finite", learner, name, run_dir, as_json)


@app.command()
def wrong_config(learner: Learner, name: Name = None, run_dir: RunDir = None, as_json: Json = False) -> None:
    """Kill a learner and let it come back, once, with another recipe."""
    _strike("wrong_config", learner, name, run_dir, as_json)


def _strike(
    kind: str,
    learner: str,
    name: str | None,
    run_dir: str | None,
    as_json: bool,
    seconds: float = 0.0,
    delay_s: float = 0.0,
) -> None:
    with reported(as_json):
        store = find(name, run_dir)
        known = _learners(store)
        if learner not in known:
            near = nearest(learner, known)
            fix = f'did you mean "{near}"?' if near else f"its learners are {', '.join(known)}"
            raise InputError([Problem("LEARNER", learner, "is not a learner of this run", fix)])
        from chaos.live import strike  # Ray begins here

        told = strike(store, kind, learner, seconds, delay_s)
        typer.echo(json.dumps({"result": told}) if as_json else told)
        if not told.startswith("injected"):
            raise typer.Exit(2)


def _learners(store: RunStore) -> list[str]:
    """The recipe's, and those that have joined since."""
    joined = [row["name"] for row in status_of(store).get("learners") or []]
    return list(dict.fromkeys([*recipe_of(store).learners, *joined]))
