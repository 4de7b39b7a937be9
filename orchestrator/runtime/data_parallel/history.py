"""The log of a data-parallel run: a JSON line for each start, step, checkpoint and fault; and what it adds up to.

The first rank writes `steps.jsonl`, the evaluator `evaluations.jsonl`, the command `faults.jsonl`. A line is written
whole, so a killed writer leaves at most one that is cut, which readers skip. Times are Unix seconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.store.run_store import RunStore

STEPS_FILE, EVALUATIONS_FILE, FAULTS_FILE = "steps.jsonl", "evaluations.jsonl", "faults.jsonl"
RANKS = "ranks"  # a folder: each rank's pid, of its newest start
PROGRESS_FILE = "progress.json"


class LineLog:
    """Appends lines to one file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, **values: Any) -> None:
        with open(self._path, "ab", buffering=0) as file:
            file.write(json.dumps(values).encode() + b"\n")


def lines(path: Path) -> Iterator[Mapping[str, Any]]:
    """Every whole line, in order; none without the file."""
    if not path.exists():
        return
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict):
                yield value


@dataclass
class Restart:
    """A start after the first one."""

    at: float  # when the newest step before it was finished
    lost_steps: int  # finished, and done again
    resumed_at_step: int
    outage_s: float | None = None  # until a step was finished again
    recovery_s: float | None = None  # until it was further than before


@dataclass
class History:
    """What the log of one run adds up to."""

    started_at: float | None = None  # the beginning of the first step
    ended_at: float | None = None  # the end of the newest
    step: int = 0  # the newest finished
    most: int = 0  # the furthest ever
    processed: int = 0  # steps, those done again included
    productive_s: float = 0.0  # of steps that were not lost
    checkpoints: int = 0
    checkpoint_s: float = 0.0
    restarts: list[Restart] = field(default_factory=list)
    evaluations: list[tuple[int, float, float]] = field(default_factory=list)  # step, seconds after the start, loss
    faults: list[Mapping[str, Any]] = field(default_factory=list)
    finished: bool = False

    @property
    def wall_s(self) -> float | None:
        return None if self.started_at is None or self.ended_at is None else self.ended_at - self.started_at

    @property
    def goodput_time(self) -> float | None:
        return self.productive_s / self.wall_s if self.wall_s else None

    def summary(self, tokens_per_step: int) -> dict[str, Any]:
        """For summary.json: names as in a run of ours where they mean the same."""
        return {
            "ok": self.finished,
            "state": "finished" if self.finished else "stopped",
            "reason": "the budget is reached" if self.finished else "it was ended before its budget",
            "eval_loss": self.evaluations[-1][2] if self.evaluations else None,
            "steps": self.step,
            "tokens": {"committed": self.step * tokens_per_step, "processed": self.processed * tokens_per_step},
            "wall_s": self.wall_s,
            "tokens_per_s": self.step * tokens_per_step / self.wall_s if self.wall_s else None,
            "goodput_time": self.goodput_time,
            "checkpoints": self.checkpoints,
            "checkpoint_s": self.checkpoint_s,
            "restarts": [
                {
                    "at_s": each.at - (self.started_at or each.at),
                    "lost_steps": each.lost_steps,
                    "resumed_at_step": each.resumed_at_step,
                    "outage_s": each.outage_s,
                    "recovery_s": each.recovery_s,
                }
                for each in self.restarts
            ],
            "faults": list(self.faults),
        }


def history(store: RunStore) -> History:
    """Read a run's log. Lost steps are those that a start goes back behind."""
    found, seconds = History(), dict[int, float]()
    for line in lines(store.path(STEPS_FILE)):
        kind = line.get("kind")
        if kind == "started":
            if found.started_at is not None and found.ended_at is not None:
                back = int(line["step"])
                found.restarts.append(Restart(found.ended_at, found.step - back, back))
                for step in range(back + 1, found.step + 1):
                    found.productive_s -= seconds.pop(step, 0.0)
                found.step = back
        elif kind == "step":
            at, took, step = float(line["at"]), float(line["seconds"]), int(line["step"])
            if found.started_at is None:
                found.started_at = at - took
            if found.restarts:
                newest = found.restarts[-1]
                if newest.outage_s is None:
                    newest.outage_s = at - newest.at
                if newest.recovery_s is None and step > found.most:
                    newest.recovery_s = at - newest.at
            found.ended_at, found.step, found.most = at, step, max(found.most, step)
            found.processed += 1
            found.productive_s += took
            seconds[step] = took
        elif kind == "checkpoint":
            found.checkpoints += 1
            found.checkpoint_s += float(line["seconds"])
            seconds = {step: took for step, took in seconds.items() if step > int(line["step"])}
        elif kind == "finished":
            found.finished = True
    begun = found.started_at or 0.0
    by_step = {int(line["step"]): line for line in lines(store.path(EVALUATIONS_FILE))}
    found.evaluations = [
        (step, max(0.0, float(line["at"]) - begun), float(line["loss"])) for step, line in sorted(by_step.items())
    ]
    found.faults = list(lines(store.path(FAULTS_FILE)))
    return found
