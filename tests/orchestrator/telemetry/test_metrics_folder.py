"""Metrics from a run's folder: what the orchestrator publishes, a status that changes, and the text for Prometheus."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from orchestrator.eventlog.reader import LogReader
from orchestrator.runtime import metrics_actor
from orchestrator.store.run_store import RunStore
from orchestrator.telemetry.catalog import CATALOG, Buckets, Sample
from orchestrator.telemetry.run_samples import FILE, RunSamples, all_samples, publish
from outer.protocol.facts import Refused, StepOpened
from tests.orchestrator.eventlog.logs import write_log
from tests.orchestrator.histories import history, inserted, is_a, settle
from tests.orchestrator.telemetry.test_metrics import folded, key, status, summed, totals


def ended(store: RunStore) -> None:
    store.write_json("status.json", status("finished"))


def test_what_is_published_is_read_again_as_it_was(tmp_path: Path) -> None:
    store, fold, log = RunStore(tmp_path), folded(history()), LogReader(tmp_path)
    write_log(tmp_path, history())
    assert list(log.rest())
    log.findings.unreadable += ["one", "two"]
    publish(store, fold, log)
    reader = RunSamples(store)
    told = totals(reader.look())
    for series, value in totals(all_samples(fold, log)).items():
        assert told[series] == value
    assert told[key("diloco_log_bytes_total")] == log.bytes_read > 0
    assert told[key("diloco_log_damaged_lines_total")] == 2
    assert reader.over
    assert not any(path.name.startswith(".") for path in tmp_path.iterdir())


def test_a_damaged_file_is_a_clear_error_and_a_label_that_is_no_text_is_shown(tmp_path: Path) -> None:
    store, damaged = RunStore(tmp_path), '{"over": true, "series": {"diloco_quorum": [3]}}'
    for text in ("", "[]", "null", '{"over": true}', damaged):
        (tmp_path / FILE).write_text(text)
        with pytest.raises(ValueError):
            list(RunSamples(store).look())
    refused = Refused("\ud800", 1, "contribution", "late", 6, 1)
    publish(store, folded(inserted(history(), is_a(StepOpened, syncer_step=6), refused)), LogReader(tmp_path))
    assert totals(RunSamples(store).look())[key("diloco_refusals_total", learner="?", reason="late")] == 1


def test_who_sees_the_runs_end_has_its_final_counts(tmp_path: Path) -> None:
    store, events = RunStore(tmp_path), history()
    ended(store)
    publish(store, folded(events[:-1]), LogReader(tmp_path))
    reader = RunSamples(store)
    assert key("diloco_run_state", state="finished") not in totals(reader.look()), "its log has no end yet"
    assert not reader.over
    publish(store, folded(events), LogReader(tmp_path))
    told = [*reader.look()]
    assert reader.over
    assert totals(told)[key("diloco_run_state", state="finished")] == 1
    assert sum(summed(totals(told), "diloco_tokens_committed_total", "learner").values()) == settle(events).committed
    state = next(place for place, each in enumerate(told) if each.labels.get("state") == "finished")
    assert not [each for each in told[state:] if CATALOG[each.name].kind == "counter"]


class Meter:
    """In place of one of Ray's."""

    def __init__(self) -> None:
        self.values: Counter[tuple[str, ...]] = Counter()
        self.sets = 0

    def inc(self, value: float, labels: dict[str, str]) -> None:
        assert value > 0, "Ray refuses anything else"
        self.values[tuple(labels.values())] += value  # type: ignore[assignment]

    def set(self, value: float, labels: dict[str, str]) -> None:
        self.sets += 1

    def observe(self, value: float, labels: dict[str, str]) -> None:
        self.values[tuple(labels.values())] += 1


def test_rays_meters_get_what_is_new_and_never_less(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, Meter] = {}
    monkeypatch.setattr(metrics_actor, "_meter", lambda metric: made.setdefault(metric.name, Meter()))
    meters, events = metrics_actor.RayMeters("demo"), history()
    for end in (300, 500, 400, len(events), len(events)):  # an orchestrator that begins anew has less for a while
        meters.apply(folded(events[:end]).samples())
    books = settle(events)
    for learner, ledger in books.by_learner.items():
        assert made["diloco_tokens_processed_total"].values["demo", learner] == ledger.processed
        assert made["diloco_tokens_committed_total"].values["demo", learner] == ledger.committed
    observed = made["diloco_step_duration_seconds"].values
    assert sum(observed.values()) == totals(folded(events).samples())[key("diloco_facts_total", kind="StepFinished")]
    assert made["diloco_last_commit_timestamp_seconds"].sets == 5, "Ray drops a gauge that nobody sets"
    monkeypatch.setattr(metrics_actor, "OBSERVED_MOST", 10)
    name, meters = "diloco_recovery_duration_seconds", metrics_actor.RayMeters("many")
    counts = [0] * (len(CATALOG[name].buckets) + 1)
    for count, told in ((1000, 10), (1000, 10), (1003, 13)):  # of very many observations it gets some
        meters.apply([Sample(name, Buckets([count, *counts[1:]], 5.0))])
        assert made[name].values["many",] == told
