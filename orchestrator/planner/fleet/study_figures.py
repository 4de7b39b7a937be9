"""Scavenging and upsizing as figures that stand alone. Knows the report's canvas and palette; computes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.ticker import FuncFormatter, NullLocator

from orchestrator.planner.fleet import scavenging, upsize
from orchestrator.planner.fleet.figures import standalone
from orchestrator.report.canvas import bare, sheet, to_svg
from orchestrator.report.palette import light

WIDTH, HEIGHT = 640, 340  # pixels


def scavenging_figure(rows: Sequence[scavenging.Row]) -> str:
    """The run's time against the newcomers' number, and what it would be if they stepped at once."""
    with sheet(WIDTH, HEIGHT) as figure:
        axes, extra = bare(figure.subplots()), [100 * row.extra for row in rows]
        axes.plot(extra, [row.ideal for row in rows], "--", color=light("faint"), label="if they stepped at once")
        axes.plot(extra, [row.time for row in rows], ".-", color=light("train"), label="simulated")
        axes.set_xlabel("learners that join, % of those that are there")
        axes.set_ylabel("time of the run")
        axes.set_ylim(0.0, 1.05)
        axes.grid(axis="y")
        axes.legend(loc="lower left")
        title = "Time of a run against learners that join for a part of it, as a share of its time without them"
        return standalone(to_svg(figure, "scavenging", title))


def upsize_figure(rows: Sequence[upsize.Row]) -> str:
    """Steps that those who train stand still, and steps until the newcomer trains, against bandwidth."""
    with sheet(WIDTH, HEIGHT) as figure:
        axes, rows = bare(figure.subplots()), sorted(rows, key=lambda row: row.gbit_s)
        bits = [row.gbit_s for row in rows]
        axes.plot(
            bits,
            [row.elastic_downtime_steps for row in rows],
            ".-",
            color=light("held"),
            label="all stand still, elastic data-parallel",
        )
        axes.plot(bits, [row.downtime_steps for row in rows], ".-", color=light("train"), label="all stand still, here")
        joined = [(row.gbit_s, row.joined_steps, row.source) for row in rows if row.joined_steps is not None]
        for source, mark, words in (("peer", "o", "a peer's state"), ("syncer", "x", "the syncer's snapshot")):
            points = [(bits, steps) for bits, steps, origin in joined if origin == source]
            if points:
                label = f"newcomer steps, with {words}"
                axes.plot(*zip(*points, strict=True), mark, color=light("joining"), label=label)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("Gbit/s of each learner's link")
        axes.set_ylabel("steps")
        axes.grid(axis="y")
        axes.legend(loc="upper right")
        title = "Steps that all stand still while one learner joins, and until it steps, against the links' bandwidth"
        return standalone(to_svg(figure, "upsize", title))
