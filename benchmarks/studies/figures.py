"""The studies' figures, each an SVG that stands alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator, PercentFormatter

from benchmarks.studies.bandwidth_paper import PAPER, PAPER_PARAMETERS, Method
from benchmarks.studies.bandwidth_table import Exchange, cells
from benchmarks.studies.canvas import bare, light, sheet, to_svg
from benchmarks.studies.islands import FleetCell, Mode
from orchestrator.report.palette import variables

WIDTH, HEIGHT = 860, 340  # pixels
ALONE_COLOURS: dict[Mode, str] = {"data_parallel": "dead", "elastic": "held"}
SHADES = ("train", "compiling", "joining", "frozen", "wasted", "pending", "fault", "draining")  # by number of learners
Point = tuple[int, float]  # chips, goodput as a share
LINES: tuple[tuple[Method, int, str, str], ...] = (
    ("data_parallel", 16, "dead", "data-parallel, bf16"),
    ("decoupled", 16, "train", "Decoupled, bf16"),
    ("decoupled", 4, "held", "Decoupled, 4 bits"),
)
UTILISATIONS = tuple(percent / 100 for percent in (40, 45, 50, 55, 60, 65, 70, 75, 80, 85, 90, 93, 95, 96, 97, 98))


def bandwidth_figure(exchange: Exchange, step_s: float = 1.0, datacenters: int = 8) -> str:
    """One panel, a colour for each method and number of bits. The paper's dots: where it has such cells."""
    found = list(cells([step_s], [datacenters], [16, 4], UTILISATIONS, exchange))
    with sheet(WIDTH, 440) as figure:
        axes = bare(figure.subplots())
        for method, bits, role, name in LINES:
            row = [cell for cell in found if (cell.method, cell.bits) == (method, bits)]
            across, colour = [100 * cell.utilisation for cell in row], light(role)
            axes.plot(across, [cell.gbit_s for cell in row], color=colour, label=f"{name}: closed form")
            held = [float("nan") if cell.conserving_gbit_s is None else cell.conserving_gbit_s for cell in row]
            axes.plot(across, held, color=colour, linestyle=(0, (4, 2)), label="conserving simulation")
            asked = (method, bits, step_s, datacenters)
            told = [cell for cell in PAPER if (cell.method, cell.bits, cell.step_s, cell.datacenters) == asked]
            if told and exchange.parameters == PAPER_PARAMETERS:
                points = ([100 * cell.utilisation for cell in told], [cell.gbit_s for cell in told])
                axes.plot(*points, "o", color=colour, markersize=5, label="the paper's table")
        axes.set_yscale("log")
        axes.set_xlabel("compute utilisation, %")
        axes.set_ylabel("Gbit/s, each way of a datacenter")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.grid(axis="y")
        axes.set_title(_bandwidth_title(exchange, step_s, datacenters))
        figure.legend(loc="outside lower center", ncols=3)
        words = (
            "Gbit/s for a compute utilisation: the closed form, the simulation that conserves bytes, the paper's table"
        )
        return standalone(to_svg(figure, "bandwidth", words))


def _bandwidth_title(exchange: Exchange, step_s: float, datacenters: int) -> str:
    letters = f"P = {exchange.fragments}, H = {exchange.round_steps}, tau = {exchange.overlap_steps}"
    size = f"{exchange.parameters / 1e9:g} billion parameters"
    return f"{size}, {datacenters} datacenters, steps of {step_s:g} s; simulation at {letters}"


def cost_figure(by_chips: Mapping[int, Sequence[Point]], by_learners: Mapping[int, Sequence[Point]]) -> str:
    """Seconds of computing for a cell: against chips, a line for each M; against learners, a line for each size."""
    with sheet(WIDTH, HEIGHT) as figure:
        left, right = (bare(axes) for axes in figure.subplots(1, 2, sharey=True))
        for axes, lines, words in ((left, by_chips, "M = {}"), (right, by_learners, "{:,} chips")):
            for shade, (key, points) in zip(SHADES, lines.items(), strict=False):
                axes.plot(*zip(*points, strict=True), ".-", color=light(shade), label=words.format(key))
            axes.legend(loc="upper left")
            axes.grid(axis="y")
        chips_axis(left, sorted({chips for points in by_chips.values() for chips, _ in points}))
        counts = sorted({count for points in by_learners.values() for count, _ in points})
        right.set_xscale("log")
        right.set_xticks(counts, [str(count) for count in counts])
        right.xaxis.set_minor_locator(NullLocator())
        right.set_xlabel("learners, M")
        left.set_ylabel("seconds of one core")
        left.set_ylim(bottom=0.0)
        return standalone(
            to_svg(figure, "cost", "Seconds of computing for one cell against chips and against learners")
        )


def goodput_figure(
    cells: Sequence[FleetCell], published: Mapping[tuple[Mode, int], Sequence[Point]] | None = None
) -> str:
    """Goodput against chips, a line for each mode and number of learners, with its interval; open dots: published."""
    with sheet(WIDTH, 430) as figure:
        axes = bare(figure.subplots())
        several = sorted({cell.learners for cell in cells if cell.learners > 1})
        colours = {count: SHADES[index % len(SHADES)] for index, count in enumerate(several)}
        for mode, count in dict.fromkeys((cell.mode, cell.learners) for cell in cells):
            row = sorted((cell for cell in cells if (cell.mode, cell.learners) == (mode, count)), key=lambda c: c.chips)
            colour = light(ALONE_COLOURS.get(mode) or colours[count])
            chips = [cell.chips for cell in row]
            axes.plot(
                chips, [cell.goodput for cell in row],
                color=colour, marker=".", markersize=4, label=name(mode, count),
            )  # fmt: skip
            low, high = zip(*(cell.goodput_interval for cell in row), strict=True)
            axes.fill_between(chips, low, high, color=colour, alpha=0.2, linewidth=0)
            dots = published.get((mode, count), ())
            if dots:
                axes.plot(*zip(*dots, strict=True), "o", color=colour, markersize=7, fillstyle="none", clip_on=False)
        chips_axis(axes, sorted({cell.chips for cell in cells}))
        axes.set_ylim(0.0, 1.0)
        axes.set_ylabel("goodput")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        figure.legend(loc="outside right center", borderpad=0.2)
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


def standalone(svg: str) -> str:
    """The figure with its colours, light and dark, and its font."""
    style = (
        f"svg {{ {variables(dark=False)} background: var(--paper); font-family: system-ui, sans-serif; }}"
        f" @media (prefers-color-scheme: dark) {{ svg {{ {variables(dark=True)} }} }}"
    )
    opening, rest = svg.split(">", 1)
    return f"{opening}><style>{style}</style>{rest}\n"
