"""Participation as a heat strip: each learner's share of the commits of each round."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from orchestrator.report.canvas import WIDE, bare, label, light, sheet, to_svg
from orchestrator.report.data import Data
from orchestrator.report.figures.marks import legend
from orchestrator.report.participation import Rounds
from orchestrator.report.series import chunks

CLASSES = ("none", "under 25 %", "25 to 49 %", "50 to 74 %", "75 to 99 %", "all")
LEARNERS_MOST = 64


def draw(data: Data, width: int, words: str) -> str | None:
    """None for a log without commits."""
    rounds = data.rounds
    if rounds is None:
        return None
    wide = width == WIDE
    names = list(rounds.by_learner)[:LEARNERS_MOST]
    groups = list(chunks(range(len(rounds.commits)), 180 if wide else 72))
    with sheet(width, 21.0 * len(names) + (84 if wide else 100)) as figure:
        axes = bare(figure.subplots())
        for index, name in enumerate(names):
            _strip(axes, rounds, name, groups, index)
        last = rounds.count
        axes.set_xlim(0.5, last + 0.5)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_yticks(range(len(names)), [label(name, 24 if wide else 16) for name in names])
        axes.tick_params(axis="y", length=0)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=9 if wide else 5, integer=True, steps=[1, 2, 5, 10]))
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(
            "round"
            if len(groups) == last
            else f"round ({rounds.per * -(-len(rounds.commits) // len(groups))} in a column)"
        )
        legend(figure, [(f"share{index}", words) for index, words in enumerate(CLASSES)], 6 if wide else 3)
        return to_svg(figure, f"rounds-{width}", words)


def share_class(taken: int, commits: int) -> int:
    """0: none, 5: all, and four steps between."""
    if taken == 0 or commits == 0:
        return 0
    return 5 if taken == commits else 1 + min(3, 4 * taken // commits)


def _strip(axes: Axes, rounds: Rounds, name: str, groups: list[Sequence[int]], row: int) -> None:
    """One learner's cells, neighbours of one class drawn as one."""
    runs: dict[int, list[tuple[float, float]]] = {}
    before = None
    for group in groups:
        taken = sum(rounds.by_learner[name][index] for index in group)
        level = share_class(taken, sum(rounds.commits[index] for index in group))
        start, length = rounds.per * group[0] + 0.5, float(rounds.per * len(group))
        if level == before:
            start, known = runs[level].pop()
            length += known
        runs.setdefault(level, []).append((start, length))
        before = level
    for level, spans in sorted(runs.items()):
        axes.broken_barh(
            spans, (row - 0.42, 0.84), facecolors=light(f"share{level}"), edgecolor=light("rule"), linewidth=0.3
        )
