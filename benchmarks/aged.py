"""The syncer dies in a young run and in one with a long log behind it: how long until the next commit?

    python benchmarks/aged.py [--steps 200000] [--learners 64] [--kills 8] [--run-dir runs/aged] [--json]

The old run's folder has the log of benchmarks/history.py: so many syncer steps of so many learners. Then the same two
learners train in both, and the syncer is killed at the same times. Memory is the orchestrator's and the syncer's
largest, and `close_s` the time from the run's end to its summary.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import failover, history  # noqa: E402
from benchmarks.fresh import emptied  # noqa: E402
from orchestrator.eventlog.reader import SEAL_FILE  # noqa: E402
from orchestrator.recipe.toml_text import dump  # noqa: E402
from orchestrator.store.readers import RECIPE_FILE  # noqa: E402
from orchestrator.store.run_store import RunStore  # noqa: E402


class Watcher(failover.Conductor):
    """Ends the run in time, and notes how much memory the orchestrator and the syncer take, and when the run ended."""

    def __init__(self, store: RunStore, kills: list[tuple[float, str | None]]) -> None:
        super().__init__(store, kills, control=False)
        self.resident: dict[str, int] = {}
        self.ended_at = 0.0

    def __call__(self, status: Mapping[str, Any]) -> None:
        super().__call__(status)
        for name in ("orchestrator", "syncer"):
            try:
                pid = status[name]["pid"]
                self.resident[name] = max(self.resident.get(name, 0), psutil.Process(pid).memory_info().rss)
            except (psutil.Error, KeyError, TypeError, ValueError):
                continue  # it is down
        if status["run"]["state"] in ("ending", "finished", "stopped") and not self.ended_at:
            self.ended_at = time.monotonic()


def run(name: str, store: RunStore, kills: list[tuple[float, str | None]]) -> dict[str, Any]:
    from orchestrator.__main__ import start_chaos
    from orchestrator.runtime.launch import run_embedded

    wanted = failover.recipe(name, kills)
    store.write_text(RECIPE_FILE, dump(wanted))
    watcher = Watcher(store, kills)
    summary = run_embedded(wanted, store, start_chaos, watcher)
    rows = [row for row in summary["faults"] if row["target"] == "syncer" and row["injected"]][-len(kills) :]
    lasted = [row["recovery_s"] for row in rows if row["recovery_s"] is not None]
    return {
        "outages": len(lasted),
        "outage_s_median": statistics.median(lasted),
        "outage_s": [round(seconds, 2) for seconds in lasted],
        "resident_mib": {who: size >> 20 for who, size in watcher.resident.items()},
        "close_s": time.monotonic() - watcher.ended_at,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--learners", type=int, default=64)
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--settle-s", type=float, default=120.0, help="from the first step to the first kill")
    parser.add_argument("--run-dir", type=Path, default=Path("runs/aged"))
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    kills = [(at + given.settle_s, None) for at, _ in failover.schedule(given.kills, 0)[: given.kills]]
    old = emptied(given.run_dir / "old")
    old.root.rmdir()  # the history makes it
    facts = history.write(
        old.root, history.History(given.learners, given.steps, failover.recipe("old", kills).sync.fragments)
    )
    old.path(SEAL_FILE).unlink()
    found = {
        "facts": facts,
        "young": run("young", emptied(given.run_dir / "young"), kills),
        "old": run("old", old, kills),
    }
    found["ratio"] = found["old"]["outage_s_median"] / found["young"]["outage_s_median"]
    print(json.dumps(found, indent=1) if given.json else "\n".join(f"{name}: {value}" for name, value in found.items()))


if __name__ == "__main__":
    main()
