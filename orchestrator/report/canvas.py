"""The report's colours, and its figures as pieces of SVG. The same figure always gives the same bytes.

Text stays text, colours become the names of their roles, identifiers are made unique to the figure, and what the page
does not need is dropped. One unit of the SVG is one CSS pixel at full width.

Colours are those of Okabe and Ito, which colour-blind readers can tell apart; neighbours in a figure also differ in
lightness. A figure is drawn in the light colours, each used by one role only. The page's style sheet says what a role
looks like on light paper and on dark screens.
"""

from __future__ import annotations

import io
import re
import unicodedata
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from orchestrator.report.data import FaultMark

ROLES: dict[str, tuple[str, str]] = {  # role: (light, dark)
    "ink": ("#1c2430", "#e8ebef"),
    "faint": ("#5b6572", "#a2abb6"),
    "rule": ("#d9dde3", "#39414c"),
    "paper": ("#fffffe", "#14181d"),
    "train": ("#0072b2", "#5cb3ea"),
    "held": ("#d55e00", "#ff9147"),
    "fault": ("#b3261e", "#ff8a80"),
    "recovery": ("#f4c7a1", "#6b4526"),
    # what a learner was doing
    "productive": ("#8dbfe0", "#33698f"),
    "placing": ("#c3c9d1", "#545e6b"),
    "importing": ("#f2dc7e", "#9a8431"),
    "compiling": ("#e69f00", "#c98b00"),
    "joining": ("#009e73", "#19b78b"),
    "draining": ("#44aa99", "#2f8376"),
    "frozen": ("#cc79a7", "#c678a5"),
    "expired": ("#d55e01", "#ff9148"),
    "dead": ("#3b4250", "#c5ccd5"),
    "wasted": ("#7a4a21", "#c08a5a"),
    "waiting": ("#f0e442", "#b8ae26"),
    "pending": ("#56b4e9", "#7cc6f2"),
    "unexplained": ("#e9ebee", "#2c333c"),
    # shares, from none to all
    "share0": ("#f6f7f9", "#1f252c"),
    "share1": ("#d7e6f2", "#22384a"),
    "share2": ("#b0d0e8", "#275069"),
    "share3": ("#7fb2d8", "#2f6f96"),
    "share4": ("#3f8abf", "#3f86b0"),
    "share5": ("#0b5a94", "#6db6e3"),
    # bytes
    "up": ("#0072b3", "#5cb3eb"),
    "down": ("#56b4e8", "#2d79a8"),
    "joins": ("#009e74", "#19b78c"),
    "peers": ("#e69f01", "#c98b01"),
    "conventional": ("#a9b1bb", "#69737f"),
}


def light(role: str) -> str:
    """The colour in which a role is drawn."""
    return ROLES[role][0]


def variables(dark: bool) -> str:
    """The roles as custom properties of a style sheet."""
    return " ".join(f"--{role}: {colours[dark]};" for role, colours in ROLES.items())


WIDE, NARROW = 860, 360  # pixels
SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_ROLE_OF = {colours[0]: role for role, colours in ROLES.items()}
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "report",
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
    """The figure as an `<svg>` element that says its words to those who cannot see it."""
    raw = io.StringIO()
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # the reader's font will have it
        figure.savefig(raw, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    root = ElementTree.fromstring(raw.getvalue())
    width, height = (float(number) for number in root.attrib["viewBox"].split()[2:])
    _prune(root)
    used = {name for element in root.iter() for name in _references(element)}
    for element in root.iter():
        _tidy(element, key, used)
    root.attrib.clear()
    root.attrib.update({"viewBox": f"0 0 {width:g} {height:g}", "role": "img", "aria-label": words})
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    return ElementTree.tostring(root, encoding="unicode")


def _prune(element: ElementTree.Element) -> None:
    """Without metadata, style sheets, and patches that show nothing."""
    for child in list(element):
        name = child.tag.removeprefix(f"{{{SVG}}}")
        if name in ("metadata", "style"):
            element.remove(child)
            continue
        _prune(child)
        if name in ("g", "defs") and not len(child):
            element.remove(child)


def _references(element: ElementTree.Element) -> Iterator[str]:
    for value in element.attrib.values():
        yield from re.findall(r"url\(#([^)]+)\)", value)
    link = element.get(f"{{{XLINK}}}href")
    if link:
        yield link.removeprefix("#")


def _tidy(element: ElementTree.Element, key: str, used: set[str]) -> None:
    attributes = element.attrib
    if "id" in attributes:
        if attributes["id"] in used:
            attributes["id"] = f"{key}-{attributes['id']}"
        else:
            del attributes["id"]
    link = attributes.pop(f"{{{XLINK}}}href", None)
    if link:
        attributes["href"] = f"#{key}-{link.removeprefix('#')}"
    if "clip-path" in attributes:
        attributes["clip-path"] = attributes["clip-path"].replace("url(#", f"url(#{key}-")
    if "d" in attributes:
        attributes["d"] = re.sub(r"\s+", " ", _rounded(attributes["d"])).strip()
    for name in ("transform", "x", "y"):
        if name in attributes:
            attributes[name] = _rounded(attributes[name])
    if "style" in attributes:
        attributes["style"] = _styled(attributes["style"])
    if element.text is not None and not element.text.strip():
        element.text = None
    element.tail = "\n" if element.tag == f"{{{SVG}}}g" else None


def _rounded(text: str) -> str:
    return re.sub(r"-?\d+\.\d+(e-?\d+)?", lambda found: f"{float(found.group()):.2f}".rstrip("0").rstrip("."), text)


def _styled(style: str) -> str:
    """Colours by their roles, and the font of the page."""
    kept = [part.strip() for part in style.split(";") if part.strip()]
    kept = [part for part in kept if not part.startswith(("font-family", "stroke-linejoin", "text-anchor: start"))]
    roles = (re.sub(r"#[0-9a-f]{6}", lambda found: _role(found.group()), part) for part in kept)
    return "; ".join(re.sub(r"^font: (\w+ )*([\d.]+px).*", r"font-size: \2", part) for part in roles)


def _role(colour: str) -> str:
    return f"var(--{_ROLE_OF[colour]})" if colour in _ROLE_OF else colour


# ------------------------------------------------------------------ marks

# What several figures share: an axis of time, faults as numbered marks, and legends.


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
