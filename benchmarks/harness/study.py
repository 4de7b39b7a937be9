"""Train a recipe over seeds in lock-step on one device, without Ray, clocks or faults; compare with another study.

    python benchmarks/harness/study.py RECIPE --seeds 5
    python benchmarks/harness/study.py RECIPE --seeds 5 --set sync.codec=bf16 --out runs/bf16 --against runs/NAME-study
    python benchmarks/harness/study.py RECIPE --seeds 5 --mode data_parallel --out runs/parallel

Writes a run's folder for each seed, which every command takes; finished seeds are not trained again.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from scipy.special import stdtrit

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.harness import modes  # noqa: E402
from benchmarks.harness.seed_run import ROW_FILE, finished_row, train_apart  # noqa: E402
from orchestrator.cli.errors import CHECK_FAILED, apart, reported  # noqa: E402
from orchestrator.cli.options import AsJson  # noqa: E402
from orchestrator.cli.recipes import prepare  # noqa: E402
from orchestrator.recipe.config import ChaosConfig, Recipe  # noqa: E402
from orchestrator.recipe.problems import InputError, Problem  # noqa: E402
from orchestrator.store.run_store import RUNS  # noqa: E402


@dataclass(frozen=True)
class LossDifference:
    """The first ones' held-out losses minus the second ones', over paired seeds."""

    seeds: tuple[int, ...]
    each: tuple[float, ...]
    mean: float
    half_width: float | None  # of Student's 95 % interval; None for one seed


def study(
    recipe: Annotated[Path, typer.Argument(help="A TOML file, as for diloco run.")],
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many, from the recipe's on.")] = 1,
    mode: Annotated[str, typer.Option("--mode", help="Train the recipe in a mode of docs/studies.md.")] = "decoupled",
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="For a run's folder per seed [runs/NAME-study].")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option("--against", metavar="FOLDER", help="Another study: print paired differences of the losses."),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a recipe key.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a recipe over seeds in lock-step, and compare with another study."""
    with reported(as_json):
        with apart(as_json):
            resolved = prepare(recipe, overrides, further=_unfit)
            if resolved.chaos.active:
                typer.echo("warning: faults of [chaos] do not strike in a study", err=True)
                resolved = resolved.model_copy(update={"chaos": ChaosConfig()})
            resolved = modes.transformed(resolved, mode)
        folder = (out or RUNS / f"{resolved.name}-study").absolute()
        before = None if against is None else _rows(against)
        rows = _trained(resolved, range(resolved.seed, resolved.seed + seeds), folder)
        found = None if before is None else difference(rows, before)
        mean, half = spread([row["eval_loss"] for row in rows if row["eval_loss"] is not None])
        if as_json:
            told = {"name": resolved.name, "folder": str(folder), "seeds": rows, "eval_loss": mean, "half_width": half}
            typer.echo(json.dumps(told | {"against": found and asdict(found)}))
        else:
            if half is not None:
                typer.echo(f"mean {mean:.4f} ± {half:.4f}")
            if before is not None:
                typer.echo(_words(found))
            typer.echo(f"a run's folder for each seed is in {folder}")
        if not all(row["ok"] for row in rows):
            raise typer.Exit(CHECK_FAILED)


def _unfit(recipe: Recipe) -> Iterator[Problem]:
    """Problems of a recipe whose learners have more than one device each."""
    for index, pool in enumerate(recipe.pools):
        for name in ("devices", "model_parallel", "processes"):
            if ((value := getattr(pool, name)) or 1) > 1:
                where = f"pools.{index}.{name}"
                yield Problem(where, value, "is more than the one device of a study", "set it to 1, or leave it out")


def _rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of another study. Raises InputError."""
    found = []
    with suppress(OSError, ValueError):
        found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob(f"seed-*/{ROW_FILE}"))]
    if not found:
        message = "holds no finished seed of a study"
        raise InputError([Problem("--against", str(folder), message, "give the --out of another study")])
    return found


def _trained(recipe: Recipe, seeds: Sequence[int], folder: Path) -> list[dict[str, Any]]:
    """The rows of all seeds, by seed: side by side on CPUs, one after the other on accelerators. Raises InputError."""
    rows, jobs, problems = [], [], []
    for seed in seeds:
        one = Recipe.model_validate(recipe.canonical() | {"seed": seed, "fleet": recipe.fleet})
        place = folder / f"seed-{seed}"
        try:
            row = finished_row(place, one)
        except (OSError, ValueError) as error:
            problems.append(Problem("--out", str(place), str(error), "give another --out, or remove the folder"))
            continue
        if row is None:
            jobs.append((one, place))
        else:
            rows.append(row)
    if problems:
        raise InputError(problems)
    platform = next((pool.platform for pool in recipe.pools if pool.accelerated), "cpu")
    at_once = min(len(jobs), len(os.sched_getaffinity(0))) if platform == "cpu" else 1
    with ProcessPoolExecutor(max(1, at_once), multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        for done in as_completed([pool.submit(train_apart, *job, platform) for job in jobs]):
            row = done.result()
            loss = "none" if row["eval_loss"] is None else f"{row['eval_loss']:.4f}"
            sound = "" if row["ok"] else ", NOT OK: see its summary.json"
            words = f"held-out loss {loss} after {row['tokens']:,} committed tokens, {row['seconds']:.0f} s{sound}"
            typer.echo(f"seed {row['seed']}: {words}", err=True)
            rows.append(row)
    return sorted(rows, key=lambda row: int(row["seed"]))


# ------------------------------------------------------------------ paired differences


def difference(ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]]) -> LossDifference | None:
    """None where no seed is in both with a finite loss."""
    before = {row["seed"]: row["eval_loss"] for row in theirs if row["eval_loss"] is not None}
    pairs = [(row["seed"], row["eval_loss"] - before[row["seed"]]) for row in ours if _both(row, before)]
    if not pairs:
        return None
    seeds, each = zip(*pairs, strict=True)
    return LossDifference(seeds, each, statistics.fmean(each), half_width(each) if len(each) > 1 else None)


def _both(row: dict[str, Any], others: dict[int, float]) -> bool:
    return row["eval_loss"] is not None and row["seed"] in others


def spread(losses: Sequence[float]) -> tuple[float | None, float | None]:
    """The mean and half of Student's 95 % interval, as far as so many losses have them."""
    mean = statistics.fmean(losses) if losses else None
    return mean, half_width(losses) if len(losses) > 1 else None


def half_width(samples: Sequence[float]) -> float:
    """Half of Student's 95 % interval for the mean of two or more independent samples."""
    return float(stdtrit(len(samples) - 1, 0.975)) * statistics.stdev(samples) / math.sqrt(len(samples))


def _words(found: LossDifference | None) -> str:
    if found is None:
        return "difference: no seed is in both studies"
    interval = "one seed, no interval" if found.half_width is None else f"± {found.half_width:.4f}, 95 %"
    return f"difference over {len(found.seeds)} paired seeds: {found.mean:+.4f} ({interval})"


if __name__ == "__main__":
    typer.run(study)
