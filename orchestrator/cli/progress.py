"""Progress on stderr: a bar for each stage on a terminal, a line every few seconds anywhere else."""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TimeRemainingColumn

PLAIN_EVERY_S = 5.0


class Bars:
    """They show while the `with` block runs."""

    def __init__(self) -> None:
        self._console, self._said_at = Console(stderr=True), time.monotonic()
        columns = ("{task.description}", BarColumn(), "{task.fields[words]}", TimeRemainingColumn())
        self._progress = Progress(*columns, console=self._console, transient=True)
        self._stages: dict[str, TaskID] = {}

    def __enter__(self) -> Bars:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def show(self, stage: str, done: float, total: float | None, words: str) -> None:
        """How far a stage is. `total`: None where nobody knows."""
        if stage not in self._stages:
            self._stages[stage] = self._progress.add_task(stage, total=total, words=words)
        self._progress.update(self._stages[stage], completed=done, words=words)
        if not self._console.is_terminal and time.monotonic() - self._said_at >= PLAIN_EVERY_S:
            self._said_at = time.monotonic()
            print(f"{stage}: {words}", file=sys.stderr, flush=True)
