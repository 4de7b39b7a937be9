"""`diloco chaos`: inject a fault into a running job; simulate runs under faults."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from chaos.plans import KINDS
from chaos.simulation.cli import sim
from orchestrator.cli.errors import reported
from orchestrator.cli.options import AsJson, Run
from orchestrator.recipe.config import ON_RANKS, ON_SYNCER, SYNCER
from orchestrator.recipe.problems import InputError, Problem, nearest
from orchestrator.store.readers import located, recipe_of, status_of
from orchestrator.store.run_store import RunStore

app = typer.Typer(help="Inject faults into a running job, or simulate runs under faults.", no_args_is_help=True)
app.command("sim")(sim)

LASTING = sorted(kind for kind, row in KINDS.items() if row.lasts)
DELAYING = sorted(kind for kind, row in KINDS.items() if row.delays)
SECONDS, DELAYING_SECONDS, DELAY_S = 5.0, 10.0, 0.2


@app.command(
    help="Inject one fault into a running job.\n\n"
    + "\n\n".join(f"{kind}: {row.words}." for kind, row in KINDS.items())
    + "\n\nkill and freeze can strike the syncer too; the others, learners only."
)
def inject(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=", ".join(KINDS))],
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="A learner's name, e.g. learner-local-0, with /1 for its rank 1, or syncer."
        ),
    ],
    seconds: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            help=f"Until a {', '.join(LASTING)} heals by itself [{SECONDS:g}; "
            f"{' and '.join(DELAYING)}: {DELAYING_SECONDS:g}].",
        ),
    ] = None,
    delay: Annotated[
        float | None, typer.Option(min=0.001, help=f"Seconds for each step of slow and straggle [{DELAY_S:g}].")
    ] = None,
    run: Run = None,
    as_json: AsJson = False,
) -> None:
    with reported(as_json):
        told = strike(located(run), kind, target, seconds, delay)
        typer.echo(json.dumps({"result": told}) if as_json else told)
        if not told.startswith("injected"):
            raise typer.Exit(2)


def strike(store: RunStore, kind: str, target: str, seconds: float | None = None, delay: float | None = None) -> str:
    """Inject one fault into a running job, for the command and the live page; returns what happened in words.

    Raises InputError for a kind or a target that there is not, ConnectionError when the run is not there.
    """
    _check_kind(kind, seconds, delay)
    ranks = recipe_of(store).processes if kind in ON_RANKS else []
    known = list(dict.fromkeys([*_learners(store), *ranks, *([SYNCER] if kind in ON_SYNCER else [])]))
    if target not in known:
        near = nearest(target, known)
        fix = f'did you mean "{near}"?' if near else f"its learners are {', '.join(known)}"
        message = f"cannot be struck by {kind}" if target == SYNCER else "is not a learner of this run"
        raise InputError([Problem("TARGET", target, message, fix)])
    lasts_s = DELAYING_SECONDS if kind in DELAYING else SECONDS if kind in LASTING else 0.0
    delay_s = DELAY_S if kind in DELAYING else 0.0
    from chaos.actor import inject  # imports Ray

    return inject(store, kind, target, seconds or lasts_s, delay or delay_s)


def _check_kind(kind: str, seconds: float | None, delay: float | None) -> None:
    """Raises InputError for an unknown kind, or for an option that this kind has no use for."""
    if kind not in KINDS:
        near = nearest(kind, KINDS)
        fix = f'did you mean "{near}"?' if near else "choose one of them"
        raise InputError([Problem("KIND", kind, f"must be one of {', '.join(KINDS)}", fix)])
    for option, given, kinds in (("--seconds", seconds, LASTING), ("--delay", delay, DELAYING)):
        if given is not None and kind not in kinds:
            message = f"belongs to {', '.join(kinds)}"
            raise InputError([Problem(option, given, message, f"leave it out: {kind} has none")])


def _learners(store: RunStore) -> list[str]:
    """The recipe's, and those that have joined since."""
    joined = [row["name"] for row in status_of(store).get("learners") or []]
    return list(dict.fromkeys([*recipe_of(store).learners, *joined]))
