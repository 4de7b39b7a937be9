"""A run's metrics through Ray: one small actor reads the run's folder and updates Ray's own meters.

Ray's agent on each node exports them for Prometheus. Nothing in the run depends on the actor. All its state comes
from the folder, so Ray may restart it: it then reads the log from the beginning, to the same totals. It skips damaged
lines of the log, and counts them.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

import ray
from ray.util.metrics import Counter, Gauge, Histogram

from orchestrator.recipe.config import Recipe
from orchestrator.runtime.placement import control
from orchestrator.store.run_store import RunStore
from orchestrator.telemetry.catalog import CATALOG, Bounds, Metric, Sample
from orchestrator.telemetry.run_samples import RunSamples

CPUS = 0.05
LOOK_S = 1.0  # between two looks at the run's folder
TARGETS_S = 10.0  # between two looks at the cluster's nodes
LINGER_S = 40.0  # after the run, for the last samples to be exported (10 s) and scraped (15 s)
RESTARTS_MAX = 10
TARGETS_FILE = "targets.json"  # in the run's folder: where Prometheus finds the nodes, for its file_sd_configs

logger = logging.getLogger(__name__)


class RayMeters:
    """Ray's meters for the catalog, each created at its first sample."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._bounds = Bounds()
        self._meters: dict[str, Any] = {}

    def apply(self, samples: Iterable[Sample]) -> None:
        for sample in samples:
            metric = CATALOG[sample.name]
            labels = {"run": self._run, **self._bounds.admit(sample)}
            meter = self._meters.get(metric.name) or self._meters.setdefault(metric.name, _meter(metric))
            if metric.kind == "gauge":
                meter.set(sample.value, labels)
            elif metric.kind == "histogram":
                meter.observe(sample.value, labels)
            elif sample.value:  # Ray refuses to add nothing
                meter.inc(sample.value, labels)


def _meter(metric: Metric) -> Any:
    if metric.kind == "histogram":
        return Histogram(metric.name, metric.help, boundaries=list(metric.buckets), tag_keys=metric.label_names)
    return {"counter": Counter, "gauge": Gauge}[metric.kind](metric.name, metric.help, tag_keys=metric.label_names)


class MetricsActor:
    """Exports the metrics of one run until a little after its end, or after its orchestrator's death."""

    def __init__(self, run: str, run_dir: str, codec: str, namespace: str) -> None:
        self._run, self._namespace = run, namespace
        self._store = RunStore(run_dir)
        self._reader = RunSamples(self._store, codec)
        self._meters = RayMeters(run)
        threading.Thread(target=self._export, daemon=True).start()

    def _export(self) -> None:
        targets_at, gone_at = float("-inf"), None
        while gone_at is None or time.monotonic() - gone_at < LINGER_S:
            now = time.monotonic()
            self._look()
            if gone_at is None and self._reader.over:
                gone_at = now
            if gone_at is None and now - targets_at >= TARGETS_S:
                targets_at = now
                self._write_targets()  # not after the end: the folder may have been removed
                if not self._orchestrated():
                    gone_at = now  # the run's end will never be in the log
            time.sleep(LOOK_S)
        ray.kill(ray.get_runtime_context().current_actor)  # not to be restarted

    def _look(self) -> None:
        """Read what is new. A failure is logged and counted; the next look goes on from there."""
        try:
            self._meters.apply(self._reader.look())
        except Exception:
            logger.exception("metrics of %s", self._run)
            self._meters.apply([Sample("diloco_exporter_errors_total", 1)])

    def _orchestrated(self) -> bool:
        try:
            ray.get_actor("orchestrator", self._namespace)
        except ValueError:
            return False
        return True

    def _write_targets(self) -> None:
        try:
            self._store.write_json(TARGETS_FILE, targets(self._run, ray.nodes()))
        except OSError:
            logger.exception("where Prometheus finds %s", self._run)


def targets(run: str, nodes: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The exporters of all living nodes, in the format of Prometheus's file_sd_configs."""
    living = [f"{node['NodeManagerAddress']}:{node['MetricsExportPort']}" for node in nodes if node["Alive"]]
    return [{"targets": sorted(living), "labels": {"job": "ray"}}] if living else []


def start(recipe: Recipe, store: RunStore, namespace: str, anywhere: bool) -> Any:
    """Begin to export a run, on the nodes of `run.control`, where its folder is; `anywhere`: on any node.

    Returns at once.
    """
    options: dict[str, Any] = {
        "name": f"metrics-{secrets.token_hex(4)}",  # that of an earlier run may still be there
        "namespace": namespace,
        "lifetime": "detached",
        "num_cpus": CPUS,
        "max_restarts": RESTARTS_MAX,
    } | control(recipe.run.control, anywhere)
    exporter = ray.remote(MetricsActor).options(**options)
    return exporter.remote(recipe.name, str(store.root), recipe.sync.codec, namespace)
