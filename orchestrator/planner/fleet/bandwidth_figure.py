"""The figure of Gbit/s against compute utilisation. The only module of the bandwidth study that draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from orchestrator.planner.fleet.bandwidth import PAPER, PAPER_PARAMETERS
from orchestrator.planner.fleet.bandwidth_table import Exchange, cells

_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "bandwidth",
    "font.size": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#d9dde3",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}
_LINES = (
    ("data_parallel", 16, "#3b4250", "data-parallel, bf16"),
    ("decoupled", 16, "#0072b2", "Decoupled, bf16"),
    ("decoupled", 4, "#d55e00", "Decoupled, int4"),
)
_UTILISATIONS = tuple(percent / 100 for percent in (40, 45, 50, 55, 60, 65, 70, 75, 80, 85, 90, 93, 95, 96, 97, 98))


def draw(path: Path, exchange: Exchange = Exchange(), step_s: float = 1.0, datacenters: int = 8) -> None:  # noqa: B008
    """Write it, as SVG or whatever the name ends in: the closed form, the simulation, the paper's points."""
    found = list(cells([step_s], [datacenters], [16, 4], _UTILISATIONS, exchange))
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(8.2, 4.6))
        axes = figure.add_subplot()
        for method, bits, colour, name in _LINES:
            line = [cell for cell in found if (cell.method, cell.bits) == (method, bits)]
            across = [100 * cell.utilisation for cell in line]
            axes.plot(across, [cell.gbit_s for cell in line], color=colour, label=f"{name}: closed form")
            held = [float("nan") if c.conserving_gbit_s is None else c.conserving_gbit_s for c in line]
            axes.plot(across, held, color=colour, linestyle=(0, (4, 2)), label="conserving simulation")
            told = [
                c for c in PAPER if (c.method, c.bits, c.step_s, c.datacenters) == (method, bits, step_s, datacenters)
            ]
            if told and exchange.parameters == PAPER_PARAMETERS:
                points = ([100 * c.utilisation for c in told], [c.gbit_s for c in told])
                axes.plot(*points, "o", color=colour, markersize=5, label="the paper's table")
        axes.set_yscale("log")
        axes.set_xlabel("compute utilisation, %")
        axes.set_ylabel("Gbit/s, each way of a datacenter")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_title(_title(exchange, step_s, datacenters), loc="left", fontsize=11)
        figure.legend(loc="outside lower center", ncols=3, fontsize=9)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else {})


def _title(exchange: Exchange, step_s: float, datacenters: int) -> str:
    letters = f"P = {exchange.fragments}, H = {exchange.round_steps}, tau = {exchange.overlap_steps}"
    size = f"{exchange.parameters / 1e9:g} billion parameters"
    return f"{size}, {datacenters} datacenters, steps of {step_s:g} s; simulation at {letters}"
