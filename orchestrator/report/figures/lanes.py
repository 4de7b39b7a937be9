"""Swim lanes: what every incarnation of every learner was doing."""

from __future__ import annotations

import math

from matplotlib.axes import Axes

from orchestrator.report.canvas import WIDE, bare, label, light, sheet, to_svg
from orchestrator.report.data import Data
from orchestrator.report.figures.marks import legend, time_axis
from orchestrator.report.incarnation_phases import Lane
from orchestrator.report.series import merged

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


def draw(data: Data, width: int, words: str) -> str | None:
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
