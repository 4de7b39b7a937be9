"""Where the learners' time went: all of it, and magnified what was not productive."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from orchestrator.report.canvas import WIDE, bare, label, light, sheet, to_svg
from orchestrator.report.data import Data
from orchestrator.report.figures.marks import legend

GROUPS: dict[str, tuple[str, tuple[str, ...]]] = {  # role: (words, categories of goodput)
    "productive": ("productive", ("productive",)),
    "pending": ("in flight", ("in_flight",)),
    "wasted": ("wasted", ("wasted_killed", "wasted_drained", "wasted_overlap", "wasted_refused", "wasted_run_ended")),
    "waiting": ("waiting for data or adoption", ("data_stall", "sync_blocked")),
    "frozen": ("frozen", ("suspended",)),
    "dead": ("fault noticed, restart decided", ("fault_detect", "fault_recover")),
    "placing": ("waiting for a place", ("provision_wait",)),
    "importing": ("starting, importing", ("startup",)),
    "compiling": ("compiling", ("compile",)),
    "joining": ("joining", ("bootstrap",)),
    "draining": ("leaving", ("drain",)),
    "unexplained": ("unattributed", ("unattributed",)),
}
LEARNERS_MOST = 64


def grouped(spent: Mapping[str, float]) -> dict[str, float]:
    """One learner's seconds by role; categories that no group names are unexplained."""
    seconds = {role: sum(spent.get(name, 0.0) for name in names) for role, (_, names) in GROUPS.items()}
    known = {name for _, names in GROUPS.values() for name in names}
    seconds["unexplained"] += sum(value for name, value in spent.items() if name not in known)
    return seconds


def draw(data: Data, width: int, words: str) -> str | None:
    """None where there are no accounts."""
    learners = {name: grouped(spent) for name, spent in list(data.seconds.items())[:LEARNERS_MOST]}
    wall = sum(next(iter(learners.values())).values()) if learners else 0.0
    if wall <= 0:
        return None
    wide = width == WIDE
    least = wall * 5e-4
    roles = [role for role in GROUPS if any(seconds[role] > least for seconds in learners.values())]
    columns = 5 if wide else 2
    body = 22.0 * len(learners) + 46
    height = body * (1 if wide else 2) + 22 * -(-len(roles) // columns) + 30
    with sheet(width, height) as figure:
        panels = figure.subplots(1, 2, sharey=True) if wide else figure.subplots(2, 1)
        whole, rest = (bare(axes) for axes in panels)
        for row, seconds in enumerate(learners.values()):
            _stack(whole, row, seconds, roles, wall)
            _stack(rest, row, seconds, [role for role in roles if role != "productive"], 1.0)
        whole.set_xlim(0, 1)
        whole.xaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
        whole.set_xlabel("share of the run's time")
        most = max(
            sum(value for role, value in seconds.items() if role != "productive") for seconds in learners.values()
        )
        rest.set_xlim(0, max(most * 1.04, 1e-3))
        rest.xaxis.set_major_locator(MaxNLocator(nbins=6))
        rest.set_xlabel("seconds that were not productive")
        for axes in (whole, rest):
            axes.set_yticks(range(len(learners)), [label(name, 24 if wide else 16) for name in learners])
            axes.set_ylim(len(learners) - 0.5, -0.5)
            axes.tick_params(axis="y", length=0)
            axes.grid(axis="x")
        legend(figure, [(role, GROUPS[role][0]) for role in roles], columns)
        return to_svg(figure, f"time-{width}", words)


def _stack(axes: Axes, row: int, seconds: Mapping[str, float], roles: list[str], scale: float) -> None:
    left = 0.0
    for role in roles:
        length = seconds[role] / scale
        if length > 0:
            axes.barh(row, length, left=left, height=0.66, color=light(role), linewidth=0)
        left += length
