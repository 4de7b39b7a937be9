"""Gbit/s against compute utilisation as a figure that stands alone: closed form, simulation, the paper's points."""

from __future__ import annotations

from orchestrator.planner.fleet.bandwidth import PAPER, PAPER_PARAMETERS, Method
from orchestrator.planner.fleet.bandwidth_table import Exchange, cells
from orchestrator.planner.fleet.figures import WIDTH, standalone
from orchestrator.report.canvas import bare, sheet, to_svg
from orchestrator.report.palette import light

HEIGHT = 440  # pixels
LINES: tuple[tuple[Method, int, str, str], ...] = (
    ("data_parallel", 16, "dead", "data-parallel, bf16"),
    ("decoupled", 16, "train", "Decoupled, bf16"),
    ("decoupled", 4, "held", "Decoupled, int4"),
)
UTILISATIONS = tuple(percent / 100 for percent in (40, 45, 50, 55, 60, 65, 70, 75, 80, 85, 90, 93, 95, 96, 97, 98))


def bandwidth_figure(exchange: Exchange, step_s: float = 1.0, datacenters: int = 8) -> str:
    """One panel, a colour for each method and number of bits. The paper's dots: where it has such cells."""
    found = list(cells([step_s], [datacenters], [16, 4], UTILISATIONS, exchange))
    with sheet(WIDTH, HEIGHT) as figure:
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
        axes.set_title(_title(exchange, step_s, datacenters))
        figure.legend(loc="outside lower center", ncols=3)
        words = (
            "Gbit/s for a compute utilisation: the closed form, the simulation that conserves bytes, the paper's table"
        )
        return standalone(to_svg(figure, "bandwidth", words))


def _title(exchange: Exchange, step_s: float, datacenters: int) -> str:
    letters = f"P = {exchange.fragments}, H = {exchange.round_steps}, tau = {exchange.overlap_steps}"
    size = f"{exchange.parameters / 1e9:g} billion parameters"
    return f"{size}, {datacenters} datacenters, steps of {step_s:g} s; simulation at {letters}"
