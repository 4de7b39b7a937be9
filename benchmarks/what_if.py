"""What a slow learner, or failures, cost the model: real training that follows simulated tapes.

    python benchmarks/what_if.py [--seeds 3] [--set KEY=VALUE ...] [--folder runs/what-if] [--only NAME] [--json]

The recipe is deploy/recipes/what-if.toml. For each case and seed `diloco tape` simulates who steps when, who
dies and what is merged; `diloco replay` then computes exactly that, to the same number of committed tokens. The first
seed's tapes are replayed twice, and the digests have to be the same. No measured time decides anything, so cases differ
by what was simulated and by nothing else; how far seeds of one case are apart is what chance alone makes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECIPE = ROOT / "deploy/recipes/what-if.toml"
STEP_S, STARTUP_S = 0.25, 5.0  # virtual; a learner that died is away for 20 steps and a little more
COMMAND_S = 1800.0

SLOW, REPORTED = "pools.1.slowdown=2", 'sync.participants="reported"'
RARE, OFTEN = ("chaos.mtbf_s=20", 'chaos.kinds=["kill"]'), ("chaos.mtbf_s=5", 'chaos.kinds=["kill"]')
SYNCER = 'sync.recover="syncer"'
CASES: dict[str, tuple[str, ...]] = {
    "no fault": (),
    "one 2x slower, eligible": (SLOW,),
    "one 2x slower, reported, no grace": (SLOW, REPORTED, "sync.grace=0.0"),
    "one 2x slower, reported, adaptive grace": (SLOW, REPORTED),
    "a kill every 20 s, state from a peer": RARE,
    "a kill every 20 s, from the syncer": (*RARE, SYNCER),
    "a kill every 5 s, state from a peer": OFTEN,
    "a kill every 5 s, from the syncer": (*OFTEN, SYNCER),
}


def diloco(*arguments: object) -> dict[str, Any]:
    """What a command says with --json."""
    command = [sys.executable, "-m", "orchestrator", *map(str, arguments), "--json"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=COMMAND_S)
    told: dict[str, Any] = json.loads(done.stdout)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[3:])}: {told.get('error', told)}")
    return told


def measure(case: str, seed: int, settings: Sequence[str], folder: Path, twice: bool) -> dict[str, Any]:
    """One tape, and what training by it comes to."""
    shutil.rmtree(folder, ignore_errors=True)
    sets = [word for setting in (*settings, *CASES[case]) for word in ("--set", setting)]
    tape = diloco(
        "tape",
        RECIPE,
        folder,
        "--profile",
        "calm",
        "--seed",
        seed,
        "--step-seconds",
        STEP_S,
        "--startup-seconds",
        STARTUP_S,
        *sets,
    )
    played = diloco("replay", folder)
    if twice and (again := diloco("replay", folder)["digest"]) != played["digest"]:
        raise RuntimeError(f"{case}: two replays of one tape differ: {played['digest']}, {again}")
    return {
        "case": case,
        "seed": seed,
        "loss": played["evaluations"][-1][1],
        "digest": played["digest"],
        "replayed": 1 + twice,
        "tokens": played["tokens"],
        "steps": played["steps"],
        "commits": played["commits"],
        "participants": played["computed"]["contribution"] / played["commits"],
        "availability": tape["availability"],
        "kills": tape["injected"].get("kill", 0),
        "virtual_s": tape["virtual_s"],
        "seconds": played["seconds"],
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A line a case: means over its seeds, and how far the seeds' losses are apart."""
    names = ("kills", "virtual_s", "steps", "commits", "participants")
    lines = [f"| case | held-out loss | seeds apart | {' | '.join(names)} |", "|---" * (3 + len(names)) + "|"]
    for case in CASES:
        if mine := [row for row in rows if row["case"] == case]:
            losses = [row["loss"] for row in mine]
            kills, virtual_s, steps, commits, participants = (fmean(row[name] for row in mine) for name in names)
            told = f"{kills:.1f} | {virtual_s:.0f} | {steps:,.0f} | {commits:,.0f} | {participants:.2f}"
            lines.append(f"| {case} | {fmean(losses):.4f} | {max(losses) - min(losses):.4f} | {told} |")
    return "\n".join(lines)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments.add_argument("--folder", type=Path, default=Path("runs/what-if"))
    arguments.add_argument("--only", choices=CASES, help="one case")
    arguments.add_argument("--json", action="store_true")
    options = arguments.parse_args()
    rows = []
    for seed in range(options.seeds):
        for number, case in enumerate(CASES):
            if options.only in (None, case):
                folder = options.folder.resolve() / f"{number}-{seed}"
                rows.append(measure(case, seed, options.set, folder, twice=seed == 0))
                print(json.dumps(rows[-1]), file=sys.stderr)
    print(json.dumps(rows, indent=1) if options.json else table(rows))


if __name__ == "__main__":
    main()
