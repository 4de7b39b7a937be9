"""The figures of a comparison: curves of held-out losses, and paired differences with their intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator

from orchestrator.compare.comparison import Comparison, Row
from orchestrator.compare.modes import MODES
from orchestrator.report.canvas import WIDTH, bare, light, loss_axis, sheet, time_axis, to_svg

COLOURS = {
    "decoupled": "train",
    "data_parallel": "dead",
    "diloco": "held",
    "streaming": "joining",
}
assert COLOURS.keys() == MODES.keys()
GRID = 200  # places at which seeds are averaged

Place = Callable[[tuple[int, float, float]], float]


def curves(result: Comparison, words: str) -> str | None:
    """Held-out loss against tokens and against time."""
    rows = [row for row in result.rows if any(len(each.curve) > 1 for each in row.outcomes)]
    if not rows:
        return None
    with sheet(WIDTH, 360) as figure:
        by_tokens, by_time = (bare(axes) for axes in figure.subplots(1, 2, sharey=True))
        for axes, place in ((by_tokens, lambda point: float(point[0])), (by_time, lambda point: float(point[1]))):
            for row in rows:
                _curve(axes, row, place)
            axes.grid(axis="y")
            axes.margins(x=0.02)
        by_tokens.xaxis.set_major_formatter(EngFormatter(sep=""))
        by_tokens.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))
        by_tokens.set_xlabel("tokens committed")
        longest = max(each.curve[-1][1] for row in rows for each in row.outcomes if each.curve)
        time_axis(by_time, 0.0, longest, stepped=True)
        losses = [point[2] for row in rows for each in row.outcomes for point in each.curve]
        loss_axis(by_tokens, losses, result.loss_unit or "loss")
        figure.legend(
            handles=[_line(row) for row in rows], loc="outside upper left", ncols=4,
            columnspacing=1.4, borderpad=0.2,
        )  # fmt: skip
        return to_svg(figure, "curves", words)


def differences(result: Comparison, words: str) -> str | None:
    """Each row's paired differences of losses: seeds, mean and interval."""
    rows = [row for row in result.rows if row.against is not None]
    if not rows:
        return None
    with sheet(WIDTH, 74 + 34 * len(rows)) as figure:
        axes = bare(figure.subplots())
        for place, row in enumerate(rows):
            found, colour = row.against, light(COLOURS[row.case.mode.name])
            assert found is not None
            if found.half_width is not None:
                ends = (found.mean - found.half_width, found.mean + found.half_width)
                axes.plot(ends, (place, place), color=colour, linewidth=2.2, solid_capstyle="butt")
                axes.plot(found.each, [place] * len(found.each), "o", color=colour, markersize=3.5, alpha=0.55)
            axes.plot(found.mean, place, "o", color=colour, markersize=8)
        axes.axvline(0.0, color=light("ink"), linewidth=0.9)
        axes.set_yticks(range(len(rows)), [row.case.name for row in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=7))
        axes.grid(axis="x")
        axes.margins(x=0.08)
        axes.set_xlabel(f"{result.loss_unit or 'loss'}, minus {result.reference.name}")
        return to_svg(figure, "differences", words)


def _curve(axes: Axes, row: Row, place: Place) -> None:
    colour, style = light(COLOURS[row.case.mode.name]), (0, (4, 2)) if row.case.chaos else "-"
    seeds = [([place(point) for point in each.curve], [point[2] for point in each.curve]) for each in row.outcomes]
    seeds = [each for each in seeds if len(each[0]) > 1]
    if len(seeds) > 1:
        for xs, losses in seeds:
            axes.plot(xs, losses, color=colour, linewidth=0.7, alpha=0.35, linestyle=style)
    xs, losses = _mean(seeds)
    marker = "o" if len(seeds) == 1 else None  # where it was measured; a mean has points of its own
    axes.plot(xs, losses, marker=marker, markersize=3.0, color=colour, linewidth=1.9, linestyle=style, zorder=3)


def _mean(seeds: Sequence[tuple[list[float], list[float]]]) -> tuple[Any, Any]:
    """Over seeds, where all of them are; of one seed, its own points."""
    if len(seeds) == 1:
        return seeds[0]
    grid = np.linspace(max(xs[0] for xs, _ in seeds), min(xs[-1] for xs, _ in seeds), GRID)
    grid = np.unique(np.concatenate([grid, [x for xs, _ in seeds for x in xs if grid[0] <= x <= grid[-1]]]))
    return grid, np.mean([np.interp(grid, xs, losses) for xs, losses in seeds], axis=0)


def _line(row: Row) -> Line2D:
    style: Any = (0, (4, 2)) if row.case.chaos else "-"
    return Line2D([], [], color=light(COLOURS[row.case.mode.name]), linestyle=style, label=row.case.name)
