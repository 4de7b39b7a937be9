"""Loss against committed tokens and against time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from orchestrator.report.canvas import WIDE, bare, light, sheet, to_svg
from orchestrator.report.data import Data
from orchestrator.report.figures.marks import fault_lines, time_axis

JOINED_LEAST = 40  # held-out losses that lie close enough to be a curve; fewer are points
LOG_LEAST = 2.5  # highest loss / lowest from which the scale is logarithmic


def draw(data: Data, width: int, words: str) -> str | None:
    """None for a log without any loss."""
    if not data.training and not data.held_out:
        return None
    wide = width == WIDE
    with sheet(width, 340 if wide else 560) as figure:
        panels = figure.subplots(1, 2, sharey=True) if wide else figure.subplots(2, 1)
        by_tokens, by_time = (bare(axes) for axes in panels)
        _curves(by_tokens, data, lambda point: point.tokens, wide)
        _curves(by_time, data, lambda point: point.at_s, not wide)
        by_tokens.xaxis.set_major_formatter(EngFormatter(sep=""))
        by_tokens.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))
        by_tokens.set_xlabel("tokens committed")
        time_axis(by_time, data.end_s, data.stepped)
        for axes in panels[: 1 if wide else 2]:
            _loss_axis(axes, data)
        across = width / 2 if wide else width
        fault_lines(by_tokens, [(mark, float(mark.tokens), None) for mark in data.marks], across)
        fault_lines(by_time, [(mark, mark.at_s, mark.until_s) for mark in data.marks], across)
        figure.legend(
            handles=_handles(data), loc="outside upper left", ncols=5 if wide else 2, columnspacing=1.4, borderpad=0.2
        )
        return to_svg(figure, f"loss-{width}", words)


def _loss_axis(axes: Axes, data: Data) -> None:
    """Linear, or logarithmic where the fall at the start would hide all the rest."""
    unit = data.summary.get("loss_unit") or "loss"
    values = [point.value for point in data.held_out]
    values += [value for bin in data.training for value in (bin.low, bin.high)]
    if 0 < min(values) * LOG_LEAST < max(values):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 4, 6)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_ylabel(f"{unit}, log scale")
    else:
        axes.set_ylabel(unit)


def _curves(axes: Axes, data: Data, place: Callable[[Any], float], named: bool) -> None:
    if data.training:
        xs = [place(bin) for bin in data.training]
        axes.fill_between(
            xs, [bin.low for bin in data.training], [bin.high for bin in data.training],
            color=light("train"), alpha=0.22, linewidth=0,
        )  # fmt: skip
        axes.plot(xs, [bin.middle for bin in data.training], color=light("train"), linewidth=1.4)
    if data.held_out:
        xs = [place(point) for point in data.held_out]
        values = [point.value for point in data.held_out]
        few = len(xs) <= JOINED_LEAST
        axes.plot(
            xs,
            values,
            color=light("held"),
            linewidth=0 if few else 1.3,
            marker="o" if few else "",
            markersize=5,
            zorder=3,
        )
    axes.grid(axis="y")
    axes.margins(x=0.02)
    axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
    for name, value in (data.summary["reference_losses"] or {}).items():
        if value is not None:
            axes.axhline(value, color=light("ink"), linewidth=0.9, linestyle=(0, (4, 3)), zorder=2)
            axes.annotate(
                f"{name} {value:.2f}", (1.0, value), xycoords=axes.get_yaxis_transform(), xytext=(0, 2),
                textcoords="offset points", ha="right", va="bottom", fontsize=10,
                bbox={"facecolor": light("paper"), "edgecolor": "none", "alpha": 0.8, "pad": 0.8}, zorder=4,
            )  # fmt: skip


def _handles(data: Data) -> list[Any]:
    handles: list[Any] = []
    if data.held_out:
        handles.append(Line2D([], [], color=light("held"), marker="o", markersize=5, linewidth=0, label="held-out"))
    if data.training:
        handles.append(Line2D([], [], color=light("train"), label="training, median"))
        handles.append(Patch(color=light("train"), alpha=0.22, linewidth=0, label="80 % of steps"))
    if data.marks:
        handles.append(Line2D([], [], color=light("fault"), linewidth=0.9, label="fault"))
        if any(mark.until_s is not None for mark in data.marks):
            handles.append(Patch(color=light("recovery"), alpha=0.55, linewidth=0, label="recovering"))
    return handles
