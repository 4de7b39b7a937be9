"""`diloco study RECIPE`: train a recipe over seeds in lock-step on one device, and compare with another study."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from orchestrator.cli.errors import CHECK_FAILED, apart, reported
from orchestrator.cli.options import AsJson, Overrides
from orchestrator.cli.recipes import prepare
from orchestrator.recipe.config import ChaosConfig, Recipe
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.store.run_store import RUNS

if TYPE_CHECKING:
    from orchestrator.study.process import Job
    from orchestrator.study.results import Difference

SEEDS_MOST = 1000


def study(
    recipe: Annotated[Path, typer.Argument(help="A TOML file, as for diloco run.")],
    seeds: Annotated[str, typer.Option(help="How many, from the recipe's on; or a list, such as 0,1,5.")] = "1",
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="For a run's folder per seed [runs/NAME-study].")
    ] = None,
    against: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Another study: print paired differences of the losses.")
    ] = None,
    vmap: Annotated[
        bool | None,
        typer.Option(
            help="Step learners of one batch size as one program [on accelerators]. diloco replay refuses it."
        ),
    ] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Train a recipe over seeds in lock-step, without Ray, clocks or faults; the same command continues."""
    with reported(as_json):
        from orchestrator.study.process import train

        with apart(as_json):
            resolved = prepare(recipe, overrides, further=unfit_for_harness)
        if resolved.chaos.active:
            typer.echo("warning: faults of [chaos] do not strike in a study", err=True)
            resolved = resolved.model_copy(update={"chaos": ChaosConfig()})
        folder = out or RUNS / f"{resolved.name}-study"
        before = _rows(against)
        jobs, rows = _jobs(resolved, seeds_of(seeds, resolved.seed), folder, vmap)
        at_once = 1 if any(pool.accelerated for pool in resolved.pools) else min(len(jobs), len(cores_here()))
        with _Bars([job.recipe.seed for job in jobs], resolved.target_syncer_steps) as bars:
            rows += train(_pinned(jobs, at_once), max(1, at_once), lambda job, news: bars.show(job.recipe.seed, news))
        rows.sort(key=lambda row: int(row["seed"]))
        _tell(resolved, folder, rows, before, as_json)
        if not all(row["ok"] for row in rows):
            raise typer.Exit(CHECK_FAILED)


# ------------------------------------------------------------------ the input


def unfit_for_harness(recipe: Recipe) -> list[Problem]:
    """What a study cannot do: it steps each learner on one device."""
    fix = "set it to 1, or leave it out"
    return [
        Problem(f"pools.{index}.{name}", value, "is more than the one device of a study", fix)
        for index, pool in enumerate(recipe.pools)
        for name, value in (
            ("devices", pool.devices),
            ("model_parallel", pool.model_parallel),
            ("processes", pool.processes),
        )
        if (value or 1) > 1
    ]


def seeds_of(text: str, first: int) -> list[int]:
    if not re.fullmatch(r"\d+(,\d+)*", text) or text == "0":
        raise InputError([Problem("--seeds", text, "must be a number above 0, or a list", "write 5, or 0,1,2")])
    numbers = [int(part) for part in text.split(",")]
    if len(numbers) == 1:
        numbers = list(range(first, first + min(numbers[0], SEEDS_MOST + 1)))
    if len(numbers) > SEEDS_MOST:
        raise InputError([Problem("--seeds", text, f"are more than {SEEDS_MOST}", "give fewer")])
    return list(dict.fromkeys(numbers))


def _jobs(recipe: Recipe, seeds: Sequence[int], folder: Path, vmap: bool | None) -> tuple[list[Job], list[Any]]:
    """The seeds that are still to train, and the rows of the others. Raises InputError."""
    from orchestrator.study.process import Job
    from orchestrator.study.seed_run import finished_row

    jobs, rows, problems = [], [], []
    platform = next((pool.platform for pool in recipe.pools if pool.accelerated), "cpu")
    stacked = platform != "cpu" if vmap is None else vmap
    for seed in seeds:
        one = Recipe.model_validate(recipe.canonical() | {"seed": seed, "fleet": recipe.fleet})
        place = folder.absolute() / f"seed-{seed}"
        try:
            row = finished_row(place, one)
        except (OSError, ValueError) as error:
            problems.append(Problem("--out", str(place), str(error), "give another --out, or remove the folder"))
            continue
        if row is None:
            jobs.append(Job(one, place, stacked, platform, ()))
        else:
            rows.append(row)
    if problems:
        raise InputError(problems)
    return jobs, rows


def _pinned(jobs: Sequence[Job], at_once: int) -> list[Job]:
    """Each with a core of its own where as many train at once as there are cores."""
    from dataclasses import replace

    cores = cores_here()
    return [
        replace(job, cores=(cores[index % at_once],)) if at_once == len(cores) > 1 and len(jobs) == at_once else job
        for index, job in enumerate(jobs)
    ]


def cores_here() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def _rows(against: Path | None) -> list[dict[str, Any]] | None:
    from orchestrator.study.results import rows

    if against is None:
        return None
    try:
        found, message = rows(against), "holds no finished seed of a study"
    except (OSError, ValueError) as error:
        found, message = [], f"cannot be read: {error}"
    if not found:
        raise InputError([Problem("--against", str(against), message, "give the --out of another study")])
    return found


# ------------------------------------------------------------------ the output


class _Bars:
    """A bar for each seed, on stderr."""

    def __init__(self, seeds: Sequence[int], target: int) -> None:
        columns = ("{task.description}", BarColumn(), "{task.completed:,} of {task.total:,} syncer steps")
        loss = TextColumn("held-out loss {task.fields[loss]:.4f}")
        self._progress = Progress(*columns, loss, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
        self._bars = {seed: self._progress.add_task(f"seed {seed}", total=target, loss=float("nan")) for seed in seeds}

    def __enter__(self) -> _Bars:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def show(self, seed: int, news: Any) -> None:
        loss = news["loss"] if isinstance(news["loss"], float) else float("nan")
        self._progress.update(self._bars[seed], completed=news["step"], loss=loss)


def _tell(recipe: Recipe, folder: Path, rows: list[Any], before: list[Any] | None, as_json: bool) -> None:
    from dataclasses import asdict

    from orchestrator.study.results import difference, spread

    found = None if before is None else difference(rows, before)
    mean, half = spread([row["eval_loss"] for row in rows if row["eval_loss"] is not None])
    if as_json:
        told = {"name": recipe.name, "folder": str(folder), "seeds": rows, "eval_loss": mean, "half_width": half}
        typer.echo(json.dumps(told | ({"against": found and asdict(found)} if before is not None else {})))
        return
    for row in rows:
        loss = "none" if row["eval_loss"] is None else f"{row['eval_loss']:.4f}"
        typer.echo(
            f"seed {row['seed']}: held-out loss {loss} after {row['tokens']:,} committed tokens, "
            f"{row['seconds']:.0f} s{'' if row['ok'] else ', NOT OK: see its summary.json'}"
        )
    if half is not None:
        typer.echo(f"mean {mean:.4f} ± {half:.4f}")
    if before is not None:
        typer.echo(_words(found))
    typer.echo(f"a run's folder for each seed is in {folder}")


def _words(found: Difference | None) -> str:
    if found is None:
        return "difference: no seed is in both studies"
    interval = "one seed, no interval" if found.half_width is None else f"± {found.half_width:.4f}, 95 %"
    return f"difference over {len(found.seeds)} paired seeds: {found.mean:+.4f} ({interval})"
