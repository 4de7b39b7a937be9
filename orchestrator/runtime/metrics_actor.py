"""A run's metrics through Ray: one small actor reads `status.json` and updates Ray's own meters.

Ray's agent on each node exports them for Prometheus. Nothing in the run depends on the actor, and Ray may restart it.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import shutil
import time
from collections.abc import Iterable, Mapping
from typing import Any

import ray
from ray.util.metrics import Counter, Gauge

from orchestrator.recipe.config import Recipe
from orchestrator.runtime.placement import control, named
from orchestrator.store.readers import status_if_any
from orchestrator.store.run_store import RunStore
from orchestrator.telemetry.catalog import CATALOG, ENDED, Metric, Sample, admitted, samples
from outer.background import end_process, thread

CPUS = 0.05
LOOK_S = 1.0  # between two looks at the status
TARGETS_S = 10.0  # between two looks at the cluster's nodes
LINGER_S = 40.0  # after the run, for the last samples to be exported (10 s) and scraped (15 s)
RESTARTS_MAX = 10
TARGETS_FILE = "targets.json"  # in the run's folder: where Prometheus finds the nodes, for its file_sd_configs

logger = logging.getLogger(__name__)


class RayMeters:
    """Ray's meters for the catalog, each created at its first sample.

    Ray's counters take increments: what a sample has beyond the last one of its series. One that has less counts from
    0 again, as a new epoch of the syncer does: all of it is new.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._meters: dict[str, Any] = {}
        self._told: dict[tuple[str, ...], float] = {}

    def apply(self, samples: Iterable[Sample]) -> None:
        for sample in samples:
            metric = CATALOG[sample.name]
            labels = {"run": self._run, **admitted(sample)}
            meter = self._meters.get(metric.name) or self._meters.setdefault(metric.name, _meter(metric))
            if metric.kind == "gauge":
                meter.set(sample.value, labels)  # each time: Ray drops a gauge that is not set for a while
                continue
            key = (metric.name, *sample.labels.values())
            before = self._told.get(key, 0.0)
            self._told[key] = sample.value
            if more := sample.value - (before if before <= sample.value else 0.0):
                meter.inc(more, labels)


def _meter(metric: Metric) -> Any:
    return {"counter": Counter, "gauge": Gauge}[metric.kind](metric.name, metric.help, tag_keys=metric.label_names)


class MetricsActor:
    """Exports the metrics of one run until a little after its end, or after its orchestrator's death."""

    def __init__(self, run: str, run_dir: str, namespace: str) -> None:
        self._run, self._namespace, self._store = run, namespace, RunStore(run_dir)
        self._errors, self._over, self._since = 0, False, time.time()
        self._meters = RayMeters(run)
        thread("metrics", self._export, end_process)

    def _export(self) -> None:
        targets_at, gone_at = float("-inf"), None
        while gone_at is None or time.monotonic() - gone_at < LINGER_S:
            now = time.monotonic()
            self._look()
            if gone_at is None and self._over:
                gone_at = now
            if gone_at is None and now - targets_at >= TARGETS_S:
                targets_at = now
                with contextlib.suppress(OSError):  # not after the end: the folder may have been removed
                    self._store.write_json(TARGETS_FILE, targets(ray.nodes()))
                try:
                    ray.get_actor("orchestrator", self._namespace)
                except ValueError:
                    gone_at = now  # nobody will write the run's end
            time.sleep(LOOK_S)
        ray.kill(ray.get_runtime_context().current_actor)  # not to be restarted

    def _look(self) -> None:
        """Export what the status says. A failure is logged and counted; the next look goes on."""
        try:
            status = status_if_any(self._store) or {}
            ended = (status.get("run") or {}).get("state") in ENDED
            if not ended or status["written_at"] > self._since:  # else of before the run was resumed
                self._meters.apply(samples(status))
                self._over = ended
            usage = shutil.disk_usage(self._store.root)
            self._meters.apply([Sample("diloco_store_free_ratio", usage.free / usage.total)])
        except Exception:
            logger.exception("metrics of %s", self._run)
            self._errors += 1
            self._meters.apply([Sample("diloco_exporter_errors_total", self._errors)])


def targets(nodes: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The exporters of all living nodes, in the format of Prometheus's file_sd_configs."""
    living = [f"{node['NodeManagerAddress']}:{node['MetricsExportPort']}" for node in nodes if node["Alive"]]
    return [{"targets": sorted(living), "labels": {"job": "ray"}}] if living else []


def start(recipe: Recipe, store: RunStore, namespace: str, anywhere: bool) -> Any:
    """Begin to export a run, on the nodes of `run.control`, where its folder is; `anywhere`: on any node.

    Returns at once.
    """
    name = f"metrics-{secrets.token_hex(4)}"  # that of an earlier run may still be there
    options = named(name, namespace, CPUS) | {"max_restarts": RESTARTS_MAX} | control(recipe.run.control, anywhere)
    return ray.remote(MetricsActor).options(**options).remote(recipe.name, str(store.root), namespace)
