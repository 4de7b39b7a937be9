"""A learner in four is SIGKILLed from outside, again and again: how soon it contributes, with standbys and without.

    python benchmarks/standby.py [--kills 10] [--only with,without] [--run-dir runs/standby] [--json]

Two runs of deploy/recipes/local.toml. A kill comes when everyone steps and, with standbys, every learner has one; the
next one at least 15 s later. Measured from the log: from the kill to the first commit that the new incarnation is in,
phase by phase; and how fast the others step while the next standby is made, against the time in which every standby
waits. The status says when the killed learner steps again and when a standby is ready.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.fresh import emptied  # noqa: E402
from learners.protocol.facts import StepFinished  # noqa: E402
from orchestrator.eventlog.events import Event  # noqa: E402
from orchestrator.eventlog.reader import read_run  # noqa: E402
from orchestrator.recipe.toml_text import load  # noqa: E402
from orchestrator.recipe.validation import resolve  # noqa: E402
from outer.protocol.facts import Committed  # noqa: E402

EVERY_S = 15.0  # from one kill to the next, at least
Span = tuple[float, float]


class Killer:
    """Called with every status: kills learners in turn, and notes when everyone steps and has its standby."""

    def __init__(self, kills: int, standbys: int, stop: Path) -> None:
        self.kills: list[tuple[float, str]] = []  # (wall time, learner)
        self.complete: list[Span] = []  # all step, and all standbys wait
        self.making: list[Span] = []  # all step, and a standby is made
        self._wanted, self._standbys, self._stop = kills, standbys, stop
        self._since: tuple[float, bool] | None = None

    def __call__(self, status: Mapping[str, Any]) -> None:
        rows, now = status["learners"], time.time()
        stepping = bool(rows) and all(row["state"] == "stepping" for row in rows)
        ready = stepping and all(row["standbys"] >= self._standbys for row in rows)
        if self._since is not None and (not stepping or self._since[1] != ready):
            (self.complete if self._since[1] else self.making).append((self._since[0], now))
            self._since = None
        if stepping and self._since is None:
            self._since = now, ready
        if not ready or now - (self.kills[-1][0] if self.kills else self._since[0]) < EVERY_S:  # type: ignore[index]
            return
        if len(self.kills) == self._wanted:
            self._stop.write_text(json.dumps({"reason": "every kill has healed"}))
            return
        row = rows[len(self.kills) % len(rows)]
        os.kill(row["pid"], signal.SIGKILL)
        self.kills.append((time.time(), row["name"]))


def contributing(events: Iterable[Event], learner: str, incarnation: int) -> float | None:
    """When the first commit was made that this incarnation is in."""
    return next(
        (
            event.at
            for event in events
            if isinstance(event.fact, Committed)
            and any(each.learner == learner and each.incarnation == incarnation for each in event.fact.participants)
        ),
        None,
    )


def rate(steps: Iterable[tuple[float, str]], spans: Iterable[Span], names: set[str]) -> float | None:
    """Steps per second of these learners within the spans."""
    spans = list(spans)
    seconds = sum(end - begin for begin, end in spans)
    count = sum(name in names and any(begin <= at < end for begin, end in spans) for at, name in steps)
    return count / seconds if seconds else None


def measure(events: list[Event], killer: Killer, summary: Mapping[str, Any]) -> dict[str, Any]:
    steps = [(event.at, event.writer) for event in events if isinstance(event.fact, StepFinished)]
    names = {name for _, name in steps}
    phases = [fault["recovery_phases"] for fault in summary["faults"]]
    deaths: dict[str, int] = {}
    rows = []
    for index, (at, learner) in enumerate(killer.kills):
        deaths[learner] = deaths.get(learner, 0) + 1
        again = contributing(events, learner, deaths[learner] + 1)
        rows.append(
            {
                "learner": learner,
                "contributing_s": again and again - at,
                "phases": phases[index] if index < len(phases) else None,
            }
        )
    ratios = []  # of the others' step rates, kill by kill
    for (at, learner), (until, _) in zip(killer.kills, [*killer.kills[1:], (float("inf"), "")], strict=True):
        made = [span for span in killer.making if at < span[0] < until]
        others = names - {learner}
        usual, meanwhile = rate(steps, killer.complete, others), rate(steps, made, others)
        if usual and meanwhile:
            ratios.append(meanwhile / usual)
    told = [row["contributing_s"] for row in rows if row["contributing_s"] is not None]
    return {
        "kills": rows,
        "median_s": statistics.median(told) if told else None,
        "longest_s": max(told, default=None),
        "others_rate": statistics.median(ratios) if ratios else None,
        "making_s": statistics.median(end - begin for begin, end in killer.making) if killer.making else None,
        "failed_checks": [each["name"] for each in summary["checks"] if each["status"] == "violated"],
    }


def run(standbys: int, kills: int, folder: Path) -> dict[str, Any]:
    from orchestrator.runtime import launch

    settings = [f"name=standby-{standbys}", f"pools.0.standby={standbys}", "budget.tokens=1_000_000_000"]
    recipe = resolve(load(ROOT / "deploy/recipes/local.toml", [*settings, "eval.every=0"]))
    store = emptied(folder)
    killer = Killer(kills, standbys, store.path("stop"))
    summary = launch.run_embedded(recipe, store, None, killer)
    return measure(read_run(store.root), killer, summary)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--kills", type=int, default=10)
    arguments.add_argument("--only", default="without,with")
    arguments.add_argument("--run-dir", type=Path, default=Path("runs/standby"))
    arguments.add_argument("--json", action="store_true")
    options = arguments.parse_args()
    reports = {
        each: run(int(each == "with"), options.kills, options.run_dir / each) for each in options.only.split(",")
    }
    if options.json:
        print(json.dumps(reports, indent=1))
        return
    for each, report in reports.items():
        print(
            f"{each} standbys: contributing again after {report['median_s']:.1f} s, longest {report['longest_s']:.1f}"
        )
        for row in report["kills"]:
            told = ", ".join(f"{k} {v:.1f}" for k, v in (row["phases"] or {}).items() if v is not None)
            print(f"  {row['learner']}  {row['contributing_s'] or float('nan'):6.1f} s  ({told})")
        if report["others_rate"] is not None:
            print(
                f"  the others step at {report['others_rate']:.3f} of their rate while a standby is made, which takes "
                f"{report['making_s']:.0f} s"
            )
        print(f"  checks that failed: {', '.join(report['failed_checks']) or 'none'}")


if __name__ == "__main__":
    main()
