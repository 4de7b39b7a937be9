"""`diloco simulate tape`: the log of a run by a fleet that fails, for `diloco replay` to train by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from orchestrator.cli import tapes
from orchestrator.cli.errors import BROKEN_PROMISE, apart, as_record, reported
from orchestrator.cli.lists import bounded
from orchestrator.cli.run import checked
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.store.run_store import RunStore

STEP_S, STEP_S_MOST = 1.0, 86_400.0


def tape(
    recipe: Annotated[Path, typer.Argument(help="A TOML file, as for diloco run.")],
    folder: Annotated[str, typer.Argument(help="Where the run's folder is to be; diloco replay takes it.")],
    seed: Annotated[int | None, typer.Option(min=0, help="Of times and failures; by default the recipe's.")] = None,
    chips: Annotated[
        int | None, typer.Option(min=1, help="Of the whole fleet, as for simulate goodput; default: units of [fleet].")
    ] = None,
    step_seconds: Annotated[
        float | None, typer.Option(min=1e-6, help="Of a step at slowdown 1 [fleet.step_s, or 1 s].")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override, e.g. fleet.mtbf_hours=0.5; KEY= takes one out."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Answer in JSON.")] = False,
) -> None:
    """Simulate a recipe's fleet under failures, and write the log that such a run would have. Computes nothing."""
    with reported(as_json):
        store = RunStore(folder)
        found = [*tapes.of_folder(store), *bounded({"--step-seconds": (step_seconds or STEP_S, STEP_S_MOST)})]
        with apart(as_json):
            resolved = checked(recipe, overrides or [], Path.cwd(), lambda wanted: found)
            if resolved.sync.overlap == "strict":
                fix = 'give --set sync.overlap="free"'
                raise InputError([Problem("sync.overlap", "strict", "lock-step runs leave no tape of a fleet", fix)])
            from orchestrator.planner.sizing.model_sizes import shapes_of
            from orchestrator.recipe.validation import host_only

            with host_only():
                shapes = shapes_of(resolved)
        from orchestrator.planner.fleet.tape import record
        from orchestrator.simulation.tape_log import write

        step_s = step_seconds or resolved.fleet.step_s or STEP_S
        seed = resolved.seed if seed is None else seed
        if resolved.chaos.active:
            words = "warning: faults of [chaos] are not in this tape: diloco chaos tape has them, and no [fleet]"
            typer.echo(words, err=True)
        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("simulating", total=1.0)
            made = record(resolved, shapes, step_s, seed, chips, lambda share: bar.update(task, completed=share))
        if broken := [f"{each.name}: {each.reason}" for each in made.verdicts if each.status == "violated"]:
            message = f"the simulated run broke a promise, and no tape is written: {'; '.join(broken)}"
            typer.echo(f"error: {message}", err=True)
            if as_json:
                typer.echo(as_record(BROKEN_PROMISE, "broken", message))
            raise typer.Exit(BROKEN_PROMISE)
        try:
            summary = write(resolved, made.events, made.verdicts, store)
        except OSError as error:
            fix = "give a folder that can be made, where there is room"
            raise InputError([Problem("FOLDER", str(store.root), f"cannot be written: {error}", fix)]) from error
        told = tapes.told(resolved, store, seed, made.outcome.seconds, summary)
        told |= {"goodput": made.outcome.goodput, "uptime": made.outcome.uptime, "chips": chips}
        how = f"and {chips:,} chips" if chips is not None else "and units that fail"
        shares = f"  goodput {made.outcome.goodput:.1%}, uptime {made.outcome.uptime:.1%}"
        typer.echo(json.dumps(told) if as_json else tapes.words(told, how, shares))
