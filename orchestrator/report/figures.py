"""The report's figures, each drawn from its data at a width, or None where there is nothing to draw."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, NullLocator, PercentFormatter

from orchestrator.report.canvas import (
    WIDE,
    bare,
    beside,
    fault_lines,
    label,
    legend,
    light,
    sheet,
    time_axis,
    to_svg,
)
from orchestrator.report.data import Data, Lane
from orchestrator.report.fold import Rounds
from orchestrator.report.series import chunks, merged

# ------------------------------------------------------------------ lanes

# Swim lanes: what every incarnation of every learner was doing.


LANES_MOST = 28  # more incarnations than that, and each learner has only one lane
LEARNERS_MOST = 64
ROLE = {"stepping": "productive"}
MEANING = {
    "placing": "waiting for a place",
    "importing": "importing",
    "compiling": "compiling",
    "joining": "joining",
    "stepping": "stepping",
    "draining": "leaving",
    "frozen": "frozen",
    "expired": "without a lease",
    "dead": "dead",
}


def draw_lanes(data: Data, width: int, words: str) -> str | None:
    """None for a log without learners."""
    shown = data.lanes if packed(data.lanes) else data.lanes[:LANES_MOST]
    shown = [lane for lane in shown if lane.learner in _learners(shown)[:LEARNERS_MOST]]
    if not shown:
        return None
    wide = width == WIDE
    places = _places(shown)
    row, keys = 25.0, _present(shown)
    rows_of_keys = -(-len(keys) // (8 if wide else 2))
    height = row * (places[-1] + 1) + 62 + 19 * rows_of_keys
    with sheet(width, height) as figure:
        axes = bare(figure.subplots())
        start = min((lane.phases[0][0] for lane in shown if lane.phases), default=0.0)
        stop = max(data.end_s, start + 1e-3)
        axes.set_xlim(start, stop + (stop - start) * 0.01)
        axes.set_ylim(places[-1] + 0.6, -0.75)
        pixel = (stop - start) / (width * 0.75)
        for lane, place in zip(shown, places, strict=True):
            _lane(axes, lane, place, pixel)
        _faults(axes, data, shown, places, pixel)
        names = _names(shown, places, wide)
        axes.set_yticks(list(names), list(names.values()))
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x")
        time_axis(axes, stop - start, data.stepped)
        items = [(ROLE.get(key, key), MEANING[key]) for key in keys]
        legend(figure, items, 8 if wide else 2)
        return to_svg(figure, f"lanes-{width}", words)


def _learners(lanes: list[Lane]) -> list[str]:
    return list(dict.fromkeys(lane.learner for lane in lanes))


def packed(lanes: list[Lane]) -> bool:
    """Whether there are so many incarnations that each learner's share one lane: they follow each other."""
    return len(lanes) > LANES_MOST


def _places(lanes: list[Lane]) -> list[float]:
    """A learner's incarnations lie closer to each other than to the next learner's, or all in one place."""
    places, at, closer = list[float](), 0.0, 0.0 if packed(lanes) else 0.92
    for index, lane in enumerate(lanes):
        if index:
            at += closer if lanes[index - 1].learner == lane.learner else 1.25
        places.append(at)
    return places


def _names(lanes: list[Lane], places: list[float], wide: bool) -> dict[float, str]:
    """By place: the learner at its first lane, the number of the incarnation at the others."""
    names: dict[float, str] = {}
    known: set[str] = set()
    for lane, place in zip(lanes, places, strict=True):
        names.setdefault(
            place, f"#{lane.incarnation}" if lane.learner in known else label(lane.learner, 24 if wide else 16)
        )
        known.add(lane.learner)
    return names


def _present(lanes: list[Lane]) -> list[str]:
    seen = {phase for lane in lanes for _, _, phase in lane.phases}
    seen |= {"frozen"} if any(lane.frozen for lane in lanes) else set()
    seen |= {"expired"} if any(lane.expired for lane in lanes) else set()
    seen |= {"dead"} if any(lane.dead for lane in lanes) else set()
    return [key for key in MEANING if key in seen]


def _lane(axes: Axes, lane: Lane, place: float, pixel: float) -> None:
    for phase in sorted({phase for _, _, phase in lane.phases}):
        spans = [(start, stop) for start, stop, name in lane.phases if name == phase]
        role = ROLE.get(phase, phase if phase in MEANING else "unexplained")
        _bars(axes, spans, place + 0.08, 0.52, role, pixel, 0.1)
    _bars(axes, lane.frozen, place + 0.08, 0.52, "frozen", pixel, 0.8)
    _bars(axes, lane.expired, place + 0.36, 0.13, "expired", pixel, 0.8)
    if lane.dead is not None:
        _bars(axes, [lane.dead], place + 0.08, 0.14, "dead", pixel, 1.5)


def _bars(
    axes: Axes,
    spans: list[tuple[float, float]] | tuple[tuple[float, float], ...],
    place: float,
    height: float,
    role: str,
    pixel: float,
    least: float,
) -> None:
    """Spans as bars; none is drawn narrower than `least` pixels, so that short ones can be seen."""
    drawn = [(start, max(stop - start, least * pixel)) for start, stop in merged(list(spans), 0.3 * pixel)]
    axes.broken_barh(drawn, (place - height / 2, height), facecolors=light(role), linewidth=0, zorder=2)


def _faults(axes: Axes, data: Data, shown: list[Lane], places: list[float], pixel: float) -> None:
    """A mark on the lane that was hit, with its number in the table where there is room for one."""
    at = {(lane.learner, lane.incarnation): place for lane, place in zip(shown, places, strict=True)}
    marks = [
        (at[mark.target, mark.incarnation or 0], mark)
        for mark in data.marks
        if (mark.target, mark.incarnation or 0) in at
    ]
    marks.sort(key=lambda item: (item[0], item[1].at_s))
    following = [*((place, other.at_s) for place, other in marks[1:]), (-1.0, 0.0)]
    for (place, mark), (below, until) in zip(marks, following[: len(marks)], strict=True):
        axes.plot([mark.at_s], [place - 0.34], marker="v", markersize=6, color=light("fault"), clip_on=False, zorder=4)
        words = f"{mark.number} {label(mark.kind, 14)}"
        room = until - mark.at_s if below == place else math.inf
        if room > (6.5 * len(words) + 14) * pixel:
            axes.annotate(
                words, (mark.at_s, place - 0.34), xytext=(6, 0.5), textcoords="offset points", fontsize=10, ha="left",
                va="center", color=light("fault"), zorder=5, annotation_clip=False,
            )  # fmt: skip


# ------------------------------------------------------------------ loss

# Loss against committed tokens and against time.


JOINED_LEAST = 40  # held-out losses that lie close enough to be a curve; fewer are points
LOG_LEAST = 2.5  # highest loss / lowest from which the scale is logarithmic


def draw_loss(data: Data, width: int, words: str) -> str | None:
    """None for a log without any loss."""
    if not data.training and not data.held_out:
        return None
    wide = width == WIDE
    with sheet(width, 340 if wide else 560) as figure:
        panels = figure.subplots(1, 2, sharey=True) if wide else figure.subplots(2, 1)
        by_tokens, by_time = (bare(axes) for axes in panels)
        _curves(by_tokens, data, lambda point: point.tokens, wide)
        _curves(by_time, data, lambda point: point.at_s, not wide)
        by_tokens.xaxis.set_major_formatter(EngFormatter(sep=""))
        by_tokens.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))
        by_tokens.set_xlabel("tokens committed")
        time_axis(by_time, data.end_s, data.stepped)
        for axes in panels[: 1 if wide else 2]:
            _loss_axis(axes, data)
        across = width / 2 if wide else width
        fault_lines(by_tokens, [(mark, float(mark.tokens), None) for mark in data.marks], across)
        fault_lines(by_time, [(mark, mark.at_s, mark.until_s) for mark in data.marks], across)
        figure.legend(
            handles=_handles(data), loc="outside upper left", ncols=5 if wide else 2, columnspacing=1.4, borderpad=0.2
        )
        return to_svg(figure, f"loss-{width}", words)


def _loss_axis(axes: Axes, data: Data) -> None:
    """Linear, or logarithmic where the fall at the start would hide all the rest."""
    unit = data.summary.get("loss_unit") or "loss"
    values = [point.value for point in data.held_out]
    values += [value for bin in data.training for value in (bin.low, bin.high)]
    if 0 < min(values) * LOG_LEAST < max(values):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 4, 6)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_ylabel(f"{unit}, log scale")
    else:
        axes.set_ylabel(unit)


def _curves(axes: Axes, data: Data, place: Callable[[Any], float], named: bool) -> None:
    if data.training:
        xs = [place(bin) for bin in data.training]
        axes.fill_between(
            xs, [bin.low for bin in data.training], [bin.high for bin in data.training],
            color=light("train"), alpha=0.22, linewidth=0,
        )  # fmt: skip
        axes.plot(xs, [bin.middle for bin in data.training], color=light("train"), linewidth=1.4)
    if data.held_out:
        xs = [place(point) for point in data.held_out]
        values = [point.value for point in data.held_out]
        few = len(xs) <= JOINED_LEAST
        axes.plot(
            xs,
            values,
            color=light("held"),
            linewidth=0 if few else 1.3,
            marker="o" if few else "",
            markersize=5,
            zorder=3,
        )
    axes.grid(axis="y")
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


# ------------------------------------------------------------------ merges

# How outer steps waited and how old things were: quorum, grace and sync over time, and two ages.


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


# ------------------------------------------------------------------ recoveries

# How long each recovery took, split by what it was waiting for.


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


def draw_recoveries(data: Data, width: int, words: str) -> str | None:
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


# ------------------------------------------------------------------ rounds

# Participation as a heat strip: each learner's share of the commits of each round.


CLASSES = ("none", "under 25 %", "25 to 49 %", "50 to 74 %", "75 to 99 %", "all")


def draw_rounds(data: Data, width: int, words: str) -> str | None:
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


def draw_time(data: Data, width: int, words: str) -> str | None:
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


# ------------------------------------------------------------------ wire

# Bytes of every learner, beside those of data-parallel training.


def draw_wire(data: Data, width: int, words: str) -> str | None:
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
