"""Reads a run's log while it grows: each line once, as plain values.

Unlike orchestrator/events.py it builds no facts: an exporter may be older than the log that it reads, and must be
cheap. It knows the envelope, and nothing of what the facts mean.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

CHUNK_BYTES = 8 * 2**20  # read at once from one segment


class Line(NamedTuple):
    """One event of the log."""

    writer: str
    incarnation: int
    at: float  # Unix seconds, on the writer's clock
    kind: str
    fact: Mapping[str, Any]


class Tail:
    """Every line of every segment in `events/`, once, however the files grow in between.

    A new Tail begins at the beginning: what it yields never depends on who read before it.
    """

    def __init__(self, run_dir: Path) -> None:
        self._folder = run_dir / "events"
        self._offsets: dict[Path, int] = {}
        self.bytes_read = 0

    def poll(self) -> list[Line]:
        """What is new, merged by time; one segment's lines stay in their order. Damaged lines raise ValueError.

        Call it again until nothing comes: it takes in one chunk of each segment at a time.
        """
        fresh: list[tuple[float, Line]] = []
        for path in sorted(self._folder.glob("*.jsonl")):
            latest = float("-inf")
            for line in self._read(path):
                latest = max(latest, line.at)  # a learner's facts arrive after they were said, but in causal order
                fresh.append((latest, line))
        return [line for _, line in sorted(fresh, key=lambda item: item[0])]

    def _read(self, path: Path) -> list[Line]:
        """The whole lines that have come since; a line that is still being written waits for its end."""
        offset = self._offsets.get(path, 0)
        with open(path, "rb") as file:
            file.seek(offset)
            data = file.read(CHUNK_BYTES)
        whole = data[: data.rfind(b"\n") + 1]
        self._offsets[path] = offset + len(whole)
        self.bytes_read += len(whole)
        return [parse(text) for text in whole.splitlines()]


def parse(text: bytes | str) -> Line:
    """One line of the log. Raises ValueError for what is none."""
    try:
        record = json.loads(text)
        return Line(record["writer"], record["incarnation"], record["at"], record["kind"], record["fact"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"not an event: {error!r}") from error
