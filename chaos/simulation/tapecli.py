"""`diloco chaos tape`: a run's folder without the run, for `diloco replay` to train by."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import tapes
from orchestrator.cli.errors import BROKEN_PROMISE, apart, as_record, reported
from orchestrator.cli.run import checked
from orchestrator.cli.tapes import counted
from orchestrator.recipe.problems import InputError, Problem, nearest
from orchestrator.store.run_store import RunStore

if TYPE_CHECKING:
    from chaos.simulation.profile import Options
    from orchestrator.recipe.config import Recipe

STARTUP_STEPS = 10.0


def tape(
    recipe: Annotated[Path, typer.Argument(help="A TOML file, as for diloco run.")],
    folder: Annotated[str, typer.Argument(help="Where the run's folder is to be; diloco replay takes it.")],
    seed: Annotated[int | None, typer.Option(min=0, help="Of times and faults; by default the recipe's.")] = None,
    profile: Annotated[str, typer.Option(help="Faults beside the recipe's own, as in sim; calm has none.")] = "calm",
    step_s: Annotated[float, typer.Option(min=1e-6, help="Virtual seconds of a step, at slowdown 1.")] = 1.0,
    startup_s: Annotated[
        float | None, typer.Option(min=0.0, help="Virtual seconds until a learner that starts attaches [10 steps].")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override, e.g. sync.quorum=2; KEY= takes one out."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Answer in JSON.")] = False,
) -> None:
    """Simulate a recipe, and write the log that such a run would have. Needs no cluster, and computes nothing."""
    with reported(as_json):
        store = RunStore(folder)
        startup_s = STARTUP_STEPS * step_s if startup_s is None else startup_s
        found = [*tapes.of_folder(store), *_of_profile(profile), *_of_times(step_s=step_s, startup_s=startup_s)]
        with apart(as_json):
            resolved = checked(recipe, overrides or [], Path.cwd(), lambda wanted: [*found, *_unsimulated(wanted)])
            options = _options(resolved, seed, profile, step_s, startup_s)
        from chaos.simulation.tape import Broken, record
        from orchestrator.simulation.tape_log import write

        try:
            made = record(resolved, options)
            summary = write(resolved, made.events, made.verdicts, store)
        except Broken as error:
            message = f"the simulated run broke a promise, and no tape is written: {error}"
            typer.echo(f"error: {message}", err=True)
            if as_json:
                typer.echo(as_record(BROKEN_PROMISE, "broken", message))
            raise typer.Exit(BROKEN_PROMISE) from None
        except OSError as error:
            fix = "give a folder that can be made, where there is room"
            raise InputError([Problem("FOLDER", str(store.root), f"cannot be written: {error}", fix)]) from error
        told = tapes.told(resolved, store, options.seed, made.virtual_s, summary)
        told |= {"profile": options.profile, "fired": made.fault_counts if options.faults else {}}
        typer.echo(json.dumps(told) if as_json else words(told))


def _unsimulated(recipe: Recipe) -> list[Problem]:
    from chaos.simulation.recipes import problems

    return problems(recipe)


def _of_profile(profile: str) -> Iterator[Problem]:
    from chaos.simulation.profile import PROFILES

    if profile not in PROFILES:
        near = nearest(profile, PROFILES)
        fix = f'did you mean "{near}"?' if near else "choose one of them"
        yield Problem("--profile", profile, f"allowed are {', '.join(PROFILES)}", fix)


def _of_times(**seconds: float) -> Iterator[Problem]:
    for name, value in seconds.items():
        if not math.isfinite(value):
            yield Problem(f"--{name.replace('_', '-')}", value, "is no number of seconds", "give, for example, 1.0")


def _options(recipe: Recipe, seed: int | None, profile: str, step_s: float, startup_s: float) -> Options:
    """The task tells what it deals into, and what a step is worth."""
    from chaos.simulation.recipes import options
    from orchestrator.recipe.validation import build_task, host_only

    task = build_task(recipe)
    with host_only():
        from learners.training.trainer import deal
    seed = recipe.seed if seed is None else seed
    dealt = deal(task, recipe.sync)
    return options(recipe, dealt, task.tokens, seed=seed, profile=profile, step_s=step_s, startup_s=startup_s)


def words(told: Mapping[str, Any]) -> str:
    """For people."""
    faults = [*counted("the recipe's faults", told["injected"]), *counted("what all faults did", told["fired"])]
    return tapes.words(told, f"and profile {told['profile']}", *faults)
