"""A plan against a run: what `diloco plan` says of bytes and memory, and what one run of the recipe then used.

    python benchmarks/planning.py [RECIPE] [--set KEY=VALUE ...]

Runs the recipe on this machine, once, in a folder of its own; prints a table, and the same as JSON on the last line.
Memory is the largest private resident set of each kind of process, sampled twice a second: without shared pages,
which are Ray's object store and the same for all.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
SAMPLE_S = 0.5
MIB = 2**20
# Ray names a worker's process after the actor that it is.
ACTORS = {"LearnerActor": "learner", "SyncerActor": "syncer", "EvaluatorActor": "evaluator"} | {
    "OrchestratorActor": "orchestrator"
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", nargs="?", default=str(ROOT / "deploy" / "recipes" / "demo.toml"))
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    asked = parser.parse_args()
    overrides = [part for override in asked.overrides for part in ("--set", override)]
    diloco = [sys.executable, "-m", "orchestrator"]
    planned = json.loads(
        subprocess.run([*diloco, "plan", asked.recipe, *overrides, "--json"], cwd=ROOT, capture_output=True).stdout
    )
    with tempfile.TemporaryDirectory(prefix="diloco-plan-") as folder:
        command = [*diloco, "run", asked.recipe, *overrides, "--set", f"run.folder={folder}/run", "--json"]
        with open(f"{folder}/out", "w+") as output, subprocess.Popen(command, cwd=ROOT, stdout=output) as run:
            peaks = watch(run)
            output.seek(0)
            summary = json.load(output)
    report(planned, summary, peaks)


def watch(run: subprocess.Popen[Any]) -> dict[str, int]:
    """The largest private resident set of each kind of process until the run has ended, in bytes."""
    peaks: dict[str, int] = {}
    while run.poll() is None:
        for process in psutil.Process(run.pid).children(recursive=True):
            try:
                title, memory = " ".join(process.cmdline()), process.memory_info()
            except psutil.Error:
                continue  # it has just ended
            for actor, kind in ACTORS.items():
                if title.startswith(f"ray::{actor}"):
                    peaks[kind] = max(peaks.get(kind, 0), memory.rss - memory.shared)
        time.sleep(SAMPLE_S)
    return peaks


def report(planned: dict[str, Any], summary: dict[str, Any], peaks: dict[str, int]) -> None:
    """Planned against measured, in MiB."""
    rows = [
        (f"sent {way}", planned["traffic"][f"run_{way}_bytes"], summary["wire_bytes"][way]) for way in ("up", "down")
    ]
    memory = {name.partition("-")[0]: process["host_bytes"] for name, process in planned["memory"].items()}
    rows += [(f"memory of the {kind}", memory[kind], peaks[kind]) for kind in sorted(peaks)]
    print(f"{summary['state']}: {summary['commits']} commits, participation {summary['participation']['mean']:.3f}")
    print(f"{'':28}{'planned MiB':>12}{'measured MiB':>14}{'measured / planned':>20}")
    for name, plan, seen in rows:
        print(f"{name:28}{plan / MIB:12.1f}{seen / MIB:14.1f}{seen / plan:20.3f}")
    print(json.dumps({"rows": rows, "commits": summary["commits"], "participation": summary["participation"]}))


if __name__ == "__main__":
    main()
