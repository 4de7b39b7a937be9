"""Renders samples in the Prometheus text format without Ray, for finished runs and for tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from orchestrator.eventlog.reader import LogReader
from orchestrator.store.readers import status_if_any
from orchestrator.store.run_store import RunStore
from orchestrator.telemetry.catalog import CATALOG, Bounds, Buckets, Sample
from orchestrator.telemetry.fold import metrics_of
from orchestrator.telemetry.published import FILE, all_samples, package_version
from orchestrator.telemetry.run_samples import RunSamples, now

_FAMILIES: dict[str, Any] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


class Exposition(Collector):
    """Every metric of the catalog for one run, under the catalog's own names."""

    def __init__(self, run: str, samples: Iterable[Sample]) -> None:
        self._run = run
        self._bounds = Bounds()
        self._values: dict[str, dict[tuple[str, ...], float | Buckets]] = {name: {} for name in CATALOG}
        for sample in samples:
            self._values[sample.name][tuple(self._bounds.admit(sample).values())] = sample.value
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def collect(self) -> Iterator[Metric]:
        for name, series in self._values.items():
            metric = CATALOG[name]
            family = _FAMILIES[metric.kind](name, metric.help, labels=metric.label_names)
            for labels, value in series.items():
                if isinstance(value, Buckets):
                    limits = [*map(str, metric.buckets), "+Inf"]
                    buckets = [*zip(limits, accumulate(value.counts), strict=True)]
                    family.add_metric([self._run, *labels], buckets, value.sum)
                else:
                    family.add_metric([self._run, *labels], value)
            yield family

    def text(self) -> str:
        """In the Prometheus text format."""
        return generate_latest(self._registry).decode()

    def samples(self) -> list[dict[str, Any]]:
        """The same as plain values: name, labels, value."""
        return [
            {"name": sample.name, "labels": sample.labels, "value": sample.value}
            for family in self.collect()
            for sample in family.samples
        ]


def exposition_of(store: RunStore, run: str, codec: str) -> Exposition:
    """All metrics of a run's folder. Where the run did not publish any they are made from its log."""
    if store.path(FILE).exists():
        return Exposition(run, RunSamples(store).look())
    log = LogReader(store.root)
    fold = metrics_of(log.rest(), codec, package_version())
    return Exposition(run, [*all_samples(fold, log), *now(store, status_if_any(store), fold.over)])
