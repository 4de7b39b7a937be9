"""The report's figures as pieces of SVG. The same figure always gives the same bytes.

One unit of the SVG is one CSS pixel at full width. A figure is drawn in the palette's light colours, each used by one
role only; the page's style sheet says what a role looks like on light paper and on dark screens.
"""

from __future__ import annotations

import io
import re
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from xml.sax.saxutils import quoteattr

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from orchestrator.report.data import FaultMark
from orchestrator.report.palette import ROLES, light

WIDTH = 860  # pixels
SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_ROLE_OF = {colours[0]: role for role, colours in ROLES.items()}
_STYLE: Any = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # names are not formulas
    "font.family": "DejaVu Sans",  # comes with matplotlib; wider than what pages are shown in, so labels keep clear
    "font.size": 11.5,
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.labelsize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": light("faint"),
    "axes.labelcolor": light("faint"),
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "text.color": light("ink"),
    "xtick.color": light("faint"),
    "ytick.color": light("faint"),
    "xtick.labelsize": 10.5,
    "ytick.labelsize": 10.5,
    "grid.color": light("rule"),
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 10.5,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.h_pad": 0.06,
    "path.simplify": True,
}


@contextmanager
def sheet(width: int, height: float) -> Iterator[Figure]:
    """An empty figure of this size in pixels, under the report's style."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width / 72, height / 72), dpi=72)
        figure.patch.set_visible(False)
        yield figure


def bare(axes: Axes) -> Axes:
    """Axes without a background."""
    axes.patch.set_visible(False)
    return axes


def label(text: str, most: int = 24) -> str:
    """A name for a figure: on one line, printable, and cut in the middle when it is long."""
    plain = "".join(c if unicodedata.category(c)[0] not in "CZ" else " " for c in text).strip() or "?"
    return plain if len(plain) <= most else f"{plain[: most // 2 - 1]}…{plain[-(most // 2) :]}"


def to_svg(figure: Figure, key: str, words: str) -> str:
    """The figure as an `<svg>` element that says its words to those who cannot see it.

    Identifiers are made unique by `key`, colours become the names of their roles, and the page's font is used.
    """
    raw = io.StringIO()
    style = _STYLE | {"svg.hashsalt": key}
    with matplotlib.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # the reader's font will have it
        figure.savefig(raw, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    size = " ".join(f"{72 * length:g}" for length in figure.get_size_inches())
    body = raw.getvalue().split("<svg", 1)[1].split(">", 1)[1]
    body = re.sub(r"<(metadata|style)\b.*?</\1>", "", body, flags=re.DOTALL)
    body = re.sub(r'<g id="[^"]*"', "<g", body)  # nothing refers to groups
    body = re.sub(r"\n +", "\n", body)
    body = re.sub(r'(?<= style=")[^"]*', lambda found: _styled(found.group()), body)
    body = re.sub(r'(?<= d=")[^"]*', lambda found: _rounded(found.group()), body)
    return (
        f'<svg xmlns="{SVG}" xmlns:xlink="{XLINK}" viewBox="0 0 {size}" role="img" aria-label={quoteattr(words)}>{body}'
    )


def _rounded(path: str) -> str:
    path = re.sub(r"-?\d+\.\d+(e-?\d+)?", lambda found: f"{float(found.group()):.2f}", path)
    return " ".join(path.split())


def _role(colour: str) -> str:
    return f"var(--{_ROLE_OF[colour]})" if colour in _ROLE_OF else colour


def _styled(style: str) -> str:
    """Colours by their roles, and the font of the page."""
    style = re.sub(r"#[0-9a-f]{6}", lambda found: _role(found.group()), style)
    style = re.sub(r"font: [^;]*?([\d.]+px)[^;]*", r"font-size: \1", style)
    return re.sub(r"font-family: [^;]*; ", "", style)


# ------------------------------------------------------------------ marks

# What several figures share: an axis of time, faults as numbered marks, and legends.


NUMBERED_MOST = 24  # more marks than that, and their numbers would cover each other
SPREAD_MOST = 40  # pixels over which several marks share one label
LOG_LEAST = 2.5  # highest loss / lowest from which the scale is logarithmic
TIME_UNITS = ((3 * 86400.0, 86400.0, "days"), (3 * 3600.0, 3600.0, "hours"), (300.0, 60.0, "minutes"))


def time_axis(axes: Axes, start: float, stop: float, stepped: bool) -> None:
    """Ticks of an axis whose data are seconds, in the unit that fits its length."""
    scale, unit = next(((scale, unit) for least, scale, unit in TIME_UNITS if stop - start >= least), (1.0, "seconds"))
    ticks = MaxNLocator(nbins=7, steps=[1, 2, 2.5, 5, 10]).tick_values(start / scale, stop / scale)
    kept = [tick for tick in ticks if start <= tick * scale <= stop]
    axes.set_xticks([tick * scale for tick in kept], [f"{tick:g}" for tick in kept])
    axes.set_xlabel(f"{unit} since the first {'learner step' if stepped else 'event'}")


def loss_axis(axes: Axes, losses: Sequence[float], unit: str) -> None:
    """Linear, or logarithmic where the fall at the start would hide all the rest."""
    if 0 < min(losses) * LOG_LEAST < max(losses):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 4, 6)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
        unit += ", log scale"
    axes.set_ylabel(unit)


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


def merged(intervals: Sequence[tuple[float, float]], gap: float) -> list[tuple[float, float]]:
    """Intervals that overlap, or lie closer than `gap`, drawn as one."""
    out: list[tuple[float, float]] = []
    for start, stop in sorted(intervals):
        if out and start - out[-1][1] <= gap:
            out[-1] = (out[-1][0], max(out[-1][1], stop))
        else:
            out.append((start, stop))
    return out
