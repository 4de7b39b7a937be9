"""Metrics from the status: where each one's value is, bounded labels, and what Ray's meters make of resets."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.runtime import metrics_actor
from orchestrator.store.run_store import RunStore
from orchestrator.store.status_model import LearnerPlace, model
from orchestrator.telemetry.catalog import CATALOG, OTHER, Sample, admitted, samples
from tests.orchestrator.store.test_status import NAMES, RECIPE, SYNCER, about, row, view

Series = tuple[str, tuple[tuple[str, str], ...]]


def key(name: str, **labels: str) -> Series:
    return name, tuple(sorted(labels.items()))


def values(status: dict[str, Any]) -> dict[Series, float]:
    """Each series' value, as the status is after it was written."""
    found = [*samples(json.loads(json.dumps(status, allow_nan=False)))]
    told = {key(each.name, **each.labels): each.value for each in found}
    assert len(told) == len(found), "every series once"
    return told


def counts(**change: Any) -> dict[str, Any]:
    """A learner's."""
    return {
        "tokens_processed": 500,
        "tokens_committed": 400,
        "tokens_discarded": {"killed": 60, "left_out": 4},
        "contributions": 7,
        "contribution_bytes": 7000,
        "lease_expiries": 1,
        "fences": {"killed": 1},
        "refusals": {"late": 2},
        "reads_failed": {"timeout": 3},
    } | change


def status(state: str = "running") -> dict[str, Any]:
    rows = [row(NAMES[0]), row(NAMES[1], alive=False), row(NAMES[2], phase="dancing")]
    counted = {
        "commits": 9,
        "steps_reopened": 1,
        "live": 25,
        "quorum_s": 3.5,
        "grace_s": 0.5,
        "sync_s": 1.5,
        "norms": {"0": 0.25, "1": 0.75},
        "learners": {NAMES[0]: counts(), NAMES[1]: counts(refusals={"phase of the moon": 1})},
    }
    known = view(*rows, counts=counted, sent_bytes={NAMES[0]: 900}, moved_at=128.0, step_s=2.0)
    known["journal"] = {"waiting_s": 0.0, "trouble": "", "bytes": 12_345}
    run = replace(about(state), evaluations={"finite": 2, "non_finite": 1}, faults={"kill": 1})
    place = LearnerPlace(11, "n", None, restarts={"died": 2}, recoveries=1, recovery_s=4.5)
    return model(RECIPE, run, known, SYNCER | {"epoch": 3}, {NAMES[0]: place})


def test_every_metric_has_its_value_at_its_place_in_the_status() -> None:
    told = values(status())
    of_the_exporter = {name for name, metric in CATALOG.items() if not metric.path}
    assert of_the_exporter == {"diloco_store_free_ratio", "diloco_exporter_errors_total"}
    assert {name for name, _ in told} | of_the_exporter == set(CATALOG)
    learner = {"learner": NAMES[0]}
    for name, labels, value in (
        ("diloco_tokens_processed_total", learner, 500),
        ("diloco_tokens_discarded_total", learner | {"reason": "left_out"}, 4),
        ("diloco_refusals_total", learner | {"reason": "late"}, 2),
        ("diloco_restarts_total", learner | {"cause": "died"}, 2),
        ("diloco_last_recovery_seconds", learner, 4.5),
        ("diloco_version_bytes_total", learner, 900),
        ("diloco_learners", {"pool": "east"}, 2),
        ("diloco_evaluations_total", {"outcome": "non_finite"}, 1),
        ("diloco_commits_total", {}, 9),
        ("diloco_merged_norm", {"fragment": "1"}, 0.75),
        ("diloco_last_commit_timestamp_seconds", {}, 128.0),
        ("diloco_journal_bytes_total", {}, 12_345),
        ("diloco_faults_injected_total", {"kind": "kill"}, 1),
        ("diloco_syncer_epoch", {}, 3),
        ("diloco_run_state", {"state": "running"}, 1),
        ("diloco_run_state", {"state": "failed"}, 0),
    ):
        assert told[key(name, **labels)] == value, name


def test_a_learner_is_in_one_phase_and_what_the_status_does_not_know_is_missing() -> None:
    told = values(status())
    for name, phase in zip(NAMES, ("stepping", "silent", OTHER), strict=True):
        phases = {dict(labels)["phase"]: value for (_, labels), value in told.items() if ("learner", name) in labels
                  and "phase" in dict(labels)}  # fmt: skip
        assert {each for each, value in phases.items() if value} == {phase}
    unknown = {name for name, _ in values(model(RECIPE, replace(about(), eval_loss=math.nan), {}, {}, {}))}
    assert not unknown & {"diloco_eval_loss", "diloco_grace_seconds", "diloco_syncer_epoch", "diloco_commits_total"}
    assert list(samples({})) == []


def test_a_label_value_outside_its_set_is_called_other() -> None:
    strange = Sample("diloco_refusals_total", 1, {"learner": "\ud800", "reason": "phase of the moon"})
    assert admitted(strange) == {"learner": "?", "reason": OTHER}


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


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[str, Meter]:
    """Ray's meters, by name."""
    meters: dict[str, Meter] = {}
    monkeypatch.setattr(metrics_actor, "_meter", lambda metric: meters.setdefault(metric.name, Meter()))
    return meters


def test_rays_counters_get_what_is_new_also_from_a_syncer_that_counts_from_0_again(made: dict[str, Meter]) -> None:
    meters = metrics_actor.RayMeters("demo")
    name, learner = "diloco_contributions_total", {"learner": "a"}
    for value, total in ((3, 3), (3, 3), (7, 7), (0, 7), (2, 9), (9, 16)):
        meters.apply([Sample(name, value, learner), Sample("diloco_quorum", 2)])
        assert made[name].values["demo", "a"] == total
    assert made["diloco_quorum"].sets == 6, "Ray drops a gauge that nobody sets"
    for reason in ("worded", "anew"):  # two reasons that are one series
        meters.apply([Sample("diloco_refusals_total", 5, {"learner": "a", "reason": reason})])
    assert made["diloco_refusals_total"].values["demo", "a", OTHER] == 10


def test_an_exporter_stops_with_the_run_and_not_for_the_end_before_it_was_resumed(
    tmp_path: Path, made: dict[str, Meter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_actor, "thread", lambda *_: None)
    exporter = metrics_actor.MetricsActor("demo", str(tmp_path), "namespace")

    def look(state: str, written_at: float) -> bool:
        exporter._store.write_json("status.json", status(state) | {"written_at": written_at})
        exporter._look()
        return exporter._over

    monkeypatch.setattr(exporter, "_since", 100.0)
    assert not look("stopped", 99.0) and made.keys() == {"diloco_store_free_ratio"}
    assert not look("running", 101.0) and made["diloco_commits_total"].values["demo",] == 9
    assert look("finished", 102.0)
    monkeypatch.setattr(exporter, "_store", RunStore(tmp_path / "gone"))
    exporter._look()
    assert made["diloco_exporter_errors_total"].values["demo",] == 1
