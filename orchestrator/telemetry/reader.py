"""A run's folder as samples: its log since the last look, its status, and the space that is left.

Everything comes from the folder, so that whoever reads it first, again, or after the run finds the same counts, and
nothing that trains takes notice. Knows nothing of where the samples go.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from orchestrator.store import RunStore
from orchestrator.stored import status_if_any
from orchestrator.telemetry.catalog import CATALOG, Sample
from orchestrator.telemetry.gauges import gauges
from orchestrator.telemetry.measure import Measures
from orchestrator.telemetry.tail import Tail


class Reader:
    """Call `look` every so often; `over` says when there is nothing more to come."""

    def __init__(self, store: RunStore, codec: str) -> None:
        self._store = store
        self._tail = Tail(store.root)
        self._measures = Measures(codec, _version())
        self._lasting: dict[tuple[Any, ...], Sample] = {}  # gauges that facts set
        self._ended = False  # the orchestrator has said that the run is over
        self.over = False  # and everything has been read since
        self.moved = False  # whether the last look found something new in the log

    def look(self) -> Iterator[Sample]:
        """What is new. Counters first, then the gauges: whoever sees the run ended sees the final counts."""
        status = status_if_any(self._store)  # before the log: one that says ended is older than its end
        before = self._tail.bytes_read
        lines = self._tail.poll()
        for line in lines:
            self._ended |= line.kind == "RunFinished"
            for sample in self._measures.take(line):
                if CATALOG[sample.name].kind == "gauge":
                    self._lasting[sample.name, *sorted(sample.labels.items())] = sample
                else:
                    yield sample
        self.moved = bool(lines)
        if self._ended and not lines and not self.over:
            self.over = True
            yield from self._measures.close()
        if read := self._tail.bytes_read - before:
            yield Sample("diloco_log_bytes_total", read)
        yield from self._lasting.values()  # again each time: Ray forgets a gauge that nobody sets for a while
        yield from self._measures.rhythm()
        if status is not None and (self.over or not self._ended):
            yield from gauges(status)
        usage = shutil.disk_usage(self._store.root)
        yield Sample("diloco_store_free_bytes", usage.free)
        yield Sample("diloco_store_size_bytes", usage.total)


def _version() -> str:
    try:
        return version("decoupled-diloco")
    except PackageNotFoundError:  # run from a folder, not installed
        return "unknown"
