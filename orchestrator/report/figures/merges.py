"""How outer steps waited and how old things were: quorum, grace and sync over time, and two ages."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from orchestrator.report.canvas import WIDE, bare, light, sheet, to_svg
from orchestrator.report.data import Data
from orchestrator.report.figures.marks import fault_lines, time_axis

PARTS = ("until the quorum", "grace after it", "merge until durable")
GAP = 4  # median distances between neighbours from which a line is broken
AGES_MOST = 8  # what is older is counted in the last bar


def draw_waits(data: Data, width: int, words: str) -> str | None:
    """Medians and maxima of the three parts of an outer step; None without commits."""
    if not data.merges:
        return None
    wide = width == WIDE
    with sheet(width, 330 if wide else 400) as figure:
        panels = figure.subplots(3, 1, sharex=True)
        xs = [bin.at_s for bin in data.merges]
        for index, axes in enumerate(map(bare, panels)):
            most = [bin.most[index] for bin in data.merges]
            axes.vlines(xs, 0, most, color=light("share2"), linewidth=min(6.0, 0.85 * width / len(xs)))
            axes.plot(*broken(xs, [bin.middle[index] for bin in data.merges]), color=light("train"), linewidth=1.2)
            axes.set_ylim(0, max(1.08 * max(most), 1e-3))
            if not any(most):
                axes.text(0.5, 0.45, "none was waited", transform=axes.transAxes, ha="center", color=light("faint"))
            axes.set_xlim(0, max(data.end_s, 1e-3))
            axes.yaxis.set_major_locator(MaxNLocator(nbins=3))
            axes.grid(axis="y")
            axes.set_title(f"{PARTS[index]}, seconds", fontsize=11, fontweight="normal", pad=14 if not index else 5)
            places = [(mark, mark.at_s, mark.until_s) for mark in data.marks]
            fault_lines(axes, places if not index else [], width)
            if index:
                for mark in data.marks:
                    axes.axvline(mark.at_s, color=light("fault"), linewidth=0.9)
        time_axis(panels[-1], data.end_s, data.stepped)
        return to_svg(figure, f"waits-{width}", words)


def broken(xs: list[float], ys: list[float]) -> tuple[list[float], list[float]]:
    """The points of a line that does not bridge times without commits."""
    gaps = [after - before for before, after in pairwise(xs)]
    most = GAP * statistics.median(gaps) if gaps else 0.0
    places, values = xs[:1], ys[:1]
    for gap, x, y in zip(gaps, xs[1:], ys[1:], strict=True):
        if gap > most:
            places.append(x)
            values.append(math.nan)
        places.append(x)
        values.append(y)
    return places, values


def draw_ages(data: Data, width: int, words: str) -> str | None:
    """Two histograms of whole numbers; None when both are empty."""
    if not data.contribution_age and not data.version_age:
        return None
    wide = width == WIDE
    with sheet(width, 210 if wide else 380) as figure:
        panels = figure.subplots(1, 2) if wide else figure.subplots(2, 1)
        left, right = map(bare, panels)
        _histogram(left, data.contribution_age, "contributions at their merge", "learner steps since they were read")
        _histogram(right, data.version_age, "versions at their adoption", "syncer steps since their commit")
        return to_svg(figure, f"ages-{width}", words)


def _histogram(axes: Axes, ages: Counter[int], title: str, unit: str) -> None:
    total = ages.total()
    folded: Counter[int] = Counter()
    for age, count in ages.items():
        folded[min(age, AGES_MOST)] += count
    last = max(folded, default=0)
    shares = [folded[age] / total if total else 0.0 for age in range(last + 1)]
    axes.bar(range(last + 1), shares, width=0.8, color=light("productive"), linewidth=0)
    for age, share in enumerate(shares):
        if share:
            words = f"{100 * share:.0f} %" if share >= 0.005 else "<1 %"
            axes.text(age, share, words, ha="center", va="bottom", fontsize=9.5)
    axes.set_title(f"Age of {title}", fontsize=11.5, fontweight="normal")
    axes.set_xlabel(unit)
    axes.set_xticks(range(last + 1), [f"{age}+" if age == AGES_MOST else str(age) for age in range(last + 1)])
    axes.set_xlim(-0.6, max(last, 4) + 0.6)
    axes.set_ylim(0, max([*shares, 0.01]) * 1.18)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    axes.grid(axis="y")
