"""How long each recovery took, split by what it was waiting for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.ticker import MaxNLocator

from orchestrator.report.canvas import WIDE, bare, label, light, sheet, to_svg
from orchestrator.report.data import Data
from orchestrator.report.figures.marks import beside, legend

PHASES: dict[str, tuple[str, str]] = {  # phase of the summary: (role, words)
    "detect": ("dead", "detect"),
    "decide": ("wasted", "decide"),
    "start": ("placing", "place and start"),
    "import": ("importing", "import"),
    "compile": ("compiling", "compile"),
    "state": ("joining", "join: state"),
    "first_contribution": ("pending", "first contribution"),
}
MOST = 40


def draw(data: Data, width: int, words: str) -> str | None:
    """None where nothing recovered."""
    rows = [(number, row) for number, row in enumerate(data.summary["faults"], 1) if row["recovery_s"] is not None]
    rows = rows[:MOST]
    if not rows:
        return None
    wide = width == WIDE
    present = [name for name in PHASES if any(row["recovery_phases"].get(name) for _, row in rows)]
    columns = 7 if wide else 3
    with sheet(width, 24.0 * len(rows) + 54 + 20 * -(-(len(present) + 1) // columns)) as figure:
        axes = bare(figure.subplots())
        for place, (_, row) in enumerate(rows):
            left = 0.0
            for length, role in _parts(row):
                axes.barh(place, length, left=left, height=0.62, color=light(role), linewidth=0)
                left += length
            beside(axes, left, place, f"{row['recovery_s']:.1f} s")
        names = [f"{number} {row['kind']}" + (f" {row['target']}" if wide else "") for number, row in rows]
        axes.set_yticks(range(len(rows)), [label(name, 32) for name in names])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlim(0, max(row["recovery_s"] for _, row in rows) * 1.12)
        axes.tick_params(axis="y", length=0)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=7))
        axes.set_xlabel("seconds after the fault")
        axes.grid(axis="x")
        items = [PHASES[name] for name in present]
        if any(role == "unexplained" and length > 0.05 for _, row in rows for length, role in _parts(row)):
            items.append(("unexplained", "frozen, or not told"))
        legend(figure, items, columns)
        return to_svg(figure, f"recoveries-{width}", words)


def _parts(row: Mapping[str, Any]) -> list[tuple[float, str]]:
    """The phases in order, and before the first contribution what they leave of the recovery's time."""
    known = [(name, row["recovery_phases"].get(name)) for name in PHASES]
    rest = row["recovery_s"] - sum(value for _, value in known if value)
    parts = [(value, PHASES[name][0]) for name, value in known if value]
    if rest > 1e-6:
        first = row["recovery_phases"].get("first_contribution")
        parts.insert(len(parts) - bool(first), (rest, "unexplained"))
    return parts
