"""A run's metrics as a file in its folder. The orchestrator replaces it every few seconds; exporters read it.

So exporters cost the training nothing, and need not read a long log to begin.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version

from orchestrator.eventlog.reader import LogReader
from orchestrator.store.run_store import RunStore
from orchestrator.telemetry.catalog import CATALOG, Buckets, Sample
from orchestrator.telemetry.fold import MetricsFold

FILE = "metrics.json"


def package_version() -> str:
    try:
        return version("decoupled-diloco")
    except PackageNotFoundError:  # run from a folder, not installed
        return "unknown"


def all_samples(fold: MetricsFold, log: LogReader) -> list[Sample]:
    """What the fold has now, and how much it was given of the log."""
    return [
        *fold.samples(),
        Sample("diloco_log_bytes_total", log.bytes_read),
        Sample("diloco_log_damaged_lines_total", len(log.findings.unreadable)),
    ]


def publish(store: RunStore, fold: MetricsFold, log: LogReader) -> None:
    """Write `all_samples`. Raises OSError."""
    series: dict[str, list[object]] = {}
    for sample in all_samples(fold, log):
        value = asdict(sample.value) if isinstance(sample.value, Buckets) else sample.value
        series.setdefault(sample.name, []).append([value, *sample.labels.values()])
    store.write_text(FILE, json.dumps({"over": fold.over, "series": series}, separators=(",", ":"), allow_nan=False))


class Published:
    """What was published last. Raises ValueError for a file that is something else."""

    def __init__(self, text: str) -> None:
        try:
            content = json.loads(text)
            self.over = bool(content["over"])
            self.samples = list(_samples(content["series"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{FILE}: {error!r}") from error


def _samples(series: dict[str, list[list[object]]]) -> Iterator[Sample]:
    """Those that the catalog has: another version of this package may have written them."""
    for name, rows in series.items():
        for value, *labels in rows if name in CATALOG else ():
            names = CATALOG[name].label_names[1:]
            read = Buckets(**value) if isinstance(value, dict) else float(value)  # type: ignore[arg-type]
            yield Sample(name, read, dict(zip(names, map(str, labels), strict=True)))
