"""`diloco simulate goodput`: goodput and uptime against learners and chips, with intervals over seeds."""

from __future__ import annotations

import csv
import itertools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from orchestrator.cli.errors import reported
from orchestrator.cli.options import AsJson
from orchestrator.planner.fleet.islands.failures import Failures
from orchestrator.recipe.problems import InputError, Problem, explain, nearest

if TYPE_CHECKING:
    from orchestrator.planner.fleet.islands.goodput import Cell, Effort, Mode, Waiting

LEARNERS_MOST, CHIPS_MOST = 1024, 100_000_000
TAKES_S_MOST = 300.0  # all cells with as many seeds as they have at least; wide intervals take more
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
    as_json: AsJson = False,
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
        from orchestrator.planner.fleet.islands.goodput import MODES, Effort, Waiting, fleets

        model = _model({name: value for name, value in given.items() if value is not None})
        names = _listed("--modes", modes, lambda text: _mode(text, MODES))
        counts = _listed("--learners", learners, lambda text: _whole("--learners", text, LEARNERS_MOST))
        sizes = _listed("--chips", chips, lambda text: _whole("--chips", text, CHIPS_MOST))
        cells = list(fleets(counts, sizes, names))
        effort = Effort(half_width, seeds, max(seeds, seeds_most))
        _check_fleets(cells, learners, modes)
        waiting = Waiting(round_steps, overlap_steps)
        if unwritable := [*_file_problems("--csv", to_csv, ".csv"), *_file_problems("--plot", plot, ".svg")]:
            raise InputError(unwritable)
        _check_time(cells, model, effort, waiting)
        found = _simulated(cells, model, effort, seed, waiting)
        _print(found, sizes, as_json)
        _warn(found, effort)
        _write("--csv", to_csv, lambda: _as_csv([_row(cell) for cell in found]))
        _write("--plot", plot, lambda: _figure(found))


def _simulated(
    cells: Sequence[tuple[Mode, int, int]], model: Failures, effort: Effort, seed: int, waiting: Waiting
) -> list[Cell]:
    """All cells, under a bar on stderr that advances by seeds and grows with those that a wide interval takes."""
    from orchestrator.planner.fleet.islands.goodput import simulate

    found: list[Cell] = []
    total, done = len(cells) * effort.seeds, itertools.count(1)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("simulating", total=total)

        def seen() -> None:
            now, later = next(done), (len(cells) - len(found) - 1) * effort.seeds
            bar.update(task, completed=now, total=max(total, now + later))

        for cell in cells:
            found.append(simulate(*cell, model, effort, seed, waiting, seen))
    return found


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


def _check_time(cells: Sequence[tuple[Mode, int, int]], model: Failures, effort: Effort, waiting: Waiting) -> None:
    """Refuse what would go on for hours, and name what makes it long."""
    from orchestrator.planner.fleet.islands.goodput import takes_s

    takes = [effort.seeds * takes_s(*cell, model, effort, waiting) for cell in cells]
    if sum(takes) <= TAKES_S_MOST:
        return
    mode, count, size = cells[takes.index(max(takes))]
    words = (
        f"takes some {sum(takes) / 60:,.0f} minutes with {effort.seeds} seeds; {TAKES_S_MOST / 60:g} are allowed. "
        f"Longest is {mode} of {count} with {size:,} chips"
    )
    if mode in ("sync", "streaming"):
        fix = "take longer steps, fewer learners, cells or seeds"
        raise InputError([Problem("--step-s", model.step_s, words, fix)])
    raise InputError(
        [Problem("--mtbi-s", model.mtbi_s, words, "raise it, shorten the repair, or fewer cells or seeds")]
    )


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


def _warn(cells: Sequence[Cell], effort: Effort) -> None:
    for cell in cells:
        if cell.half_width > effort.half_width:
            typer.echo(
                f"warning: {cell.mode} of {cell.learners} with {cell.chips:,} chips has a half-width of "
                f"{cell.half_width:.4f} after {cell.seeds} seeds: raise --seeds-most",
                err=True,
            )


def _row(cell: Cell) -> dict[str, Any]:
    """With a column for each end of an interval."""
    row: dict[str, Any] = {"mode": cell.mode, "learners": cell.learners, "chips": cell.chips}
    for name in ("goodput", "uptime"):
        low, high = getattr(cell, f"{name}_interval")
        row |= {name: getattr(cell, name), f"{name}_low": low, f"{name}_high": high}
    return row | {"seeds": cell.seeds}


def _figure(cells: Sequence[Cell]) -> str:
    from orchestrator.planner.fleet.islands.figures import goodput_figure

    return goodput_figure(cells)


# ------------------------------------------------------------------ files


def _file_problems(option: str, path: Path | None, suffix: str) -> list[Problem]:
    """Why nothing can be written there."""
    if path is None:
        return []
    if path.suffix != suffix:
        return [Problem(option, str(path), f"must end in {suffix}", f"write {option} {path}{suffix}")]
    if path.is_dir():
        return [Problem(option, str(path), "is a folder", f"name a file: {option} {path / 'rows'}{suffix}")]
    if not path.absolute().parent.is_dir():
        folder = path.absolute().parent
        return [Problem(option, str(path), f"there is no folder {folder}", f"create it: mkdir -p {folder}")]
    return []


def _write(option: str, path: Path | None, made: Callable[[], str]) -> None:
    """Write what `made` gives, if a file is asked for: after the answer, so that a disk that fails loses nothing.

    Raises typer.Exit once it has said on stderr why it cannot be, naming the option: stdout has the answer already.
    """
    if path is None:
        return
    with reported():
        text = made()
        try:
            path.write_text(text, encoding="utf-8", newline="")
        except OSError as error:
            words = f"cannot be written: {error.strerror or error}"
            raise InputError([Problem(option, str(path), words, "name another file, or make room")]) from error


def _as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table of rows that have the same columns."""
    text = StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
