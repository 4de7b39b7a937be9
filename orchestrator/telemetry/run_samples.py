"""The samples of a run's folder: new log lines, status, and free disk space.

They come from the folder alone, so every reader gets the same counts, at any time, and training is not disturbed.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from orchestrator.store.readers import status_if_any
from orchestrator.store.run_store import RunStore
from orchestrator.telemetry.catalog import CATALOG, Sample
from orchestrator.telemetry.gauges import gauges
from orchestrator.telemetry.log_tail import Line, Tail
from orchestrator.telemetry.measure import Measures, number


class RunSamples:
    """Call `look` from time to time, until `over`."""

    def __init__(self, store: RunStore, codec: str) -> None:
        self._store = store
        self._tail = Tail(store.root)
        self._measures = Measures(codec, _version())
        self._lines: deque[Line] = deque()  # read, and not told yet
        self._strange = 0  # lines whose fact is not what its kind says
        self._counted: dict[str, int] = {}
        self._lasting: dict[tuple[Any, ...], Sample] = {}  # gauges that facts set
        self._ended = False  # the orchestrator has said that the run is over
        self.over = False  # and everything has been read since
        self.moved = False  # whether the last look found something new in the log

    def look(self) -> Iterator[Sample]:
        """New samples: counters first, then gauges, so that a reader that sees the end has the final counts.

        A caller that stops halfway gets the following lines at the next look.
        """
        status = status_if_any(self._store)  # before the log: one that says ended is older than its end
        before = self._tail.bytes_read
        if not self._lines:
            self._lines.extend(self._tail.poll())
        self.moved = bool(self._lines) or self._tail.bytes_read > before
        while self._lines:
            line = self._lines.popleft()
            self._ended |= line.kind == "RunFinished"
            for sample in self._measured(line):
                if CATALOG[sample.name].kind == "gauge":
                    self._lasting[sample.name, *sorted(sample.labels.items())] = sample
                else:
                    yield sample
        if self._ended and not self.moved and not self.over:
            self.over = True
            yield from self._measures.close()
        yield from self._progress()
        yield from self._lasting.values()  # each time: Ray drops a gauge that is not set for a while
        yield from self._measures.commit_intervals()
        if status is not None and (self.over or not self._ended):
            yield from gauges(status)
        usage = shutil.disk_usage(self._store.root)
        yield Sample("diloco_store_free_bytes", usage.free)
        yield Sample("diloco_store_size_bytes", usage.total)

    def _measured(self, line: Line) -> list[Sample]:
        """A line's samples; a line whose fact lacks fields of its kind is counted and skipped."""
        with suppress(ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            told = list(self._measures.take(line))
            if all(map(_countable, told)):
                return told
        self._strange += 1
        return []

    def _progress(self) -> Iterator[Sample]:
        """How much of the log was read, and how many lines were unreadable."""
        for name, total in (
            ("diloco_log_bytes_total", self._tail.bytes_read),
            ("diloco_log_damaged_lines_total", self._tail.damaged + self._strange),
        ):
            if new := total - self._counted.get(name, 0):
                self._counted[name] = total
                yield Sample(name, new)


def _countable(sample: Sample) -> bool:
    """Whether a meter accepts it: a counter never decreases."""
    value = number(sample.value)
    return value is not None and (value >= 0 or CATALOG[sample.name].kind != "counter")


def _version() -> str:
    try:
        return version("decoupled-diloco")
    except PackageNotFoundError:  # run from a folder, not installed
        return "unknown"
