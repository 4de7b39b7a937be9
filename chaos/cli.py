"""`diloco chaos`: faults by hand, on a running job; the simulator, and tapes that it writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated

import typer

from chaos.simulation.cli import sim
from chaos.simulation.tapecli import tape
from orchestrator.cli.errors import reported
from orchestrator.cli.status import find
from orchestrator.recipe.config import SYNCER
from orchestrator.recipe.problems import InputError, Problem, nearest
from orchestrator.store.readers import recipe_of, status_of
from orchestrator.store.run_store import RunStore

app = typer.Typer(
    help="Inject faults into a running job; run the simulator, or have it write a tape.", no_args_is_help=True
)
app.command("sim")(sim)
app.command("tape")(tape)

Command = Callable[..., None]
Learner = Annotated[str, typer.Argument(help="The learner's name, e.g. learner-local-0; kill and freeze: or syncer.")]
Seconds = Annotated[float, typer.Option(min=0.1, help="For how long; then it heals by itself.")]
Delay = Annotated[float, typer.Option(min=0.001, help="Seconds of delay per step.")]
Name = Annotated[str | None, typer.Option(help="The run's name.")]
RunDir = Annotated[str | None, typer.Option(help="The run's store, instead of its name.")]
Json = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]


# By kind: what each does, to whoever reads --help.
AT_ONCE = {
    "kill": "SIGKILL a learner's process, or the syncer's.",
    "non_finite": "Make a learner's parameters NaN; it has to start anew.",
    "wrong_config": "Kill a learner and let it come back, once, with another recipe.",
}
FOR_A_WHILE = {
    "freeze": "SIGSTOP a learner's process for a while, or the syncer's.",
    "link": "Let nothing to or from a learner through for a while; what is held back arrives late.",
    "corrupt": "Flip one bit in everything that a learner contributes for a while.",
}
DELAYING = {
    "slow": "Make every step of a learner last longer for a while.",
    "straggle": "Make some steps of a learner last much longer for a while; --delay is the average over all steps.",
}


def _at_once(kind: str) -> Command:
    def command(learner: Learner, name: Name = None, run_dir: RunDir = None, as_json: Json = False) -> None:
        _strike(kind, learner, name, run_dir, as_json)

    return command


def _for_a_while(kind: str) -> Command:
    def command(
        learner: Learner, seconds: Seconds = 5.0, name: Name = None, run_dir: RunDir = None, as_json: Json = False
    ) -> None:
        _strike(kind, learner, name, run_dir, as_json, seconds)

    return command


def _delaying(kind: str) -> Command:
    def command(
        learner: Learner,
        seconds: Seconds = 10.0,
        delay: Delay = 0.2,
        name: Name = None,
        run_dir: RunDir = None,
        as_json: Json = False,
    ) -> None:
        _strike(kind, learner, name, run_dir, as_json, seconds, delay)

    return command


for make, kinds in ((_at_once, AT_ONCE), (_for_a_while, FOR_A_WHILE), (_delaying, DELAYING)):
    for each, words in kinds.items():
        app.command(each.replace("_", "-"), help=words)(make(each))


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
        known = [*_learners(store), *([SYNCER] if kind in ("kill", "freeze") else [])]
        if learner not in known:
            near = nearest(learner, known)
            fix = f'did you mean "{near}"?' if near else f"its learners are {', '.join(known)}"
            raise InputError([Problem("LEARNER", learner, "is not a learner of this run", fix)])
        from chaos.actor import strike  # imports Ray

        told = strike(store, kind, learner, seconds, delay_s)
        typer.echo(json.dumps({"result": told}) if as_json else told)
        if not told.startswith("injected"):
            raise typer.Exit(2)


def _learners(store: RunStore) -> list[str]:
    """The recipe's, and those that have joined since."""
    joined = [row["name"] for row in status_of(store).get("learners") or []]
    return list(dict.fromkeys([*recipe_of(store).learners, *joined]))
