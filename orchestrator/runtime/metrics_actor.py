"""A run's metrics through Ray: one small actor reads what the orchestrator publishes and updates Ray's own meters.

Ray's agent on each node exports them for Prometheus. Nothing in the run depends on the actor. All its state comes
from the run's folder, so Ray may restart it: it then counts to the same totals at once.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Any

import ray
from ray.util.metrics import Counter, Gauge, Histogram

from orchestrator.recipe.config import Recipe
from orchestrator.runtime.placement import control
from orchestrator.store.run_store import RunStore
from orchestrator.telemetry.catalog import CATALOG, Buckets, LabelLimits, Metric, Sample
from orchestrator.telemetry.run_samples import RunSamples
from outer.background import end_process, thread

CPUS = 0.05
LOOK_S = 1.0  # between two looks at the run's folder
OBSERVED_MOST = 10_000  # of one bucket at one look
TARGETS_S = 10.0  # between two looks at the cluster's nodes
LINGER_S = 40.0  # after the run, for the last samples to be exported (10 s) and scraped (15 s)
RESTARTS_MAX = 10
TARGETS_FILE = "targets.json"  # in the run's folder: where Prometheus finds the nodes, for its file_sd_configs

logger = logging.getLogger(__name__)


class RayMeters:
    """Ray's meters for the catalog, each created at its first sample.

    Ray's counters and histograms take increments: what a sample has beyond the last one of its series.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._bounds = LabelLimits()
        self._meters: dict[str, Any] = {}
        self._told: dict[tuple[str, ...], float] = {}
        self._observed: dict[tuple[str, ...], list[int]] = {}

    def apply(self, samples: Iterable[Sample]) -> None:
        for sample in samples:
            metric = CATALOG[sample.name]
            labels = {"run": self._run, **self._bounds.admit(sample)}
            meter = self._meters.get(metric.name) or self._meters.setdefault(metric.name, _meter(metric))
            key = (metric.name, *labels.values())
            if isinstance(sample.value, Buckets):
                self._observe(meter, metric, key, sample.value.counts, labels)
            elif metric.kind == "gauge":
                meter.set(sample.value, labels)  # each time: Ray drops a gauge that is not set for a while
            elif (more := sample.value - self._told.get(key, 0)) > 0:  # less: the orchestrator has not caught up yet
                self._told[key] = sample.value
                meter.inc(more, labels)

    def _observe(
        self, meter: Any, metric: Metric, key: tuple[str, ...], counts: list[int], labels: dict[str, str]
    ) -> None:
        """Ray takes one observation at a time: of very many, as after a restart, the rest is left out."""
        before = self._observed.setdefault(key, [0] * len(counts))
        for place, count in enumerate(counts):
            inside = metric.buckets[place] if place < len(metric.buckets) else 2 * metric.buckets[-1]
            for _ in range(min(count - before[place], OBSERVED_MOST)):
                meter.observe(inside, labels)
            before[place] = max(count, before[place])


def _meter(metric: Metric) -> Any:
    if metric.kind == "histogram":
        return Histogram(metric.name, metric.help, boundaries=list(metric.buckets), tag_keys=metric.label_names)
    return {"counter": Counter, "gauge": Gauge}[metric.kind](metric.name, metric.help, tag_keys=metric.label_names)


class MetricsActor:
    """Exports the metrics of one run until a little after its end, or after its orchestrator's death."""

    def __init__(self, run: str, run_dir: str, namespace: str) -> None:
        self._run, self._namespace = run, namespace
        self._store = RunStore(run_dir)
        self._reader = RunSamples(self._store)
        self._errors = 0
        self._meters = RayMeters(run)
        thread("metrics", self._export, end_process)

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
                    gone_at = now  # nobody will publish the run's end
            time.sleep(LOOK_S)
        ray.kill(ray.get_runtime_context().current_actor)  # not to be restarted

    def _look(self) -> None:
        """Read what there is. A failure is logged and counted; the next look goes on."""
        try:
            self._meters.apply(self._reader.look())
        except Exception:
            logger.exception("metrics of %s", self._run)
            self._errors += 1
            self._meters.apply([Sample("diloco_exporter_errors_total", self._errors)])

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
    return exporter.remote(recipe.name, str(store.root), namespace)
