"""`diloco chaos tape`: a run's folder without the run, for `diloco replay` to train by."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.errors import BROKEN_PROMISE, apart, as_record, reported
from orchestrator.cli.run import checked
from orchestrator.problems import InputError, Problem, nearest
from orchestrator.store import RunStore

if TYPE_CHECKING:
    from chaos.simulation.profile import Options
    from chaos.simulation.tape import Simulated
    from orchestrator.config import Recipe

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
        found = [*_of_folder(store), *_of_profile(profile), *_of_times(step_s=step_s, startup_s=startup_s)]
        with apart(as_json):
            resolved = checked(recipe, overrides or [], Path.cwd(), lambda wanted: [*found, *_unsimulated(wanted)])
            options = _options(resolved, seed, profile, step_s, startup_s)
        from chaos.simulation.tape import Broken, record
        from orchestrator.synthetic import write

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
        told = _told(resolved, options, made, summary, store)
        typer.echo(json.dumps(told) if as_json else words(told))


def _unsimulated(recipe: Recipe) -> list[Problem]:
    from chaos.simulation.recipes import problems

    return problems(recipe)


def _of_folder(store: RunStore) -> Iterator[Problem]:
    if not store.empty or store.root.is_file():
        yield Problem("FOLDER", str(store.root), "is there already, and not empty", "give another folder")


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
    from orchestrator.validation import build_task, host_only

    task = build_task(recipe)
    with host_only():
        from learners.trainer import deal
    seed = recipe.seed if seed is None else seed
    dealt = deal(task, recipe.sync)
    return options(recipe, dealt, task.tokens, seed=seed, profile=profile, step_s=step_s, startup_s=startup_s)


def _told(
    recipe: Recipe, options: Options, made: Simulated, summary: dict[str, Any], store: RunStore
) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "name": recipe.name,
        "folder": str(store.root),
        "config_hash": recipe.config_hash,
        "seed": options.seed,
        "profile": options.profile,
        "virtual_s": round(made.virtual_s, 3),
        "syncer_steps": summary["syncer_steps"],
        "commits": summary["commits"],
        "tokens": summary["tokens"],
        "participation": summary["participation"],
        "availability": summary["availability"],
        "injected": dict(Counter(fault["kind"] for fault in summary["faults"] if fault["injected"])),
        "fired": made.fired if options.faults else {},
    }


def words(told: dict[str, Any]) -> str:
    """The same for people."""
    share, tokens = told["participation"]["mean"], told["tokens"]
    lines = [
        f"{told['name']}: {told['commits']:,} commits in {told['syncer_steps']:,} syncer steps, simulated with seed "
        f"{told['seed']} and profile {told['profile']}",
        f"  {told['virtual_s']:,.0f} virtual seconds; {tokens['committed']:,} of {tokens['processed']:,} tokens "
        f"committed; {share:.1%} participation",
    ]
    for whose, faults in (("the recipe's faults", told["injected"]), ("what all faults did", told["fired"])):
        if faults:
            lines.append(f"  {whose}: {', '.join(f'{count} {kind}' for kind, count in sorted(faults.items()))}")
    return "\n".join([*lines, f"  train by it: diloco replay {told['folder']}"])
