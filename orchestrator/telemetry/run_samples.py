"""A run's samples as the exporter reads them: what the orchestrator publishes, the status, and free disk space.

The orchestrator replaces the file of its metrics every few seconds, so exporters cost the training nothing, and need
not read a long log to begin.
"""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from orchestrator.eventlog.reader import LogReader
from orchestrator.store.readers import status_if_any
from orchestrator.store.run_store import RunStore
from orchestrator.telemetry.catalog import CATALOG, OTHER, PHASES, RUN_STATES, Buckets, Sample
from orchestrator.telemetry.fold import MetricsFold

FILE = "metrics.json"
ENDED = ("finished", "stopped", "failed")
NOWHERE = "none"  # the region of a pool that names none

RUN = {
    "progress": "diloco_run_progress_ratio",
    "eta_s": "diloco_run_eta_seconds",
    "eval_loss": "diloco_eval_loss",
    "syncer_step": "diloco_syncer_step",
    "target_syncer_steps": "diloco_syncer_target_steps",
}
SYNCER = {"epoch": "diloco_syncer_epoch", "quorum": "diloco_quorum", "grace_s": "diloco_grace_seconds"}
LEARNER = {
    "loss": "diloco_learner_loss",
    "lease_age_s": "diloco_learner_lease_age_seconds",
    "version_lag": "diloco_learner_version_lag",
}


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
            self.over, samples = _published(text)
            yield from samples
        yield from now(self._store, status, self.over)


def now(store: RunStore, status: Mapping[str, Any] | None, over: bool) -> Iterator[Sample]:
    """A run's gauges from its status, and how much room there is. An ended status waits for the end of the log."""
    if status is not None and (over or (status.get("run") or {}).get("state") not in ENDED):
        yield from gauges(status)
    usage = shutil.disk_usage(store.root)
    yield Sample("diloco_store_free_bytes", usage.free)
    yield Sample("diloco_store_size_bytes", usage.total)


# ------------------------------------------------------------------ what the orchestrator publishes


def all_samples(fold: MetricsFold, log: LogReader) -> list[Sample]:
    """Return the fold's samples, and how much of the log it was given."""
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


def _published(text: str) -> tuple[bool, list[Sample]]:
    """Whether the run has ended, and its samples. Raises ValueError for a file that is something else."""
    try:
        content = json.loads(text)
        return bool(content["over"]), list(_samples(content["series"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{FILE}: {error!r}") from error


def _samples(series: dict[str, list[list[object]]]) -> Iterator[Sample]:
    for name, rows in series.items():
        for value, *labels in rows:
            names = CATALOG[name].label_names[1:]
            read = Buckets(**value) if isinstance(value, dict) else float(value)  # type: ignore[arg-type]
            yield Sample(name, read, dict(zip(names, map(str, labels), strict=True)))


# ------------------------------------------------------------------ gauges, from the status


def gauges(status: Mapping[str, Any]) -> Iterator[Sample]:
    """Every gauge that this status has. Parts may be missing, as before the syncer answers."""
    run, syncer, learners = status.get("run") or {}, status.get("syncer") or {}, status.get("learners") or []
    for state in RUN_STATES:
        yield Sample("diloco_run_state", float(run.get("state") == state), {"state": state})
    yield from _known("diloco_status_timestamp_seconds", status.get("written_at"))
    for key, name in RUN.items():
        yield from _known(name, run.get(key))
    for key, name in SYNCER.items():
        yield from _known(name, syncer.get(key))
    for learner in learners:
        yield from _learner(learner)
    wanted = Counter((learner["pool"], learner["region"] or NOWHERE) for learner in learners)
    live = Counter((each["pool"], each["region"] or NOWHERE) for each in learners if each["state"] == "stepping")
    for (pool, region), count in wanted.items():
        labels = {"pool": pool, "region": region}
        yield Sample("diloco_learners", count, labels)
        yield Sample("diloco_learners_live", live[pool, region], labels)


def _learner(learner: Mapping[str, Any]) -> Iterator[Sample]:
    name = {"learner": learner["name"]}
    yield Sample("diloco_learner_info", 1, name | {"pool": learner["pool"], "region": learner["region"] or NOWHERE})
    phase = learner["state"] if learner["state"] in PHASES else OTHER
    for each in (*PHASES, OTHER):
        yield Sample("diloco_learner_phase", float(phase == each), name | {"phase": each})
    for key, metric in LEARNER.items():
        yield from _known(metric, learner.get(key), name)


def _known(name: str, value: Any, labels: Mapping[str, str] | None = None) -> Iterator[Sample]:
    if (known := number(value)) is not None:
        yield Sample(name, known, labels or {})


def number(value: Any) -> float | None:
    """A finite number of a status, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return value
