"""The samples of a run's folder: its metrics, its status, and free disk space."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.store.readers import status_if_any
from orchestrator.store.run_store import RunStore
from orchestrator.telemetry.catalog import Sample
from orchestrator.telemetry.gauges import gauges
from orchestrator.telemetry.published import FILE, Published

ENDED = ("finished", "stopped", "failed")


class RunSamples:
    """Call `look` from time to time, until `over`."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self.over = False  # the run has ended, and these are its final counts

    def look(self) -> Iterator[Sample]:
        """Every series as it is now: counters before the status, so that who sees the run's end has the final counts.

        Raises OSError, and ValueError for a damaged file.
        """
        status = status_if_any(self._store)  # before the metrics: one that says ended is older than the last of them
        if (text := self._store.read_text(FILE)) is not None:
            published = Published(text)
            self.over = published.over
            yield from published.samples
        yield from now(self._store, status, self.over)


def now(store: RunStore, status: Mapping[str, Any] | None, over: bool) -> Iterator[Sample]:
    """A run's gauges from its status, and how much room there is. An ended status waits for the end of the log."""
    if status is not None and (over or (status.get("run") or {}).get("state") not in ENDED):
        yield from gauges(status)
    usage = shutil.disk_usage(store.root)
    yield Sample("diloco_store_free_bytes", usage.free)
    yield Sample("diloco_store_size_bytes", usage.total)
