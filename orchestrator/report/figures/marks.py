"""What several figures share: an axis of time, faults as numbered marks, and legends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from orchestrator.report.canvas import light
from orchestrator.report.data import FaultMark

NUMBERED_MOST = 24  # more marks than that, and their numbers would cover each other
SPREAD_MOST = 40  # pixels over which several marks share one label
TIME_UNITS = ((3 * 86400.0, 86400.0, "days"), (3 * 3600.0, 3600.0, "hours"), (300.0, 60.0, "minutes"))


def time_axis(axes: Axes, length_s: float, stepped: bool) -> None:
    """Ticks of an axis whose data are seconds, in the unit that fits its length."""
    scale, unit = next(((scale, unit) for least, scale, unit in TIME_UNITS if length_s >= least), (1.0, "seconds"))
    locator = MaxNLocator(nbins=7, steps=[1, 2, 2.5, 5, 10])
    axes.xaxis.set_major_locator(_Scaled(locator, scale))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / scale:g}"))
    axes.set_xlabel(f"{unit} since the first {'learner step' if stepped else 'event'}")


class _Scaled(MaxNLocator):
    """Round ticks in another unit than the data's."""

    def __init__(self, inner: MaxNLocator, scale: float) -> None:
        super().__init__(nbins=7, steps=[1, 2, 2.5, 5, 10])
        self._inner, self._factor = inner, scale

    def tick_values(self, vmin: float, vmax: float) -> Sequence[float]:
        return [value * self._factor for value in self._inner.tick_values(vmin / self._factor, vmax / self._factor)]


def fault_lines(axes: Axes, places: Sequence[tuple[FaultMark, float, float | None]], width: float) -> None:
    """Each fault as a line at its place with its number above, and the way to its recovery shaded.

    `width` is the axis' width in pixels: numbers that would touch share one place, "2, 3".
    """
    crowded = len(places) > NUMBERED_MOST
    for _, place, until in places:
        if until is not None:
            axes.axvspan(place, until, color=light("recovery"), alpha=0.55, linewidth=0, zorder=0.5)
        axes.axvline(place, color=light("fault"), linewidth=0.9, alpha=0.3 if crowded else None, zorder=1)
    low, high = axes.get_xlim()
    for text, place in labels([(mark, place) for mark, place, _ in places], (high - low) / width):
        axes.text(
            place, 1.0, text, transform=axes.get_xaxis_transform(), ha="center", va="bottom", fontsize=10.5,
            color=light("fault"),
        )  # fmt: skip


def labels(places: Iterable[tuple[FaultMark, float]], pixel: float) -> list[tuple[str, float]]:
    """Numbers of marks, neighbours joined where they would overlap."""
    groups: list[list[tuple[FaultMark, float]]] = []
    for mark, place in sorted(places, key=lambda item: (item[1], item[0].number)):
        if groups and place - groups[-1][-1][1] < 16 * pixel:
            groups[-1].append((mark, place))
        else:
            groups.append([(mark, place)])
    if len(groups) > NUMBERED_MOST or any(group[-1][1] - group[0][1] > SPREAD_MOST * pixel for group in groups):
        return []
    return [(_numbers([mark.number for mark, _ in group]), group[0][1]) for group in groups]


def _numbers(numbers: list[int]) -> str:
    return ",".join(map(str, numbers)) if len(numbers) < 3 else f"{min(numbers)}–{max(numbers)}"


def legend(figure: Figure, items: Sequence[tuple[str, str]], columns: int) -> None:
    """Squares of colour with their meaning, (role, words), above everything."""
    handles = [
        Patch(facecolor=light(role), edgecolor=light("rule"), linewidth=0.5, label=words) for role, words in items
    ]
    figure.legend(
        handles=handles, ncols=columns, loc="outside upper left", borderpad=0.2, handlelength=1.0, handleheight=0.9,
        columnspacing=1.2, handletextpad=0.5,
    )  # fmt: skip


def beside(axes: Axes, x: float, y: float, words: str) -> None:
    """A value to the right of the end of its bar."""
    axes.annotate(words, (x, y), xytext=(4, 0), textcoords="offset points", va="center", ha="left", fontsize=10.5)
