"""A running job grows from two learners to four and shrinks back: does its speed follow, and is anything lost?

    python benchmarks/elastic.py [--phase-s 30] [--step-s 0.2] [--run-dir runs/elastic] [--json]

Learners are paced: a step takes `--step-s` seconds, most of them asleep, so that four of them fit on two cores and
the number of learners decides the speed, as it does where each has hardware of its own. `diloco scale` is called
as a user would; tokens committed per second are read from the log, over the settled part of each phase.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.fresh import emptied  # noqa: E402
from orchestrator.eventlog.events import Event  # noqa: E402
from orchestrator.eventlog.facts import PoolScaled  # noqa: E402
from orchestrator.eventlog.reader import read_run  # noqa: E402
from orchestrator.recipe.toml_text import dump, load  # noqa: E402
from orchestrator.recipe.validation import resolve  # noqa: E402
from orchestrator.store.readers import RECIPE_FILE  # noqa: E402
from outer.protocol.facts import Committed, DrainStarted, LearnerFenced  # noqa: E402

BATCH, LENGTH = 2, 96
ALONE_S = 0.008  # of a step of this batch with a core to itself, about
SIZES = (2, 4, 2)


class Steering:
    """Once the learners step: a phase at each size, then the end."""

    def __init__(self, folder: Path, phase_s: float) -> None:
        self.phases: list[tuple[float, float]] = []  # settled parts, wall time
        self.failure = ""
        self._folder, self._phase_s = folder, phase_s
        self._thread: threading.Thread | None = None

    def __call__(self, status: Mapping[str, Any]) -> None:
        rows = status["learners"]
        if self._thread is None and len(rows) == SIZES[0] and all(row["state"] == "stepping" for row in rows):
            self._thread = threading.Thread(target=self._steer, daemon=True)
            self._thread.start()

    def _steer(self) -> None:
        for size in (None, *SIZES[1:]):
            if size is not None:
                self._diloco("scale", "local", str(size), "--wait")
            begin = time.time() + 3.0
            time.sleep(self._phase_s)
            self.phases.append((begin, time.time()))
        self._diloco("stop")

    def _diloco(self, *words: str) -> None:
        command = [sys.executable, "-m", "orchestrator", *words, "--run-dir", str(self._folder)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400)
        if done.returncode:
            self.failure = self.failure or done.stderr


def measure(events: list[Event], phases: list[tuple[float, float]], summary: Mapping[str, Any]) -> dict[str, Any]:
    commits = [(e.at, e.fact.tokens_committed) for e in events if isinstance(e.fact, Committed)]
    rates = []
    for begin, end in phases:
        inside = [(at, tokens) for at, tokens in commits if begin <= at <= end]
        rates.append((inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0]))
    began = {e.fact.learner: e.at for e in events if isinstance(e.fact, DrainStarted)}
    left = {e.fact.learner: e.at for e in events if isinstance(e.fact, LearnerFenced) and e.fact.reason == "drained"}
    return {
        "tokens_per_s": dict(zip(("two", "four", "two again"), rates, strict=True)),
        "scaled": [(e.fact.learners, e.fact.added, e.fact.removed) for e in events if isinstance(e.fact, PoolScaled)],
        "drain_s": {name: left[name] - at for name, at in began.items()},
        "tokens": summary["tokens"],
        "participation": summary["participation"],
        "broken": [check for check in summary["checks"] if check["status"] not in ("pass", "idle")],
        "state": summary["state"],
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--phase-s", type=float, default=30.0)
    arguments.add_argument("--step-s", type=float, default=0.2)
    arguments.add_argument("--run-dir", type=Path, default=Path("runs/elastic"))
    arguments.add_argument("--json", action="store_true")
    options = arguments.parse_args()

    from orchestrator.runtime import launch

    slowdown = options.step_s / ALONE_S
    pool = f'[{{name = "local", learners = 2, max = 4, batch_size = {BATCH}, slowdown = {slowdown:.1f}}}]'
    settings = ["name=elastic", f"pools={pool}", "budget.tokens=1_000_000_000", "sync.quorum=1", "eval.every=0"]
    recipe = resolve(load(ROOT / "deploy/recipes/local.toml", settings))
    store = emptied(options.run_dir)
    store.write_text(RECIPE_FILE, dump(recipe))
    steering = Steering(options.run_dir.absolute(), options.phase_s)
    summary = launch.run_embedded(recipe, store, None, steering)
    if steering.failure:
        raise SystemExit(steering.failure)
    report = measure(read_run(store.root), steering.phases, summary)
    if options.json:
        print(json.dumps(report, indent=1))
        return
    two = report["tokens_per_s"]["two"]
    for name, rate in report["tokens_per_s"].items():
        print(f"{name:10} {rate:8,.0f} tokens/s  {rate / two:.2f}x")
    for name, seconds in report["drain_s"].items():
        print(f"{name} left {seconds:.1f} s after it began to drain")
    print(f"tokens {report['tokens']}; promises broken: {report['broken'] or 'none'}; {report['state']}")


if __name__ == "__main__":
    main()
