"""`diloco tape RECIPE FOLDER`: simulate a recipe's run and write its log, for `diloco replay` to train by.

Two simulators can do it. The planner's fleet has hardware that fails and is replaced, by the recipe's [fleet]. Chaos's
world has the recipe's [chaos] faults and those of a profile; the composition root hands it in.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.progress import Progress

from orchestrator.accounting.verdicts import Verdict
from orchestrator.cli.errors import CHECK_FAILED, apart, as_record, reported
from orchestrator.cli.options import AsJson, Overrides
from orchestrator.cli.recipes import prepare
from orchestrator.eventlog.events import Event
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.store.run_store import RunStore

STEP_S, STEP_S_MOST = 1.0, 86_400.0
STARTUP_STEPS = 10.0


class TapeUnsound(Exception):
    """The simulated run failed a check: a machine, or the simulator, is wrong."""


@dataclass(frozen=True)
class Tape:
    """A simulated run, before it is written."""

    events: list[Event]
    verdicts: list[Verdict]
    virtual_s: float
    how: str  # it was simulated, in words
    figures: dict[str, Any]  # for --json
    lines: list[str] = field(default_factory=list)  # the same for people


class Hostile(NamedTuple):
    """The simulator of chaos."""

    problems: Callable[[Recipe, str], list[Problem]]  # of a recipe and a profile: why it cannot be simulated
    record: Callable[[Recipe, int, str, float, float], Tape]  # recipe, seed, profile, step_s, startup_s


def tape(
    context: typer.Context,
    recipe: Annotated[Path, typer.Argument(help="A TOML file, as for diloco run.")],
    folder: Annotated[str, typer.Argument(help="The folder to write; diloco replay takes it.")],
    seed: Annotated[int | None, typer.Option(min=0, help="Of durations and faults [the recipe's].")] = None,
    step_seconds: Annotated[
        float | None, typer.Option(min=1e-6, help="Of a step at slowdown 1 [fleet.step_s, or 1 s].")
    ] = None,
    chips: Annotated[
        int | None, typer.Option(min=1, help="Of the whole fleet, in learners that lose slices [learners that die].")
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(help="Simulate [chaos] instead of [fleet], and the faults of a profile of chaos sim; calm: none."),
    ] = None,
    startup_seconds: Annotated[
        float | None, typer.Option(min=0.0, help="With --profile: until a starting learner attaches [10 steps].")
    ] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Simulate a recipe's run and write the log that it would have. Trains nothing."""
    with reported(as_json):
        store, hostile = RunStore(folder), context.obj.hostile
        found = [*_of_options(store, step_seconds, startup_seconds, chips, profile)]

        def further(wanted: Recipe) -> list[Problem]:
            return [*found, *(hostile.problems(wanted, profile) if profile is not None else _lock_step(wanted))]

        with apart(as_json):
            resolved = prepare(recipe, overrides, further=further)
        seed = resolved.seed if seed is None else seed
        step_s = step_seconds or resolved.fleet.step_s or STEP_S
        try:
            if profile is None:
                made = _of_fleet(resolved, seed, step_s, chips, as_json)
            else:
                startup_s = STARTUP_STEPS * step_s if startup_seconds is None else startup_seconds
                made = hostile.record(resolved, seed, profile, step_s, startup_s)
        except TapeUnsound as error:
            message = f"the simulated run failed a check, and no tape is written: {error}"
            typer.echo(f"error: {message}", err=True)
            if as_json:
                typer.echo(as_record(CHECK_FAILED, "broken", message))
            raise typer.Exit(CHECK_FAILED) from None
        told = _written(resolved, made, store, seed)
        typer.echo(json.dumps(told) if as_json else _words(told, made))


def _of_options(
    store: RunStore, step_s: float | None, startup_s: float | None, chips: int | None, profile: str | None
) -> Iterator[Problem]:
    if not store.empty or store.root.is_file():
        yield Problem("FOLDER", str(store.root), "is there already, and not empty", "give another folder")
    for option, value in (("--step-seconds", step_s), ("--startup-seconds", startup_s)):
        if value is not None and not value <= STEP_S_MOST:
            words = f"must be at most {STEP_S_MOST:,.12g}"
            yield Problem(option, value, words, f"write {option} {STEP_S_MOST:.12g} or less")
    if chips is not None:
        yield Problem("--chips", chips, "islands of chips are simulated by benchmarks/studies alone", "leave it out")
    if profile is None and startup_s is not None:
        yield Problem("--startup-seconds", startup_s, "belongs to --profile", "set fleet.start_s instead")


def _lock_step(recipe: Recipe) -> list[Problem]:
    if recipe.sync.overlap != "strict":
        return []
    fix = 'give --set sync.overlap="free"'
    return [Problem("sync.overlap", "strict", "lock-step runs leave no tape of a fleet", fix)]


def _of_fleet(recipe: Recipe, seed: int, step_s: float, chips: int | None, as_json: bool) -> Tape:
    """Hardware that fails, by the recipe's [fleet]."""
    from orchestrator.planner.fleet.tape import record
    from orchestrator.planner.sizing.model_sizes import shapes_of
    from orchestrator.recipe.tasks import host_only

    with apart(as_json), host_only():
        shapes = shapes_of(recipe)
    if recipe.chaos.active:
        typer.echo("warning: faults of [chaos] are not in this tape; --profile calm has them, and no [fleet]", err=True)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("simulating", total=1.0)
        made = record(recipe, shapes, step_s, seed, lambda share: bar.update(task, completed=share))
    if failed := [f"{each.name}: {each.reason}" for each in made.verdicts if each.status == "violated"]:
        raise TapeUnsound("; ".join(failed))
    outcome = made.outcome
    return Tape(
        made.events,
        made.verdicts,
        outcome.seconds,
        f"and {chips:,} chips" if chips is not None else "and learners that fail",
        {"goodput": outcome.goodput, "uptime": outcome.uptime, "chips": chips},
        [f"goodput {outcome.goodput:.1%}, uptime {outcome.uptime:.1%}"],
    )


# ------------------------------------------------------------------ the folder, and what is said of it


def _written(recipe: Recipe, made: Tape, store: RunStore, seed: int) -> dict[str, Any]:
    """What `--json` prints. Raises InputError where the folder cannot be written."""
    from orchestrator.simulation.tape_log import write

    try:
        summary = write(recipe, made.events, made.verdicts, store)
    except OSError as error:
        fix = "give a folder that can be made, where there is room"
        raise InputError([Problem("FOLDER", str(store.root), f"cannot be written: {error}", fix)]) from error
    return {
        "name": recipe.name,
        "folder": str(store.root),
        "config_hash": recipe.config_hash,
        "seed": seed,
        "virtual_s": round(made.virtual_s, 3),
        "syncer_steps": summary["syncer_steps"],
        "commits": summary["commits"],
        "tokens": summary["tokens"],
        "participation": summary["participation"],
        "availability": summary["availability"],
        "injected": dict(Counter(fault["kind"] for fault in summary["faults"] if fault["injected"])),
        **made.figures,
    }


def _words(told: Mapping[str, Any], made: Tape) -> str:
    share, tokens = told["participation"]["mean"], told["tokens"]
    lines = [
        f"{told['name']}: {told['commits']:,} commits in {told['syncer_steps']:,} syncer steps, simulated with "
        f"seed {told['seed']} {made.how}",
        f"  {told['virtual_s']:,.0f} virtual seconds; {tokens['committed']:,} of {tokens['processed']:,} tokens "
        f"committed; {share:.1%} participation",
        *([f"  the recipe's faults: {counted(told['injected'])}"] if told["injected"] else []),
        *(f"  {line}" for line in made.lines),
        f"  train by it: diloco replay {told['folder']}",
    ]
    return "\n".join(lines)


def counted(faults: Mapping[str, int]) -> str:
    """How often each kind of fault struck."""
    return ", ".join(f"{count} {kind}" for kind, count in sorted(faults.items()))
