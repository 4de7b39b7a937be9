"""Renders samples in the Prometheus text format without Ray, for finished runs and for tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from orchestrator.store.run_store import RunStore
from orchestrator.telemetry.catalog import CATALOG, Bounds, Metric, Sample
from orchestrator.telemetry.run_samples import RunSamples

disable_created_metrics()  # type: ignore[no-untyped-call]  # useless for a run that is read from its log


class Exposition:
    """Every metric of the catalog for one run, under the catalog's own names."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._bounds = Bounds()
        self.registry = CollectorRegistry()
        self._families = {metric.name: self._family(metric) for metric in CATALOG.values()}

    def _family(self, metric: Metric) -> Counter | Gauge | Histogram:
        if metric.kind == "histogram":
            return Histogram(
                metric.name, metric.help, metric.label_names, registry=self.registry, buckets=metric.buckets
            )
        kind = Counter if metric.kind == "counter" else Gauge
        return kind(metric.name, metric.help, metric.label_names, registry=self.registry)

    def apply(self, samples: Iterable[Sample]) -> None:
        for sample in samples:
            series = self._families[sample.name].labels(run=self._run, **self._bounds.admit(sample))
            if isinstance(series, Counter):
                series.inc(sample.value)
            elif isinstance(series, Gauge):
                series.set(sample.value)
            else:
                series.observe(sample.value)

    def text(self) -> str:
        """In the Prometheus text format."""
        return generate_latest(self.registry).decode()

    def samples(self) -> list[dict[str, Any]]:
        """The same as plain values: name, labels, value."""
        return [
            {"name": sample.name, "labels": sample.labels, "value": sample.value}
            for family in self.registry.collect()
            for sample in family.samples
        ]


def exposition_of(store: RunStore, run: str, codec: str) -> Exposition:
    """All metrics of a run's folder, read to the end of its log."""
    exposition, reader = Exposition(run), RunSamples(store, codec)
    moved = True
    while moved:
        exposition.apply(reader.look())
        moved = reader.moved and not reader.over
    return exposition
