"""This project and torchft side by side: what the death of a learner costs the other, and what the coordinator's does.

    python benchmarks/torchft/compare.py --python torchft-venv/bin/python [--repetitions 3] [--only TEXT] [--json]

Each trial starts two learners, lets them train without a fault, sends one SIGKILL and watches. The coordinator is
torchft's lighthouse, and our outer optimizer. Trials are added to --rows, and the tables are of all that it holds.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[0] = str(ROOT)

from benchmarks.torchft import ours, theirs  # noqa: E402
from benchmarks.torchft.tables import read, tables  # noqa: E402
from benchmarks.torchft.trial import AFTER_S, COORDINATOR, LEARNER, Trial  # noqa: E402
from orchestrator.recipe.toml_text import load  # noqa: E402

NEEDED = """error: --python: {python} is no Python with torchft. To make one:
    python3 -m venv torchft-venv
    torchft-venv/bin/pip install torch==2.13.0 torchft-nightly numpy
and, unless it lies here, give --python torchft-venv/bin/python"""

Runner = Callable[[Path], Trial]


def shared() -> dict[str, object]:
    """What torchft's trainers are given of our recipe."""
    recipe = load(ours.RECIPE, [])
    return {
        "model": recipe.model,
        "lr": recipe.inner.lr,
        "batch_size": recipe.pools[0].batch_size,
        "sequence_length": recipe.data.sequence_length,
        "round_steps": recipe.sync.round_steps,
        "overlap_steps": recipe.sync.overlap_steps,
    }


def trials(python: Path) -> dict[str, Runner]:
    """Every kind of trial by its name."""
    model = shared()
    kinds: dict[str, Runner] = {
        f"{ours.NAME}: {killed}": partial(ours.run, killed) for killed in (LEARNER, COORDINATOR)
    }
    for system in theirs.SYSTEMS:
        for killed in AFTER_S:
            kinds[f"{system.name}: {killed}"] = partial(theirs.run, system, killed, model, python)
    return kinds


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--python", type=Path, default=Path("torchft-venv/bin/python"), help="one with torchft")
    arguments.add_argument("--repetitions", type=int, default=3)
    arguments.add_argument("--only", default="", help="only trials whose name contains this")
    arguments.add_argument("--rows", type=Path, default=Path("runs/torchft/rows.jsonl"))
    arguments.add_argument("--json", action="store_true")
    options = arguments.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # ends what a trial has started
    python = options.python.absolute()  # not resolved: a venv's python is a link
    if not (python.parent / "torchft_lighthouse").exists():
        raise SystemExit(NEEDED.format(python=options.python))
    chosen = {name: runner for name, runner in trials(python).items() if options.only in name}
    folder = options.rows.absolute().parent
    folder.mkdir(parents=True, exist_ok=True)
    for repetition in range(options.repetitions):
        for name, runner in chosen.items():
            begin = time.monotonic()
            result = runner(folder / name.replace(": ", "-").replace(", ", "-").replace(" ", "-"))
            with options.rows.open("a") as rows:
                rows.write(json.dumps(asdict(result)) + "\n")
            print(f"{repetition + 1}: {name}: {time.monotonic() - begin:.0f} s", file=sys.stderr)
    if not options.rows.exists():
        raise SystemExit(f"error: no trials were chosen, and {options.rows} holds none")
    found = read(options.rows)
    print(json.dumps([asdict(row) for row in found], indent=1) if options.json else tables(found))


if __name__ == "__main__":
    main()
