"""Goodput of fleets as figures that stand alone: SVG for light and dark pages that are not the report's.

Knows the palette and canvas of the report; computes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, PercentFormatter

from orchestrator.planner.fleet.islands.goodput import Cell, Mode
from orchestrator.report.canvas import bare, light, sheet, to_svg, variables

WIDTH, HEIGHT = 860, 430  # pixels
ALONE_COLOURS: dict[Mode, str] = {"data_parallel": "dead", "elastic": "held"}
SHADES = ("train", "compiling", "joining", "frozen", "wasted", "pending", "fault", "draining")  # by number of learners
STYLES: dict[Mode, str] = {"sync": "--", "streaming": ":"}
Point = tuple[int, float]  # chips, goodput as a share


def goodput_figure(cells: Sequence[Cell], published: Mapping[tuple[Mode, int], Sequence[Point]] | None = None) -> str:
    """Goodput against chips, a line for each mode and number of learners, with its interval; open dots: published."""
    with sheet(WIDTH, HEIGHT) as figure:
        axes = bare(figure.subplots())
        several = sorted({cell.learners for cell in cells if cell.learners > 1})
        colours = {count: SHADES[index % len(SHADES)] for index, count in enumerate(several)}
        for mode, count in dict.fromkeys((cell.mode, cell.learners) for cell in cells):
            row = sorted((cell for cell in cells if (cell.mode, cell.learners) == (mode, count)), key=lambda c: c.chips)
            colour = light(ALONE_COLOURS.get(mode) or colours[count])
            chips = [cell.chips for cell in row]
            axes.plot(
                chips, [cell.goodput for cell in row],
                color=colour, linestyle=STYLES.get(mode, "-"), marker=".", markersize=4, label=name(mode, count),
            )  # fmt: skip
            low, high = zip(*(cell.goodput_interval for cell in row), strict=True)
            axes.fill_between(chips, low, high, color=colour, alpha=0.2, linewidth=0)
            dots = (published or {}).get((mode, count), ())
            if dots:
                axes.plot(*zip(*dots, strict=True), "o", color=colour, markersize=7, fillstyle="none", clip_on=False)
        chips_axis(axes, sorted({cell.chips for cell in cells}))
        axes.set_ylim(0.0, 1.0)
        axes.set_ylabel("goodput")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        _legend(figure)
        return standalone(to_svg(figure, "goodput", "Goodput of fleets against their size in chips, by row of Table 1"))


def name(mode: Mode, learners: int) -> str:
    """What a row is called."""
    words = {"data_parallel": "data-parallel", "elastic": "elastic data-parallel"}
    return words.get(mode) or f"{mode} M = {learners}"


def chips_axis(axes: Axes, sizes: Sequence[int]) -> None:
    axes.set_xscale("log")
    axes.set_xticks(sizes, [short(size) for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("chips, N")
    axes.grid(axis="y")


def short(chips: int) -> str:
    """150k, 1.2m."""
    return f"{chips / 1e6:g}m" if chips >= 1_000_000 else f"{chips / 1e3:g}k" if chips >= 1000 else str(chips)


def _legend(figure: Figure) -> None:
    figure.legend(loc="outside right center", borderpad=0.2)


def standalone(svg: str) -> str:
    """A figure of the report with the colours and the font that its page would give it."""
    style = (
        f"svg {{ {variables(dark=False)} background: var(--paper); font-family: system-ui, sans-serif; }}"
        f" @media (prefers-color-scheme: dark) {{ svg {{ {variables(dark=True)} }} }}"
    )
    opening, rest = svg.split(">", 1)
    return f"{opening}><style>{style}</style>{rest}\n"
