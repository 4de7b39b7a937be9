"""Swim lanes: what every incarnation of every learner was doing."""

from __future__ import annotations

from matplotlib.axes import Axes

from orchestrator.report.canvas import WIDE, bare, label, sheet, to_svg
from orchestrator.report.data import Data
from orchestrator.report.figures.marks import legend, time_axis
from orchestrator.report.lanes import Lane
from orchestrator.report.palette import light
from orchestrator.report.series import merged

MOST = 64  # lanes that a page can show
ROLE = {"stepping": "productive"}
MEANING = {
    "placing": "waiting for a place",
    "importing": "importing",
    "compiling": "compiling",
    "joining": "joining",
    "stepping": "stepping",
    "frozen": "frozen",
    "expired": "without a lease",
    "dead": "dead",
}


def draw(data: Data, width: int, words: str) -> str | None:
    """None for a log without learners."""
    shown = data.lanes[:MOST]
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
        axes.set_yticks(places, [_name(lane, shown, wide) for lane in shown])
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x")
        time_axis(axes, stop - start)
        items = [(ROLE.get(key, key), MEANING[key]) for key in keys]
        legend(figure, items, 8 if wide else 2)
        return to_svg(figure, f"lanes-{width}", words)


def _places(lanes: list[Lane]) -> list[float]:
    """A learner's incarnations lie closer to each other than to the next learner's."""
    places, at = list[float](), 0.0
    for index, lane in enumerate(lanes):
        if index:
            at += 0.92 if lanes[index - 1].learner == lane.learner else 1.25
        places.append(at)
    return places


def _name(lane: Lane, lanes: list[Lane], wide: bool) -> str:
    """The learner at its first lane, the number of the incarnation at the others."""
    first = next(other for other in lanes if other.learner == lane.learner)
    return label(lane.learner, 24 if wide else 16) if first is lane else f"#{lane.incarnation}"


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
    """A mark on the lane that was hit, with its number in the table; too many for numbers: only marks."""
    at = {(lane.learner, lane.incarnation): place for lane, place in zip(shown, places, strict=True)}
    numbered = len(data.marks) <= 60
    for mark in data.marks:
        place = at.get((mark.target, mark.incarnation or 0))
        if place is None:
            continue
        axes.plot([mark.at_s], [place - 0.34], marker="v", markersize=6, color=light("fault"), clip_on=False, zorder=4)
        if numbered:
            axes.text(
                mark.at_s + 6 * pixel, place - 0.38, f"{mark.number} {label(mark.kind, 14)}", fontsize=10, ha="left",
                va="center", color=light("fault"), zorder=5, clip_on=False,
            )  # fmt: skip
