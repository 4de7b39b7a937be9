"""Reads a growing log: each line once, as plain values.

Unlike orchestrator/eventlog/events.py it builds no fact objects: an exporter must be cheap, and may be older than the
log that it reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

CHUNK_BYTES = 8 * 2**20  # read at once from one segment; more for a line that is longer


class Line(NamedTuple):
    """One event of the log."""

    writer: str
    incarnation: int
    at: float  # Unix seconds, on the writer's clock
    kind: str
    fact: Mapping[str, Any]


class Tail:
    """Every line of every segment in `events/`, once, from the beginning."""

    def __init__(self, run_dir: Path) -> None:
        self._folder = run_dir / "events"
        self._offsets: dict[Path, int] = {}
        self.bytes_read = 0
        self.damaged = 0  # lines that are not events, and are skipped

    def poll(self) -> list[Line]:
        """What is new, merged by time; one segment's lines stay in their order. Damaged lines are counted and skipped.

        Call it again until `bytes_read` stays: it takes in one chunk of each segment at a time. Raises OSError where
        a segment cannot be read; then nothing counts as read, and the next call begins at the same place.
        """
        chunks = {path: self._whole_lines(path) for path in sorted(self._folder.glob("*.jsonl"))}
        fresh: list[tuple[float, Line]] = []
        for path, chunk in chunks.items():
            latest = float("-inf")
            for text in chunk.splitlines(keepends=True):
                self._offsets[path] = self._offsets.get(path, 0) + len(text)
                self.bytes_read += len(text)
                try:
                    line = parse(text)
                except ValueError:
                    self.damaged += 1
                    continue
                latest = max(latest, line.at)  # a learner's facts arrive after they were said, but in causal order
                fresh.append((latest, line))
        return [line for _, line in sorted(fresh, key=lambda item: item[0])]

    def _whole_lines(self, path: Path) -> bytes:
        """The complete lines appended since the last call."""
        with open(path, "rb") as file:
            file.seek(self._offsets.get(path, 0))
            data = file.read(CHUNK_BYTES)
            while b"\n" not in data and (more := file.read(max(CHUNK_BYTES, len(data)))):
                data += more
        return data[: data.rfind(b"\n") + 1]


def parse(text: bytes | str) -> Line:
    """Parse one line of the log. Raises ValueError."""
    try:
        record = json.loads(text)
        line = Line(record["writer"], record["incarnation"], record["at"], record["kind"], record["fact"])
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"not an event: {error!r}") from error
    at, texts = line.at, isinstance(line.writer, str) and isinstance(line.kind, str)
    if not (texts and isinstance(line.fact, dict) and isinstance(at, (int, float)) and abs(at) < float("inf")):
        raise ValueError(f"not an event: {line}")
    return line
