"""The report's figures, each drawn from its data, or None where there is nothing to draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

from orchestrator.report.canvas import (
    WIDTH,
    bare,
    fault_lines,
    label,
    labels,
    legend,
    loss_axis,
    merged,
    sheet,
    time_axis,
    to_svg,
)
from orchestrator.report.data import Data, Lane
from orchestrator.report.palette import light

LEARNERS_MOST = 64  # rows of a figure


def _rows(axes: Axes, names: list[str]) -> None:
    """A row for each learner, the first at the top."""
    axes.set_yticks(range(len(names)), [label(name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)


# ------------------------------------------------------------------ lanes

# What every learner was doing, one incarnation after the other.


MEANING = {  # role: words
    "placing": "waiting for a place",
    "importing": "importing",
    "compiling": "compiling",
    "joining": "joining",
    "productive": "stepping",
    "draining": "leaving",
    "frozen": "frozen",
    "expired": "without a lease",
    "dead": "dead",
}
ROLE = {"stepping": "productive"}


def draw_lanes(data: Data, words: str) -> str | None:
    """None for a log without learners."""
    names = list(dict.fromkeys(lane.learner for lane in data.lanes))[:LEARNERS_MOST]
    if not names:
        return None
    rows = {name: row for row, name in enumerate(names)}
    shown = [lane for lane in data.lanes if lane.learner in rows]
    spans = {name: _spans([lane for lane in shown if lane.learner == name]) for name in names}
    keys = [role for role in MEANING if any(spans[name].get(role) for name in names)]
    with sheet(WIDTH, 30.0 * len(names) + 62 + 19 * -(-len(keys) // 8)) as figure:
        axes = bare(figure.subplots())
        start = min((lane.phases[0][0] for lane in shown if lane.phases), default=0.0)
        stop = max(data.end_s, start + 1e-3)
        pixel = (stop - start) / (WIDTH * 0.75)
        _rows(axes, names)
        axes.set_xlim(start, stop + (stop - start) * 0.01)
        for name, row in rows.items():
            for role, found in spans[name].items():
                thin = role in ("expired", "dead")
                least = 0.8 if thin or role == "frozen" else 0.1  # pixels, so that short ones can be seen
                drawn = [(at, max(until - at, least * pixel)) for at, until in merged(found, 0.3 * pixel)]
                place, height = (row + 0.34, 0.14) if thin else (row + 0.06, 0.42)
                axes.broken_barh(drawn, (place - height / 2, height), facecolors=light(role), linewidth=0, zorder=2)
            marks = [(mark, mark.at_s) for mark in data.marks if mark.target == name]
            axes.plot([at for _, at in marks], [row - 0.3] * len(marks), "v", color=light("fault"), clip_on=False)
            for numbers, at in labels(marks, pixel):
                axes.annotate(
                    numbers, (at, row - 0.3), xytext=(6, 0), textcoords="offset points", fontsize=10, va="center",
                    color=light("fault"), zorder=5, annotation_clip=False,
                )  # fmt: skip
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x")
        time_axis(axes, start, stop, data.stepped)
        legend(figure, [(key, MEANING[key]) for key in keys], 8)
        return to_svg(figure, "lanes", words)


def _spans(lanes: list[Lane]) -> dict[str, list[tuple[float, float]]]:
    """One learner's spans by role; later roles are drawn above earlier ones."""
    spans: dict[str, list[tuple[float, float]]] = {}
    for lane in lanes:
        for start, stop, phase in lane.phases:
            role = ROLE.get(phase, phase)
            spans.setdefault(role if role in MEANING else "unexplained", []).append((start, stop))
    spans["frozen"] = [span for lane in lanes for span in lane.frozen]
    spans["expired"] = [span for lane in lanes for span in lane.expired]
    spans["dead"] = [lane.dead for lane in lanes if lane.dead is not None]
    return spans


# ------------------------------------------------------------------ loss

# Loss against committed tokens and against time.


JOINED_LEAST = 40  # held-out losses that lie close enough to be a curve; fewer are points


def draw_loss(data: Data, words: str) -> str | None:
    """None for a log without any loss."""
    if not data.training and not data.held_out:
        return None
    with sheet(WIDTH, 340) as figure:
        by_tokens, by_time = panels = figure.subplots(1, 2, sharey=True)
        for axes in panels:
            bare(axes).grid(axis="y")
        _curves(by_tokens, data, lambda point: point.tokens)
        _curves(by_time, data, lambda point: point.at_s)
        by_tokens.xaxis.set_major_formatter(EngFormatter(sep=""))
        by_tokens.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))
        by_tokens.set_xlabel("tokens committed")
        time_axis(by_time, 0.0, data.end_s, data.stepped)
        losses = [point.value for point in data.held_out]
        losses += [value for bin in data.training for value in (bin.low, bin.high)]
        loss_axis(by_tokens, losses, data.summary.get("loss_unit") or "loss")
        fault_lines(by_tokens, [(mark, float(mark.tokens), None) for mark in data.marks], WIDTH / 2)
        fault_lines(by_time, [(mark, mark.at_s, mark.until_s) for mark in data.marks], WIDTH / 2)
        figure.legend(handles=_handles(data), loc="outside upper left", ncols=5, columnspacing=1.4, borderpad=0.2)
        return to_svg(figure, "loss", words)


def _curves(axes: Axes, data: Data, place: Callable[[Any], float]) -> None:
    if data.training:
        xs = [place(bin) for bin in data.training]
        low, high = [bin.low for bin in data.training], [bin.high for bin in data.training]
        axes.fill_between(xs, low, high, color=light("train"), alpha=0.22, linewidth=0)
        axes.plot(xs, [bin.middle for bin in data.training], color=light("train"), linewidth=1.4)
    if data.held_out:
        style: Any = {"linewidth": 1.3}
        if len(data.held_out) <= JOINED_LEAST:
            style = {"linewidth": 0, "marker": "o", "markersize": 5}
        xs = [place(point) for point in data.held_out]
        axes.plot(xs, [point.value for point in data.held_out], color=light("held"), zorder=3, **style)
    axes.margins(x=0.02)
    axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))


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


# ------------------------------------------------------------------ time

# Where the learners' time went: all of it, and magnified what was not productive.


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


def grouped(spent: Mapping[str, float]) -> dict[str, float]:
    """One learner's seconds by role; categories that no group names are unexplained."""
    seconds = {role: sum(spent.get(name, 0.0) for name in names) for role, (_, names) in GROUPS.items()}
    known = {name for _, names in GROUPS.values() for name in names}
    seconds["unexplained"] += sum(value for name, value in spent.items() if name not in known)
    return seconds


def draw_time(data: Data, words: str) -> str | None:
    """None where there are no accounts."""
    learners = {name: grouped(spent) for name, spent in list(data.seconds.items())[:LEARNERS_MOST]}
    wall = sum(next(iter(learners.values())).values()) if learners else 0.0
    if wall <= 0:
        return None
    roles = [role for role in GROUPS if any(seconds[role] > wall * 5e-4 for seconds in learners.values())]
    rows = -(-len(roles) // 5)
    with sheet(WIDTH, 22.0 * len(learners) + 76 + 22 * rows) as figure:
        whole, rest = panels = figure.subplots(1, 2, sharey=True)
        for axes in panels:
            _rows(bare(axes), list(learners))
            axes.grid(axis="x")
        _stacks(whole, learners, roles, wall)
        whole.set_xlim(0, 1)
        whole.xaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
        whole.set_xlabel("share of the run's time")
        _stacks(rest, learners, [role for role in roles if role != "productive"], 1.0)
        most = max(sum(seconds.values()) - seconds["productive"] for seconds in learners.values())
        rest.set_xlim(0, max(most * 1.04, 1e-3))
        rest.set_xlabel("seconds that were not productive")
        legend(figure, [(role, GROUPS[role][0]) for role in roles], 5)
        return to_svg(figure, "time", words)


def _stacks(axes: Axes, learners: Mapping[str, Mapping[str, float]], roles: list[str], scale: float) -> None:
    left = [0.0] * len(learners)
    for role in roles:
        lengths = [seconds[role] / scale for seconds in learners.values()]
        axes.barh(range(len(learners)), lengths, height=0.66, left=left, color=light(role), linewidth=0)
        left = [start + length for start, length in zip(left, lengths, strict=True)]
