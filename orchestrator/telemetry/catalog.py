"""Every metric as data: name, kind, help, labels, and where in `status.json` its value is.

The exporter, the dashboard and the alert rules are held against this one table. Labels are bounded: learners, pools and
fragments are the run's, reasons and kinds come from closed sets, and any other value becomes `other`; incarnations,
processes, nodes and digests are no labels. Every series also has the label `run`. Ray puts `ray_` before each name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

OTHER = "other"
PREFIX = "ray_"  # what Ray puts before the names
ENDED = ("finished", "stopped", "failed")


@dataclass(frozen=True)
class Label:
    """A label and its allowed values; none: the names of the run's learners, pools or fragments."""

    name: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class Metric:
    """One family of series. The label `run` is implied.

    `path`: keys of the status, with dots between. Each row of a list is a learner's; below the last key, a dict has
    the values by the last label, and a text is 1 for that value of the label and 0 for the others.
    """

    kind: Literal["counter", "gauge"]
    name: str
    path: str
    help: str
    labels: tuple[Label, ...] = ()

    @property
    def label_names(self) -> tuple[str, ...]:
        return ("run", *(label.name for label in self.labels))


LEARNER = Label("learner")
POOL = Label("pool")
FRAGMENT = Label("fragment")
STATE = Label("state", ("starting", "running", "ending", *ENDED))
PHASES = ("starting", "importing", "compiling", "joining", "stepping", "draining", "silent", "down", "stopped")
PHASE = Label("phase", (*PHASES, OTHER))
OUTCOME = Label("outcome", ("finite", "non_finite", "skipped"))
FENCES = ("killed", "failed", "lease_expired", "superseded", "stopped", "drained")
FENCED = Label("reason", FENCES)
DISCARDED = Label("reason", (*FENCES, "left_out"))
CAUSE = Label("cause", ("died", "lease_expired", "failed", "drained"))
# fmt: off
REFUSED = Label("reason", (
    "stale_epoch", "stale_incarnation", "stale_base", "doubled", "late", "bad_digest", "non_finite", "wrong_shape",
    "wrong_sender", "wrong_fragment", "wrong_counters", "wrong_config", "malformed",
))
MISSED = Label("reason", (
    "timeout", "no_boundary", "lease_expired", "fenced", "superseded", "stopped", "refused", "behind", "slow_link",
    "malformed",
))
FAULT = Label("kind", (
    "kill", "freeze", "slow", "straggle", "link", "corrupt", "non_finite", "wrong_config", "drain", "region", "syncer",
))

_ALL = (
    # ---------------------------------------------------------------- the run
    Metric("gauge", "diloco_run_state", "run.state", "1 for the state the run is in, 0 for the others.", (STATE,)),
    Metric("gauge", "diloco_run_progress_ratio", "run.progress", "Committed share of the budget, 0 to 1."),
    Metric("gauge", "diloco_run_eta_seconds", "run.eta_s", "Estimated time to the end of the budget."),
    Metric("gauge", "diloco_status_timestamp_seconds", "written_at",
           "When the orchestrator last wrote status.json, in Unix time."),
    Metric("gauge", "diloco_eval_loss", "run.eval_loss",
           "Newest held-out loss of the syncer's parameters, in the task's unit; absent if not finite."),
    Metric("counter", "diloco_evaluations_total", "run.evaluations",
           "Held-out evaluations, by whether the loss was a number; and those skipped.", (OUTCOME,)),
    # ---------------------------------------------------------------- tokens
    Metric("counter", "diloco_tokens_processed_total", "learners.counts.tokens_processed",
           "Tokens of finished steps, as learners reported them.", (LEARNER,)),
    Metric("counter", "diloco_tokens_committed_total", "learners.counts.tokens_committed",
           "Tokens in a contribution that merged, each once.", (LEARNER,)),
    Metric("counter", "diloco_tokens_discarded_total", "learners.counts.tokens_discarded",
           "Tokens of fenced incarnations that no commit contains: by why it was fenced, and left_out between two "
           "contributions.", (LEARNER, DISCARDED)),
    # ---------------------------------------------------------------- learners
    Metric("gauge", "diloco_learners", "run.pools", "Learners that the run wants.", (POOL,)),
    Metric("gauge", "diloco_learner_phase", "learners.state",
           "1 for the phase the learner is in, 0 for the others; silent: no lease, down: no incarnation.",
           (LEARNER, PHASE)),
    Metric("gauge", "diloco_learner_tokens_per_second", "learners.tokens_per_s",
           "Tokens per second within inner steps, without waiting: a moving average.", (LEARNER,)),
    Metric("gauge", "diloco_learner_loss", "learners.loss",
           "Training loss of the learner's last step, in the task's unit.", (LEARNER,)),
    Metric("gauge", "diloco_learner_lease_age_seconds", "learners.lease_age_s",
           "Time since the learner's last report.", (LEARNER,)),
    Metric("gauge", "diloco_learner_version_lag", "learners.version_lag",
           "Fragments of which the learner holds an old version.", (LEARNER,)),
    Metric("counter", "diloco_lease_expiries_total", "learners.counts.lease_expiries", "Leases that ran out.",
           (LEARNER,)),
    Metric("counter", "diloco_learners_fenced_total", "learners.counts.fences", "Incarnations that were fenced.",
           (LEARNER, FENCED)),
    Metric("counter", "diloco_restarts_total", "learners.restarts",
           "Incarnations started after another, by what ended that one.", (LEARNER, CAUSE)),
    Metric("counter", "diloco_recoveries_total", "learners.recoveries",
           "Losses from which the learner has come back.", (LEARNER,)),
    Metric("gauge", "diloco_last_recovery_seconds", "learners.recovery_s",
           "The newest recovery: from the loss to the first commit with a contribution of a later incarnation.",
           (LEARNER,)),
    # ---------------------------------------------------------------- the syncer
    Metric("gauge", "diloco_syncer_step", "syncer.syncer_step", "Newest syncer step committed or passed."),
    Metric("gauge", "diloco_syncer_target_steps", "run.target_syncer_steps",
           "Syncer steps of the whole budget, estimated for a budget of tokens."),
    Metric("gauge", "diloco_syncer_epoch", "syncer.epoch", "The syncer's epoch."),
    Metric("gauge", "diloco_quorum", "syncer.quorum", "K, the number of learners that a commit needs."),
    Metric("gauge", "diloco_grace_seconds", "syncer.grace_s",
           "The grace that a quorum reached now would get; absent when without end."),
    Metric("gauge", "diloco_last_commit_timestamp_seconds", "syncer.moved_at",
           "When a syncer step was last committed or passed, in Unix time."),
    Metric("gauge", "diloco_step_seconds", "syncer.step_s", "The median learner's inner step, which paces the syncer."),
    Metric("counter", "diloco_commits_total", "syncer.counts.commits", "Outer steps of single fragments."),
    Metric("counter", "diloco_steps_reopened_total", "syncer.counts.steps_reopened",
           "Syncer steps that found too few contributions and began anew."),
    Metric("counter", "diloco_contributions_total", "learners.counts.contributions",
           "Contributions that merged with a weight above 0.", (LEARNER,)),
    Metric("counter", "diloco_live_at_commits_total", "syncer.counts.live",
           "Sum over commits of the learners live at that commit."),
    Metric("gauge", "diloco_merged_norm", "syncer.counts.norms",
           "L2 norm of the newest merged outer gradient.", (FRAGMENT,)),
    Metric("counter", "diloco_quorum_wait_seconds_total", "syncer.counts.quorum_s",
           "Sum over commits: opening to the K-th report."),
    Metric("counter", "diloco_grace_wait_seconds_total", "syncer.counts.grace_s",
           "Sum over commits: what was waited after the quorum."),
    Metric("counter", "diloco_sync_seconds_total", "syncer.counts.sync_s", "Sum over commits: decision to durable."),
    # ---------------------------------------------------------------- traffic
    Metric("counter", "diloco_contribution_bytes_total", "learners.counts.contribution_bytes",
           "Payloads of merged contributions, upwards.", (LEARNER,)),
    Metric("counter", "diloco_version_bytes_total", "learners.counts.version_bytes",
           "Versions that the syncer sent, downwards; a learner's region gets them from it.", (LEARNER,)),
    # ---------------------------------------------------------------- refusals and faults
    Metric("counter", "diloco_refusals_total", "learners.counts.refusals",
           "Messages of learners that changed nothing, by why.", (LEARNER, REFUSED)),
    Metric("counter", "diloco_reads_failed_total", "learners.counts.reads_failed",
           "Reads of a fragment without an answer in time, by why.", (LEARNER, MISSED)),
    Metric("counter", "diloco_faults_injected_total", "orchestrator.faults", "Faults injected.", (FAULT,)),
    # ---------------------------------------------------------------- the store, and the exporter itself
    Metric("counter", "diloco_journal_bytes_total", "durability.journal.bytes", "Bytes written to the journal."),
    Metric("gauge", "diloco_store_free_ratio", "", "Free share of the file system where the run's folder is."),
    Metric("counter", "diloco_exporter_errors_total", "",
           "Rounds of the exporter that failed; the next one goes on."),
)
# fmt: on
CATALOG: Mapping[str, Metric] = {metric.name: metric for metric in _ALL}
assert len(CATALOG) == len(_ALL), "two metrics of one name"


@dataclass(frozen=True)
class Sample:
    """The value of one series."""

    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


def samples(status: Mapping[str, Any]) -> Iterator[Sample]:
    """Every series that this status has. Parts may be missing, as before the syncer answers."""
    for metric in _ALL:
        if metric.path:
            yield from _find(metric, status, metric.path.split("."), {})


def _find(metric: Metric, value: Any, path: Sequence[str], labels: dict[str, str]) -> Iterator[Sample]:
    open_labels = [label for label in metric.labels if label.name not in labels]
    if path and isinstance(value, list):
        for row in value:
            yield from _find(metric, row, path, labels | {"learner": row["name"]})
    elif path and isinstance(value, Mapping):
        yield from _find(metric, value.get(path[0]), path[1:], labels)
    elif open_labels and isinstance(value, Mapping):
        for key, each in value.items():
            yield from _find(metric, each, (), labels | {open_labels[0].name: key})
    elif open_labels and isinstance(value, str):
        [label] = open_labels
        known = value if value in label.values else OTHER
        for each in label.values:
            yield Sample(metric.name, float(each == known), labels | {label.name: each})
    elif not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value):
        yield Sample(metric.name, value, labels)


def admitted(sample: Sample) -> dict[str, str]:
    """The sample's labels, with `other` for a value that is not of the label's set.

    Half a surrogate pair, which JSON can spell and UTF-8 cannot, becomes a question mark.
    """
    found = {}
    for label in CATALOG[sample.name].labels:
        value = sample.labels[label.name].encode(errors="replace").decode()
        found[label.name] = value if value in label.values or not label.values else OTHER
    return found
