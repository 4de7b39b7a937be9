"""The log of a data-parallel run: a JSON line for each start, step and checkpoint; and what it adds up to.

The first rank writes `steps.jsonl`, to which the command adds a line `attached` when it starts; the evaluator writes
`evaluations.jsonl`. A line is written whole, so a killed writer leaves at most one that is
cut, which readers skip. Times are Unix seconds; the time from the last line before an `attached` to it, in which no
command ran, does not count.

Goodput: of a step that was not lost, at most STALLED times the median of the newest MEDIAN_OF steps is productive; the
rest is blocked, as when all wait for a frozen rank.
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
    ended_at: float | None = None  # the end of the newest, `away_s` earlier than by the clock
    away_s: float = 0.0  # no command ran, since the first step
    step: int = 0  # the newest finished
    most: int = 0  # the furthest ever
    processed: int = 0  # steps, those done again included
    productive_s: float = 0.0  # of steps that were not lost
    checkpoints: int = 0
    restarts: int = 0  # starts after the first one
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
            "steps": self.step,
            "tokens": {"committed": self.step * tokens_per_step, "processed": self.processed * tokens_per_step},
            "wall_s": self.wall_s,
            "tokens_per_s": self.step * tokens_per_step / self.wall_s if self.wall_s else None,
            "goodput_time": self.goodput_time,
            "checkpoints": self.checkpoints,
            "restarts": self.restarts,
        }


def history(store: RunStore) -> History:
    """Read a run's log. Lost steps are those that a start goes back behind."""
    found = History()
    productive = dict[int, float]()  # seconds of each step since the last checkpoint but one
    saved, newest_at = 0, 0.0
    taken, gaps = deque[float](maxlen=MEDIAN_OF), list[tuple[float, float]]()  # gaps: (end, length), by the clock
    for line in lines(store.path(STEPS_FILE)):
        kind, clock = line.get("kind"), float(line["at"])
        if kind == "attached" and found.started_at is not None:
            gaps.append((clock, max(0.0, clock - newest_at)))
            found.away_s += gaps[-1][1]
        newest_at, at = clock, clock - found.away_s
        if kind == "started":
            if found.started_at is not None:
                found.restarts += 1
                back = int(line["step"])
                found.productive_s -= sum(productive.pop(step, 0.0) for step in range(back + 1, found.step + 1))
                found.step = back
        elif kind == "step":
            took, step = float(line["seconds"]), int(line["step"])
            if found.started_at is None:
                found.started_at = at - took
            found.ended_at, found.step, found.most = at, step, max(found.most, step)
            found.processed += 1
            taken.append(took)
            productive[step] = min(took, STALLED * median(taken))
            found.productive_s += productive[step]
        elif kind == "checkpoint":
            found.checkpoints += 1
            # The newest reported one need not be the one that a restart finds.
            productive = {step: each for step, each in productive.items() if step > saved}
            saved = int(line["step"])
        elif kind == "not_evaluated":
            found.not_evaluated[int(line["step"])] = str(line["reason"])
        elif kind == "finished":
            found.finished = True
    by_step = {int(line["step"]): line for line in lines(store.path(EVALUATIONS_FILE))}
    for step, line in sorted(by_step.items()):
        clock, loss = float(line["at"]), line["loss"]
        found.eval_loss = loss
        found.not_evaluated.pop(step, None)  # a later try succeeded
        if loss is not None:
            away_s = sum(length for end, length in gaps if end <= clock)
            found.evaluations.append((step, max(0.0, clock - away_s - (found.started_at or 0.0)), float(loss)))
    return found
