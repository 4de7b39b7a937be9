"""`diloco simulate goodput`: goodput and uptime against learners and chips, with intervals over seeds."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.progress import track
from rich.table import Table

from orchestrator.cli.errors import reported
from orchestrator.cli.lists import file_problems
from orchestrator.planner.fleet.failures import Failures
from orchestrator.problems import InputError, Problem, explain, nearest

if TYPE_CHECKING:
    from orchestrator.planner.fleet.goodput import Cell

LEARNERS_MOST, CHIPS_MOST = 1024, 100_000_000
LOAD_MOST = 1e9  # steps of all learners in one seed: hours
FAILING_MOST = 1e7  # failing chips in one seed: minutes
MODEL = "The failure model"
WAITING = "Baselines in which learners wait: sync, streaming"
SUFFIXES = {"k": 1e3, "m": 1e6}


def _field(name: str) -> Any:
    """The option for one field of the failure model."""
    field = Failures.model_fields[name]
    text = f"{field.description} [{field.default:.12g}]."
    return typer.Option(f"--{name.replace('_', '-')}", help=text[0].upper() + text[1:], rich_help_panel=MODEL)


def goodput(
    learners: Annotated[str, typer.Option(help="Numbers of learners, separated by commas.")] = "1,2,4,8,16",
    chips: Annotated[str, typer.Option(help="Sizes of the whole fleet; 150k and 1.2m are understood.")] = (
        "150000,1200000"
    ),
    modes: Annotated[
        str, typer.Option(help="Of one learner: data_parallel, elastic. Of several: decoupled, sync, streaming.")
    ] = "data_parallel,elastic,decoupled",
    half_width: Annotated[
        float, typer.Option(min=1e-4, max=0.5, help="Of the 95 % intervals, as a fraction: seeds are added until then.")
    ] = 0.005,
    seeds: Annotated[int, typer.Option(min=5, max=1000, help="Seeds per cell at least.")] = 5,
    seeds_most: Annotated[int, typer.Option(min=5, max=10_000, help="And at most.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same numbers.")] = 0,
    mtbi_s: Annotated[float | None, _field("mtbi_s")] = None,
    step_s: Annotated[float | None, _field("step_s")] = None,
    slice_chips: Annotated[int | None, _field("slice_chips")] = None,
    down_s: Annotated[float | None, _field("down_s")] = None,
    up_s: Annotated[float | None, _field("up_s")] = None,
    outage_s: Annotated[float | None, _field("outage_s")] = None,
    repair_a: Annotated[float | None, _field("repair_a")] = None,
    repair_c: Annotated[float | None, _field("repair_c")] = None,
    repair_scale_s: Annotated[float | None, _field("repair_scale_s")] = None,
    round_steps: Annotated[int, typer.Option(min=1, help="H.", rich_help_panel=WAITING)] = 24,
    overlap_steps: Annotated[int, typer.Option(min=0, help="tau.", rich_help_panel=WAITING)] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of cells as JSON on stdout.")] = False,
    to_csv: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write the cells as CSV too.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE.svg", help="Draw goodput against chips.")] = None,
) -> None:
    """Simulate goodput and uptime of fleets under chip failures: data-parallel, elastic, and decoupled learners."""
    given = {
        "mtbi_s": mtbi_s,
        "step_s": step_s,
        "slice_chips": slice_chips,
        "down_s": down_s,
        "up_s": up_s,
        "outage_s": outage_s,
        "repair_a": repair_a,
        "repair_c": repair_c,
        "repair_scale_s": repair_scale_s,
    }
    with reported(as_json):
        from orchestrator.planner.fleet.goodput import MODES, Effort, Waiting, fleets, simulate

        model = _model({name: value for name, value in given.items() if value is not None})
        names = _listed("--modes", modes, lambda text: _mode(text, MODES))
        counts = _listed("--learners", learners, lambda text: _whole("--learners", text, LEARNERS_MOST))
        sizes = _listed("--chips", chips, lambda text: _whole("--chips", text, CHIPS_MOST))
        cells = list(fleets(counts, sizes, names))
        effort = Effort(half_width, seeds, max(seeds, seeds_most))
        _check_fleets(cells, learners, modes)
        _check_load(cells, model, effort)
        if unwritable := [*file_problems("--csv", to_csv, ".csv"), *file_problems("--plot", plot, ".svg")]:
            raise InputError(unwritable)
        waiting = Waiting(round_steps, overlap_steps)
        work = track(cells, "simulating", console=Console(stderr=True), transient=True)
        found = [simulate(*cell, model, effort, seed, waiting) for cell in work]
        if to_csv is not None:
            _write_csv(found, to_csv)
        if plot is not None:
            from orchestrator.planner.fleet.figures import goodput_figure

            plot.write_text(goodput_figure(found), encoding="utf-8")
        _print(found, sizes, as_json)
        _warn(found, effort)


# ------------------------------------------------------------------ the input


def _model(given: dict[str, float | int]) -> Failures:
    try:
        return Failures.model_validate(given)
    except ValidationError as error:
        raise InputError(
            [
                Problem(f"--{problem.field.replace('_', '-')}", problem.value, problem.message, problem.fix)
                for problem in explain(error, Failures)
            ]
        ) from None


def _listed(option: str, text: str, read: Callable[[str], Any]) -> list[Any]:
    """What stands between the commas, each once."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise InputError([Problem(option, text, "names nothing", "leave it out for the default")])
    return list(dict.fromkeys(read(part) for part in parts))


def _whole(option: str, text: str, most: int) -> int:
    factor = SUFFIXES.get(text[-1].lower(), 1)
    try:
        number = float(text[:-1] if factor != 1 else text) * factor
    except ValueError:
        number = float("nan")
    if number != number or not 1 <= number <= most or round(number) != round(number, 3):
        words = f"must be whole numbers from 1 to {most:,}, separated by commas; 150k and 1.2m are understood"
        raise InputError([Problem(option, text, words, f"write for example {option} {min(most, 16)}")])
    return round(number)


def _mode(text: str, known: Sequence[str]) -> str:
    if text not in known:
        near = nearest(text, known)
        fix = f"did you mean {near}?" if near else "leave it out for the default"
        raise InputError([Problem("--modes", text, f"must be among {', '.join(known)}", fix)])
    return text


def _check_fleets(cells: Sequence[tuple[Any, int, int]], learners: str, modes: str) -> None:
    if not cells:
        words = f"leaves nothing to simulate with --modes {modes}"
        fix = "one learner goes with data_parallel and elastic, several with decoupled, sync and streaming"
        raise InputError([Problem("--learners", learners, words, fix)])
    for _, count, size in cells:
        if count > size:
            raise InputError([Problem("--learners", count, f"is more than {size:,} chips", "give more chips")])


def _check_load(cells: Sequence[tuple[Any, int, int]], model: Failures, effort: Any) -> None:
    """Refuse what would go on for hours: long steps of a fleet are cheap, and so are short ones that seldom fail."""
    for mode, count, size in cells:
        seconds = effort.warm_up_s(model) + effort.measured_s(model, size)
        steps = count * seconds / model.step_s
        if mode in ("sync", "streaming") and steps > LOAD_MOST:
            words = f"makes {steps:.1e} steps a seed of {mode} with {count} learners and {size:,} chips"
            raise InputError([Problem("--step-s", model.step_s, words, "take longer steps or fewer learners")])
        if seconds * size / model.mtbi_s > FAILING_MOST:
            words = f"makes {seconds * size / model.mtbi_s:.1e} chips fail in one seed with {size:,} chips"
            raise InputError([Problem("--mtbi-s", model.mtbi_s, words, "raise it, or shorten the repair")])


# ------------------------------------------------------------------ the output


def _print(cells: Sequence[Cell], sizes: Sequence[int], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([asdict(cell) for cell in cells], allow_nan=False))
        return
    table = Table("mode", "learners", *(f"{size:,} chips" for size in sizes), box=None, pad_edge=False)
    rows = dict.fromkeys((cell.mode, cell.learners) for cell in cells)
    at = {(cell.mode, cell.learners, cell.chips): cell for cell in cells}
    for mode, count in rows:
        table.add_row(mode, str(count), *(_words(at[mode, count, size]) for size in sizes))
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    typer.echo("goodput / uptime in %, with the half-widths of their 95 % intervals")


def _words(cell: Cell) -> str:
    def share(value: float, interval: tuple[float, float]) -> str:
        return f"{100 * value:5.1f} ±{50 * (interval[1] - interval[0]):.1f}"

    return f"{share(cell.goodput, cell.goodput_interval)} / {share(cell.uptime, cell.uptime_interval)}"


def _warn(cells: Sequence[Cell], effort: Any) -> None:
    for cell in cells:
        if cell.half_width > effort.half_width:
            typer.echo(
                f"warning: {cell.mode} of {cell.learners} with {cell.chips:,} chips has a half-width of "
                f"{cell.half_width:.4f} after {cell.seeds} seeds: raise --seeds-most",
                err=True,
            )


def _write_csv(cells: Sequence[Cell], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["mode", "learners", "chips"]
            + [f"{name}{part}" for name in ("goodput", "uptime") for part in ("", "_low", "_high")]
            + ["seeds"]
        )
        for cell in cells:
            shares = (cell.goodput, *cell.goodput_interval, cell.uptime, *cell.uptime_interval)
            writer.writerow([cell.mode, cell.learners, cell.chips, *shares, cell.seeds])
