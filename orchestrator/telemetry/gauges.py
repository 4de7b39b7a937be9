"""Gauges from a status model (orchestrator/store/status_model.py). Unknown values are not exported, never 0."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.telemetry.catalog import OTHER, PHASES, RUN_STATES, Sample

NOWHERE = "none"  # the region of a pool that names none

RUN = {
    "progress": "diloco_run_progress_ratio",
    "goodput": "diloco_run_goodput_ratio",
    "eta_s": "diloco_run_eta_seconds",
    "started_at": "diloco_run_start_timestamp_seconds",
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
