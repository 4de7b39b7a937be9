"""How long the same takes under kills: a recipe, and conventionally by Ray Train, while their processes are SIGKILLed.

    python benchmarks/under_kills.py examples/decoder/recipe.toml --mean 60 [--set KEY=VALUE] [--run-dir FOLDER]

Kills strike from outside, at exponential gaps of this mean, one learner or one rank each, once the run has got further
since the last. Ray Train's checkpoints are `durability.every_s` apart, at best some sqrt(2 x their time x mean).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from orchestrator.cli.recipes import prepare  # noqa: E402
from orchestrator.compare import runs  # noqa: E402
from orchestrator.compare.comparison import as_json, compared, sentence  # noqa: E402
from orchestrator.compare.modes import DATA_PARALLEL, unfit  # noqa: E402
from orchestrator.store.readers import status_if_any  # noqa: E402


def ranks() -> list[int]:
    """The process of each of Ray Train's workers that this program started."""
    with contextlib.suppress(psutil.NoSuchProcess):
        own = psutil.Process().children(recursive=True)
        return sorted(each.pid for each in own if " ".join(each.cmdline()).startswith("ray::RayTrainWorker"))
    return []


class Killer:
    """Called with every news of a run."""

    def __init__(self, mean_s: float, seed: int) -> None:
        self.kills = 0
        self._mean_s, self._rng = mean_s, Random(seed)
        self._due_at: float | None = None
        self._progress = 0.0  # at the last kill

    def __call__(self, run: runs.ComparedRun, news: Mapping[str, Any]) -> None:
        now = time.monotonic()
        if self._due_at is None and news["progress"] > 0.0:
            self._due_at = now + self._rng.expovariate(1.0 / self._mean_s)
        if self._due_at is None or now < self._due_at or news["progress"] <= self._progress:
            return
        learners = (status_if_any(run.store) or {}).get("learners") or []
        found = ranks() if run.mode == DATA_PARALLEL else [row["pid"] for row in learners if row["state"] == "stepping"]
        with contextlib.suppress(ProcessLookupError, IndexError):  # it has ended meanwhile, or nobody steps
            os.kill(self._rng.choice(found), signal.SIGKILL)
            self.kills, self._progress = self.kills + 1, news["progress"]
            self._due_at = now + self._rng.expovariate(1.0 / self._mean_s)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("recipe", type=Path)
    arguments.add_argument("--mean", type=float, default=60.0, help="seconds between two kills")
    arguments.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments.add_argument("--run-dir", type=Path, default=Path("runs/under-kills"))
    asked = arguments.parse_args()
    recipe = runs.in_tokens(prepare(asked.recipe, asked.set, further=unfit))
    kills = {}
    both = runs.planned(recipe, asked.run_dir)
    for run in both:
        killer = Killer(asked.mean, recipe.seed)
        run.store.create()
        runs.train(run, killer, None)
        kills[run.mode] = killer.kills
    result = compared({run.mode: run.outcome() for run in both})
    print(json.dumps({"kills": kills} | as_json(result, str(asked.run_dir), None)))
    print(sentence(result), file=sys.stderr)


if __name__ == "__main__":
    main()
