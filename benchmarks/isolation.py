"""One learner in four is SIGKILLed from outside, several times: what it costs the killed one, and the others.

    python benchmarks/isolation.py [--kills 6] [--run-dir runs/isolation] [--json]

Starts a run of deploy/recipes/local.toml, kills by PID as an operator would, and measures from the log alone: how
soon each death was noticed, when the learner contributed again and where the time went, the longest gap between two
steps of a survivor in the 20 s after a kill against the longest in the fault-free part of the same run, and the
longest gap between commits. Clocks: all processes are on this host.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.fresh import emptied  # noqa: E402
from learners.protocol.facts import PhaseEntered, StepFinished  # noqa: E402
from orchestrator.eventlog.events import Event  # noqa: E402
from orchestrator.eventlog.facts import LearnerLost  # noqa: E402
from orchestrator.eventlog.reader import read_run  # noqa: E402
from orchestrator.recipe.toml_text import load  # noqa: E402
from orchestrator.recipe.validation import resolve  # noqa: E402
from outer.protocol.facts import Committed  # noqa: E402

QUIET_S = 45.0  # fault-free at first
EVERY_S = 30.0  # from kill to kill
AFTER_S = 20.0  # in which survivors are watched


class Killer:
    """Called with every status; kills learners in turn, once all of them have stepped for a while."""

    def __init__(self, kills: int) -> None:
        self.kills: list[tuple[float, str, int]] = []  # (wall time, learner, pid)
        self._wanted = kills
        self._next: float | None = None

    def __call__(self, status: Mapping[str, Any]) -> None:
        rows = status["learners"]
        stepping = rows and all(row["state"] == "stepping" for row in rows)
        if self._next is None and stepping:
            self._next = time.time() + QUIET_S
        if self._next is None or time.time() < self._next or len(self.kills) >= self._wanted or not stepping:
            return
        row = rows[len(self.kills) % len(rows)]
        os.kill(row["pid"], signal.SIGKILL)
        self.kills.append((time.time(), row["name"], row["pid"]))
        self._next = time.time() + EVERY_S


def gaps(times: list[float], begin: float, end: float) -> list[float]:
    """Gaps between neighbouring times, both within [begin, end]."""
    inside = [at for at in times if begin <= at <= end]
    return [later - earlier for earlier, later in itertools.pairwise(inside)]


def measure(events: list[Event], kills: list[tuple[float, str, int]], summary: Mapping[str, Any]) -> dict[str, Any]:
    steps: dict[str, list[float]] = {}
    for event in events:
        if isinstance(event.fact, StepFinished):
            steps.setdefault(event.writer, []).append(event.at)
    commits = [event.at for event in events if isinstance(event.fact, Committed)]
    lost = [event for event in events if isinstance(event.fact, LearnerLost)]
    stepping = [e.at for e in events if isinstance(e.fact, PhaseEntered) and e.fact.phase == "stepping"]
    quiet = (max(stepping[: len(steps)]) + 5.0, kills[0][0])
    quiet_gap = {name: max(gaps(times, *quiet)) for name, times in steps.items()}
    phases = [fault["recovery_phases"] for fault in summary["faults"]]
    rows = []
    for index, (at, learner, pid) in enumerate(kills):
        detected = min((e.at for e in lost if e.fact.learner == learner and e.at >= at), default=None)
        again = next(
            (
                event.at
                for event in events
                if isinstance(event.fact, Committed)
                and event.at > at
                and any(
                    p.learner == learner and p.incarnation > index // len(steps) + 1 for p in event.fact.participants
                )
            ),
            None,
        )
        survivors = {
            name: max(gaps(times, at, at + AFTER_S)) / quiet_gap[name]
            for name, times in steps.items()
            if name != learner
        }
        rows.append(
            {
                "learner": learner,
                "pid": pid,
                "detection_s": detected and detected - at,
                "contributing_again_s": again and again - at,
                "phases": phases[index] if index < len(phases) else None,
                "survivors_gap_ratio": survivors,
                "survivors_gap_s": max(ratio * quiet_gap[name] for name, ratio in survivors.items()),
                "commit_gap_s": max(gaps(commits, at, at + AFTER_S)),
                "commits_in_20_s": len(gaps(commits, at, at + AFTER_S)) + 1,
            }
        )
    return {
        "fault_free_s": quiet[1] - quiet[0],
        "fault_free_gap_s": quiet_gap,
        "fault_free_gap_median_s": {
            n: sorted(g)[len(g) // 2] for n, g in ((n, gaps(t, *quiet)) for n, t in steps.items())
        },
        "fault_free_commit_gap_s": max(gaps(commits, *quiet)),
        "kills": rows,
        "ok": summary["ok"],
        "tokens": summary["tokens"],
        "eval_loss": summary["eval_loss"],
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--kills", type=int, default=6)
    arguments.add_argument("--run-dir", type=Path, default=Path("runs/isolation"))
    arguments.add_argument("--json", action="store_true")
    options = arguments.parse_args()

    from orchestrator.runtime import launch

    seconds = QUIET_S + EVERY_S * options.kills + 30.0
    tokens = int(seconds * 27_000)  # about what two cores do
    recipe = resolve(load(ROOT / "deploy/recipes/local.toml", ["name=isolation", f"budget.tokens={tokens}"]))
    store = emptied(options.run_dir)
    killer = Killer(options.kills)
    summary = launch.run_embedded(recipe, store, None, killer)
    report = measure(read_run(store.root), killer.kills, summary)
    if options.json:
        print(json.dumps(report, indent=1))
        return
    print(f"fault-free for {report['fault_free_s']:.0f} s: longest gap between two steps")
    for name, gap in report["fault_free_gap_s"].items():
        print(f"  {name}  {gap:.3f} s (median {report['fault_free_gap_median_s'][name]:.3f} s)")
    print("killed             detected  contributing again  (" + ", ".join(report["kills"][0]["phases"] or ()) + ")")
    for row in report["kills"]:
        phases = ", ".join(f"{value:.1f}" for value in (row["phases"] or {}).values())
        print(f"  {row['learner']}  {row['detection_s']:6.2f} s  {row['contributing_again_s']:6.1f} s  ({phases})")
    print("longest gap of a survivor in the 20 s after, against its longest in the fault-free part; commits")
    for row in report["kills"]:
        ratios = ", ".join(f"{name} {ratio:.2f}" for name, ratio in row["survivors_gap_ratio"].items())
        print(f"  {ratios};  {row['commits_in_20_s']} commits, longest gap {row['commit_gap_s']:.2f} s")
    longest, worst = max(report["fault_free_gap_s"].values()), max(row["survivors_gap_s"] for row in report["kills"])
    print(
        f"longest of all: fault-free {longest:.3f} s, of a survivor after a kill {worst:.3f} s: {worst / longest:.2f}x"
    )
    print(f"ok: {report['ok']}; tokens {report['tokens']}; held-out loss {report['eval_loss']:.3f}")


if __name__ == "__main__":
    main()
