"""The studies' figures as SVG. The same figure always gives the same bytes.

One unit of the SVG is one CSS pixel at full width. A figure is drawn in the report's light colours, each used by one
role only; its style sheet says what a role looks like on light paper and on dark screens.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from xml.sax.saxutils import quoteattr

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from orchestrator.report.palette import ROLES

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_ROLE_OF = {colours[0]: role for role, colours in ROLES.items()}


def light(role: str) -> str:
    """The colour in which a role is drawn."""
    return ROLES[role][0]


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
    """An empty figure of this size in pixels, under the studies' style."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width / 72, height / 72), dpi=72)
        figure.patch.set_visible(False)
        yield figure


def bare(axes: Axes) -> Axes:
    """Axes without a background."""
    axes.patch.set_visible(False)
    return axes


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
