"""The log of a data-parallel run: a JSON line for each step; and what it adds up to.

The first rank writes `steps.jsonl`, the evaluator `evaluations.jsonl`. A line is written whole, so a killed writer
leaves at most one that is cut, which readers skip. Times are Unix seconds.

Goodput: of a step at most STALLED times the median of the newest MEDIAN_OF steps is productive; the rest is blocked.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from orchestrator.store.run_store import RunStore

STEPS_FILE, EVALUATIONS_FILE = "steps.jsonl", "evaluations.jsonl"
PROGRESS_FILE = "progress.json"
STALLED, MEDIAN_OF = 1.5, 32


class LineLog:
    """Appends lines of strict JSON to one file: a number that is not finite becomes null."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, **values: Any) -> None:
        with open(self._path, "ab", buffering=0) as file:
            told = {key: None if _unfit(value) else value for key, value in values.items()}
            file.write(json.dumps(told, allow_nan=False).encode() + b"\n")


def _unfit(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


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
class History:
    """The figures of one run, from its log."""

    started_at: float | None = None  # the beginning of the first step
    ended_at: float | None = None  # the end of the newest
    step: int = 0  # the newest finished
    productive_s: float = 0.0
    blocked_s: float = 0.0
    evaluations: list[tuple[int, float, float]] = field(default_factory=list)  # step, seconds after the start, loss
    eval_loss: float | None = None  # of the newest evaluation; None too where it is not finite
    not_evaluated: dict[int, str] = field(default_factory=dict)  # step -> why not
    finished: bool = False

    @property
    def wall_s(self) -> float | None:
        return None if self.started_at is None or self.ended_at is None else self.ended_at - self.started_at

    @property
    def goodput_time(self) -> float | None:
        return self.productive_s / self.wall_s if self.wall_s else None

    def summary(self, tokens_per_step: int) -> dict[str, Any]:
        """For summary.json: names as in a run of ours where they mean the same."""
        reason = "the budget is reached" if self.finished else "it was ended before its budget"
        if failed := self.not_evaluated.get(self.step):
            reason += f"; its last evaluation failed: {failed}"
        return {
            "ok": self.finished and not failed,
            "state": "finished" if self.finished else "stopped",
            "reason": reason,
            "eval_loss": None if failed else self.eval_loss,
            "not_evaluated": [{"step": step, "reason": why} for step, why in sorted(self.not_evaluated.items())],
            "steps": self.step,
            "tokens": dict.fromkeys(("committed", "processed"), self.step * tokens_per_step),
            "wall_s": self.wall_s,
            "tokens_per_s": self.step * tokens_per_step / self.wall_s if self.wall_s else None,
            "goodput_time": self.goodput_time,
            "blocked_s": self.blocked_s,
        }


def history(store: RunStore) -> History:
    """Read a run's log."""
    found, taken = History(), deque[float](maxlen=MEDIAN_OF)
    for line in lines(store.path(STEPS_FILE)):
        if line["kind"] == "step":
            took, found.step, found.ended_at = float(line["seconds"]), int(line["step"]), float(line["at"])
            if found.started_at is None:
                found.started_at = found.ended_at - took
            taken.append(took)
            productive = min(took, STALLED * median(taken))
            found.productive_s += productive
            found.blocked_s += took - productive
        elif line["kind"] == "not_evaluated":
            found.not_evaluated[int(line["step"])] = str(line["reason"])
        elif line["kind"] == "finished":
            found.finished = True
    for line in lines(store.path(EVALUATIONS_FILE)):
        found.eval_loss = line["loss"]
        found.not_evaluated.pop(int(line["step"]), None)  # it came after all
        if found.eval_loss is not None:
            after_s = max(0.0, float(line["at"]) - (found.started_at or 0.0))
            found.evaluations.append((int(line["step"]), after_s, float(found.eval_loss)))
    return found
