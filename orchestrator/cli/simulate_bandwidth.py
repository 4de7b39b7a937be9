"""`diloco simulate bandwidth`: Gbit/s between datacenters for a compute utilisation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from orchestrator.cli.errors import reported
from orchestrator.cli.lists import as_csv, file_problems, numbers, write
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.store.status_text import DASH

# A cell takes a tenth of a second at most.
ROUND_STEPS_MOST, LATENCY_MS_MOST = 250, 1e4
PARAMETERS_MOST, DATACENTERS_MOST, STEP_S_MOST = 1e16, 1_000_000, 86_400.0


def bandwidth(
    parameters: Annotated[float, typer.Option(help="Of the model.")] = 5e9,
    step_seconds: Annotated[str, typer.Option(help="Lengths of a learner's step.")] = "1,5",
    datacenters: Annotated[str, typer.Option(help="With one learner and one shard of the syncer each.")] = "2,8",
    bits: Annotated[str, typer.Option(help="Of a parameter on the wire, both ways; data-parallel is in 16.")] = "16,4",
    utilisation: Annotated[str, typer.Option(help="Per cent of the time in which a learner steps.")] = "50,75,90,95",
    fragments: Annotated[int, typer.Option("--P", help="Fragments, in the conserving simulation.")] = 24,
    round_steps: Annotated[int, typer.Option("--H", help="Steps in which every fragment is exchanged once.")] = 24,
    overlap_steps: Annotated[int, typer.Option("--tau", help="Steps after which a fragment is adopted.")] = 2,
    latency_ms: Annotated[float, typer.Option(help="One way.")] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of cells as JSON on stdout.")] = False,
    to_csv: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write the cells as CSV too.")] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.svg", help="Draw the first step and the most datacenters.")
    ] = None,
) -> None:
    """Say how many Gbit/s a compute utilisation takes: closed form, conserving simulation, the paper's table."""
    with reported(as_json):
        problems = [*file_problems("--csv", to_csv, ".csv"), *file_problems("--plot", plot, ".svg")]
        lists = _lists(step_seconds, datacenters, bits, utilisation, problems)
        problems += _problems(parameters, fragments, round_steps, overlap_steps, latency_ms)
        if problems:
            raise InputError(problems)
        from orchestrator.planner.fleet.bandwidth_table import Exchange, cells

        exchange = Exchange(parameters, fragments, round_steps, overlap_steps, latency_ms / 1e3)
        found = list(cells(*lists, exchange))
        if as_json:
            typer.echo(json.dumps([asdict(cell) for cell in found], allow_nan=False))
        else:
            Console(width=120).print(_table(found))
        write("--csv", to_csv, lambda: as_csv([asdict(cell) for cell in found]))
        write("--plot", plot, lambda: _figure(exchange, lists[0][0], max(lists[1])))


def _figure(exchange: Any, step_s: float, datacenters: int) -> str:
    from orchestrator.planner.fleet.bandwidth_figure import bandwidth_figure

    return bandwidth_figure(exchange, step_s, datacenters)


def _table(found: Sequence[Any]) -> Table:
    columns = (
        "",
        "bits",
        "step s",
        "datacenters",
        "busy",
        "closed form",
        "conserving",
        "paper",
        "error of closed form",
    )
    table = Table(*columns, box=None, pad_edge=False, header_style="dim", title="Gbit/s", title_justify="left")
    for cell in found:
        told = [_gbit(value) for value in (cell.gbit_s, cell.conserving_gbit_s, cell.paper_gbit_s)]
        error = DASH if cell.error is None else f"{100 * cell.error:+.1f} %"
        name, busy = cell.method.replace("_", "-"), f"{100 * cell.utilisation:g} %"
        table.add_row(name, str(cell.bits), f"{cell.step_s:g}", str(cell.datacenters), busy, *told, error)
    return table


def _gbit(value: float | None) -> str:
    return DASH if value is None else f"{value:.0f}" if value >= 100 else f"{value:.3g}"


# ------------------------------------------------------------------ what was given


def _lists(
    step_seconds: str, datacenters: str, bits: str, utilisation: str, problems: list[Problem]
) -> tuple[list[float], list[int], list[int], list[float]]:
    words = f"from 0.001 to {STEP_S_MOST:g}"
    steps = numbers("--step-seconds", step_seconds, float, lambda s: 1e-3 <= s <= STEP_S_MOST, words, problems)
    words = f"whole, from 2 to {DATACENTERS_MOST}"
    counts = numbers("--datacenters", datacenters, int, lambda count: 2 <= count <= DATACENTERS_MOST, words, problems)
    widths = numbers("--bits", bits, int, lambda width: 1 <= width <= 64, "whole, from 1 to 64", problems)
    words = "from 0.01 to 99.99"
    shares = numbers("--utilisation", utilisation, float, lambda share: 0.01 <= share <= 99.99, words, problems)
    return steps, counts, widths, [share / 100 for share in shares]


def _problems(
    parameters: float, fragments: int, round_steps: int, overlap_steps: int, latency_ms: float
) -> list[Problem]:
    problems = []
    if not 1 <= parameters <= PARAMETERS_MOST:
        words = f"must be from 1 to {PARAMETERS_MOST:g}"
        problems.append(Problem("--parameters", parameters, words, "write for example 5e9"))
    if not 1 <= round_steps <= ROUND_STEPS_MOST:
        fix = f"write at most {ROUND_STEPS_MOST}: P, H and tau in proportion give the same"
        problems.append(Problem("--H", round_steps, f"must be from 1 to {ROUND_STEPS_MOST}", fix))
    if not 1 <= fragments <= round_steps:
        problems.append(
            Problem("--P", fragments, f"must be from 1 to H = {round_steps}", "fewer fragments, or a larger --H")
        )
    if not 0 <= overlap_steps < max(1, round_steps):
        problems.append(Problem("--tau", overlap_steps, f"must be from 0, below H = {round_steps}", "write --tau 2"))
    if not 0 <= latency_ms <= LATENCY_MS_MOST:
        words = f"must be from 0 to {LATENCY_MS_MOST:g}"
        problems.append(Problem("--latency-ms", latency_ms, words, "leave it out for none"))
    return problems
