"""A trial with this project: `python -m orchestrator run`, two learners, and a SIGKILL from outside.

What learners did is read from the run's log. Their facts reach it by the outer optimizer: steps that it never heard
of, because it is dead and nothing took its place, are not there.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.torchft.processes import Processes, ended
from benchmarks.torchft.trial import AFTER_S, BEFORE_S, LEARNER, Trial, trial
from learners.protocol.facts import StepFinished
from orchestrator.eventlog.reader import read_run
from outer.protocol.facts import Committed

ROOT = Path(__file__).resolve().parent.parent.parent
RECIPE = Path(__file__).resolve().parent / "recipe.toml"
START_S = 180.0
STOP_S = 120.0
SETTLE_S = 8.0
NAME = "decoupled-diloco"


def run(killed: str, folder: Path) -> Trial:
    store = folder / "run"
    command = [sys.executable, "-m", "orchestrator", "run", str(RECIPE), "--set", f"run.folder={store}", "--fresh"]
    with Processes(folder) as processes:
        store.joinpath("status.json").unlink(missing_ok=True)  # an earlier trial's
        job = processes.start("run", command, PYTHONPATH=str(ROOT))
        processes.wait_for("two stepping learners", lambda: _stepping(store), START_S)
        time.sleep(SETTLE_S + BEFORE_S)
        status = _status(store)
        rows = {row["name"]: row["pid"] for row in status["learners"]}
        *_, victim = rows
        at = time.time()
        os.kill(rows[victim] if killed == LEARNER else status["syncer"]["pid"], signal.SIGKILL)
        ends = ended({"the run": job}, at, AFTER_S[killed])
        job.terminate()  # asked to stop, it writes its log to the end
        job.wait(STOP_S)
    events = read_run(store)
    steps: dict[str, list[float]] = {name: [] for name in rows if killed != LEARNER or name != victim}
    commits = [event for event in events if isinstance(event.fact, Committed)]
    for event in events:
        if isinstance(event.fact, StepFinished) and event.writer in steps:
            steps[event.writer].append(event.at)
    back = (
        event.at
        for event in commits
        if any(part.learner == victim and part.incarnation > 1 for part in event.fact.participants)
    )
    found = next(back, None) if killed == LEARNER else None
    return trial(NAME, killed, at, steps, [event.at for event in commits], found, ends)


def _status(store: Path) -> dict[str, Any]:
    try:
        status: dict[str, Any] = json.loads(store.joinpath("status.json").read_text())
        return status
    except FileNotFoundError:
        return {"learners": []}


def _stepping(store: Path) -> bool:
    rows = _status(store)["learners"]
    return len(rows) == 2 and all(row["state"] == "stepping" for row in rows)
