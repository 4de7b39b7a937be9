"""Bytes of every learner, beside those of data-parallel training."""

from __future__ import annotations

from matplotlib.ticker import EngFormatter, MaxNLocator

from orchestrator.report.canvas import WIDE, bare, label, light, sheet, to_svg
from orchestrator.report.data import Data
from orchestrator.report.figures.marks import beside, legend

LEARNERS_MOST = 64


def draw(data: Data, width: int, words: str) -> str | None:
    """None where the log tells no sizes, or the recipe no codec."""
    links = [link for link in data.links if link.total is not None][:LEARNERS_MOST]
    if not links:
        return None
    wide = width == WIDE
    columns = 5 if wide else 2
    items = [("up", "contributions up"), ("down", "versions down"), ("joins", "versions down at a join")]
    items += [("peers", "state from a peer")] if any(link.peers for link in links) else []
    items += [("conventional", "data-parallel, same steps")] if any(link.data_parallel for link in links) else []
    with sheet(width, 38.0 * len(links) + 54 + 20 * -(-len(items) // columns)) as figure:
        axes = bare(figure.subplots())
        for row, link in enumerate(links):
            left = 0.0
            for role, length in (
                ("up", link.up or 0),
                ("down", link.down),
                ("joins", link.joins),
                ("peers", link.peers),
            ):
                if length:
                    axes.barh(row - 0.18, length, left=left, height=0.32, color=light(role), linewidth=0)
                left += length
            if link.data_parallel:
                axes.barh(row + 0.18, link.data_parallel, height=0.32, color=light("conventional"), linewidth=0)
                beside(axes, link.data_parallel, row + 0.18, f"{link.data_parallel / left:.1f}×" if left else "")
        most = max(max(link.data_parallel, link.total or 0) for link in links)
        axes.set_xlim(0, max(1.0, most) * 1.1)
        axes.set_ylim(len(links) - 0.5, -0.5)
        axes.set_yticks(range(len(links)), [label(link.learner, 24 if wide else 16) for link in links])
        axes.tick_params(axis="y", length=0)
        axes.xaxis.set_major_formatter(EngFormatter(unit="B"))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6 if wide else 4))
        axes.set_xlabel("bytes sent over the whole run")
        axes.grid(axis="x")
        legend(figure, items, columns)
        return to_svg(figure, f"wire-{width}", words)
