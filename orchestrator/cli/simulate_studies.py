"""`diloco simulate heterogeneous|scavenging|upsize`: studies of the protocol's own machines, driven with durations."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from orchestrator.cli.errors import reported
from orchestrator.cli.lists import as_csv, bounded, file_problems, numbers, write
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.store.status_text import DASH

LEARNERS_MOST = 256
STEPS_MOST = 1e6  # of all learners: some five minutes, at nine events each and 30,000 events a second
STEP_S_MOST = 100.0  # of the slowest: whoever waits looks up twice a second, which is most of the work with longer ones
WAIT_S_MOST = 864_000.0  # ten days
FAST_STEP_S_MOST = 40.0  # of the faster half, likewise

Json = Annotated[bool, typer.Option("--json", help="Print a list of rows as JSON on stdout.")]
Csv = Annotated[Path | None, typer.Option("--csv", metavar="FILE.csv", help="Write the rows as CSV too.")]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE.svg", help="Draw them.")]
Learners = Annotated[int, typer.Option(min=2, max=LEARNERS_MOST, help="Of the run.")]


def heterogeneous(
    learners: Learners = 8,
    gap: Annotated[
        float, typer.Option(min=0.0, max=0.95, help="Half of the learners are so much slower, as a share of speed.")
    ] = 0.28,
    noise: Annotated[
        float, typer.Option(min=0.0, max=0.5, help="Standard deviation of a step's time, as a share of it.")
    ] = 0.02,
    spell_gap: Annotated[
        float | None, typer.Option(min=1e-3, help="Mean seconds between two transient slowdowns of a learner [none].")
    ] = None,
    spell_seconds: Annotated[float, typer.Option(min=1e-3, help="Mean length of one.")] = 30.0,
    spell_slowdown: Annotated[float, typer.Option(min=1.0, help="Of every step in one.")] = 1.5,
    step_seconds: Annotated[float, typer.Option(min=1e-3, help="Of the faster half.")] = 1.0,
    steps: Annotated[int, typer.Option(min=24, help="Of a slow learner, per seed and rule.")] = 200,
    seeds: Annotated[int, typer.Option(min=2, max=1000, help="Per rule.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same numbers.")] = 0,
    as_json: Json = False,
    to_csv: Csv = None,
) -> None:
    """Learners of two speeds: what waiting for all, for one, and for one with a grace window makes of them."""
    with reported(as_json):
        problems = file_problems("--csv", to_csv, ".csv") + bounded(
            {
                "--spell-gap": (spell_gap or 1.0, WAIT_S_MOST),
                "--spell-seconds": (spell_seconds, WAIT_S_MOST),
                "--spell-slowdown": (spell_slowdown, 100.0),
                "--step-seconds": (step_seconds, FAST_STEP_S_MOST),
            }
        )
        slowest_s = step_seconds / (1.0 - gap) * (1.0 + 4.0 * noise) * (1.0 if spell_gap is None else spell_slowdown)
        if not problems and slowest_s > STEP_S_MOST:
            words = f"makes steps of up to {slowest_s:,.0f} s for the slowest; {STEP_S_MOST:g} are allowed"
            problems.append(Problem("--step-seconds", step_seconds, words, "shorten it, or give a smaller --gap"))
        _check(problems, 3 * seeds * (steps + 48) * learners, "--steps", steps)
        from orchestrator.planner.fleet import heterogeneous as study
        from orchestrator.planner.fleet.speeds import SlowPeriods

        spells = SlowPeriods() if spell_gap is None else SlowPeriods(spell_gap, spell_seconds, spell_slowdown)
        speeds = study.Speeds(learners, step_seconds, gap, noise, spells)
        found = [study.study(speeds, steps, seed + index) for index in _followed(range(seeds), "simulating")]
        rows = study.over_seeds(found)
        _answer(rows, as_json)
        if not as_json:
            table = Table("rule", "goodput", "time stepping", "participation", "merges per step", box=None)
            for row in rows:
                table.add_row(row.rule, *(_spread(*pair) for pair in row.shares), f"{row.merges_per_step:.2f}")
            _show(table, f"{learners} learners, half of them {gap:.0%} slower; in %, 95 % intervals over {seeds} seeds")
        _write_csv(rows, to_csv)


def scavenging(
    extra: Annotated[str, typer.Option(help="Newcomers, as per cent of the learners.")] = "25,50,100,300",
    learners: Learners = 8,
    share: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Of all tokens, processed while the newcomers are there.")
    ] = 0.5,
    step_seconds: Annotated[float, typer.Option(min=1e-3, help="Of every learner.")] = 10.0,
    steps: Annotated[int, typer.Option(min=100, help="That each learner would take alone.")] = 1000,
    start_seconds: Annotated[float, typer.Option(min=0.0, help="A newcomer's process, imports and compiling.")] = 60.0,
    state_seconds: Annotated[float, typer.Option(min=0.0, help="A peer's state on its way to it.")] = 10.0,
    as_json: Json = False,
    to_csv: Csv = None,
    plot: Plot = None,
) -> None:
    """Learners that join for a part of a run: how much sooner it ends."""
    with reported(as_json):
        problems = [*file_problems("--csv", to_csv, ".csv"), *file_problems("--plot", plot, ".svg")]
        extras = numbers("--extra", extra, float, lambda x: 0 < x <= 10_000, "above 0, to 10000", problems)
        problems += bounded(
            {
                "--step-seconds": (step_seconds, STEP_S_MOST),
                "--start-seconds": (start_seconds, WAIT_S_MOST),
                "--state-seconds": (state_seconds, WAIT_S_MOST),
            }
        )
        load = steps * learners * (1 + sum(1 + share * x / 100 for x in extras))
        _check(problems, load, "--steps", steps)
        from orchestrator.planner.fleet import scavenging as study

        setting = study.Scavenging(learners, step_seconds, steps, share, start_seconds, state_seconds)
        rows = list(_followed(study.study(setting, [x / 100 for x in extras]), "simulating", len(extras)))
        _answer(rows, as_json)
        if not as_json:
            table = Table("extra", "time", "ideal", "participation", "start to first step", box=None)
            for row in rows:
                shares = (f"{row.time:.3f}", f"{row.ideal:.3f}", f"{row.participation:.3f}")
                table.add_row(f"+{100 * row.extra:g} %", *shares, _seconds(row.joined_s))
            _show(table, f"time of the run, as a share of that of {learners} learners alone")
        _write_csv(rows, to_csv)
        write("--plot", plot, lambda: _scavenging_figure(rows))


def upsize(
    copy_steps: Annotated[
        str, typer.Option(help="Steps that one copy of the model takes over a learner's link.")
    ] = "0.5,1,2,4,5,6,8,12,24",
    learners: Learners = 8,
    parameters: Annotated[float, typer.Option(min=1e3, max=1e13, help="Of the model: for the Gbit/s alone.")] = 5e9,
    step_seconds: Annotated[float, typer.Option(min=1e-3, help="Of every learner.")] = 1.0,
    as_json: Json = False,
    to_csv: Csv = None,
    plot: Plot = None,
) -> None:
    """A learner that joins: what those who train lose by it, against the bandwidth of the links."""
    with reported(as_json):
        problems = [*file_problems("--csv", to_csv, ".csv"), *file_problems("--plot", plot, ".svg")]
        takes = numbers("--copy-steps", copy_steps, float, lambda x: 1e-3 <= x <= 100, "from 0.001 to 100", problems)
        problems += bounded({"--step-seconds": (step_seconds, STEP_S_MOST)})
        if problems:
            raise InputError(problems)
        from orchestrator.planner.fleet import upsize as study

        setting = study.Upsize(learners, step_seconds, round(parameters))
        steps = setting.rounds * setting.round_steps
        _check(problems, len(takes) * learners * steps, "--copy-steps", copy_steps)
        rows = list(_followed(study.study(setting, takes), "simulating", len(takes)))
        _answer(rows, as_json)
        if not as_json:
            columns = (
                "a copy",
                "Gbit/s",
                "elastic stands still",
                "here",
                "participation",
                "state from",
                "joined after",
            )
            table = Table(*columns, box=None)
            for row in rows:
                still = (f"{row.elastic_downtime_steps:g}", f"{row.downtime_steps:.3g}", f"{row.participation:.3f}")
                joined = DASH if row.joined_steps is None else f"{row.joined_steps:.1f}"
                table.add_row(f"{row.copy_steps:g}", f"{row.gbit_s:.3g}", *still, row.source or DASH, joined)
            _show(table, "times in steps; participation of those who train, from the newcomer's coming on")
        _write_csv(rows, to_csv)
        write("--plot", plot, lambda: _upsize_figure(rows))


# ------------------------------------------------------------------ what was given, and the answer


def _check(problems: list[Problem], steps: float, option: str, value: Any) -> None:
    """Refuse what would go on for hours."""
    if not problems and steps > STEPS_MOST:
        words = f"makes {steps:.1e} steps of learners in all, some {5 * steps / STEPS_MOST:,.0f} minutes"
        fix = f"give less of them, or fewer learners or seeds: at most {STEPS_MOST:.0e} steps"
        problems = [Problem(option, value, words, fix)]
    if problems:
        raise InputError(problems)


def _followed(work: Any, what: str, total: int | None = None) -> Any:
    return track(work, what, total=total, console=Console(stderr=True), transient=True)


def _answer(rows: Sequence[Any], as_json: bool) -> None:
    if as_json:
        told = [{name: None if value != value else value for name, value in asdict(row).items()} for row in rows]
        typer.echo(json.dumps(told, allow_nan=False))


def _write_csv(rows: Sequence[Any], path: Path | None) -> None:
    write("--csv", path, lambda: as_csv([asdict(row) for row in rows]))


def _scavenging_figure(rows: Sequence[Any]) -> str:
    from orchestrator.planner.fleet.study_figures import scavenging_figure

    return scavenging_figure(rows)


def _upsize_figure(rows: Sequence[Any]) -> str:
    from orchestrator.planner.fleet.study_figures import upsize_figure

    return upsize_figure(rows)


def _show(table: Table, below: str) -> None:
    table.header_style, table.pad_edge = "dim", False
    Console(width=120).print(table)
    typer.echo(below)


def _spread(value: float, half: float) -> str:
    return f"{100 * value:5.1f} ±{100 * half:.1f}"


def _seconds(value: float | None) -> str:
    return DASH if value is None or math.isnan(value) else f"{value:.0f} s"
