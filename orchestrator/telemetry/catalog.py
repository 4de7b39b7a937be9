"""Every metric as data: name, kind, unit, help, labels and the values that these may take.

The mapping, the exporters, the dashboard and the alert rules are held against this one table.
Counters count since the run began, in base units. Labels are bounded: reasons and kinds come from
closed sets, and any other value becomes `other`; incarnations, processes, nodes and digests are no labels.
Every series also has the label `run`. Ray puts `ray_` before each name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from orchestrator.accounting.ledger import REASONS
from orchestrator.eventlog.facts import REGISTRY

OTHER = "other"
LEARNERS_MAX = 1024  # learners with series of their own; further ones share `other`
FRAGMENTS_MAX = 1024
PREFIX = "ray_"  # what Ray puts before the names


@dataclass(frozen=True)
class Label:
    """A label and its allowed values: a closed set, or the first `most` that appear."""

    name: str
    values: tuple[str, ...] = ()
    most: int = 0

    def __post_init__(self) -> None:
        assert bool(self.values) != bool(self.most), f"{self.name}: a set or a number"


@dataclass(frozen=True)
class Metric:
    """One family of series. The label `run` is implied."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[Label, ...] = ()
    buckets: tuple[float, ...] = ()  # upper bounds, of a histogram

    @property
    def label_names(self) -> tuple[str, ...]:
        return ("run", *(label.name for label in self.labels))


LEARNER = Label("learner", most=LEARNERS_MAX)
POOL = Label("pool", most=64)
REGION = Label("region", most=64)
FRAGMENT = Label("fragment", most=FRAGMENTS_MAX)

RUN_STATES = ("starting", "running", "ending", "finished", "stopped", "failed")
PHASES = ("starting", "importing", "compiling", "joining", "stepping", "draining", "silent", "down", "stopped")
REFUSALS = (
    "stale_epoch",
    "stale_incarnation",
    "stale_base",
    "doubled",
    "late",
    "bad_digest",
    "non_finite",
    "wrong_shape",
    "wrong_sender",
    "wrong_fragment",
    "wrong_counters",
    "wrong_config",
    "malformed",
    "unknown_learner",
)
MISSED_READS = (
    "timeout",
    "no_boundary",
    "lease_expired",
    "fenced",
    "superseded",
    "stopped",
    "refused",
    "behind",
    "slow_link",
    "malformed",
)
FENCES = ("killed", "failed", "lease_expired", "superseded", "stopped", "drained", "quarantined")
CAUSES = ("died", "lease_expired", "failed", "drained", "quarantined")
MODES = ("bootstrap", "overwrite", "rebase")
FAULTS = (
    "kill",
    "freeze",
    "slow",
    "straggle",
    "link",
    "corrupt",
    "non_finite",
    "wrong_config",
    "drain",
    "region",
    "syncer",
)
# A log may hold kinds that are newer than this table; they count as `other`.
KINDS = tuple(
    sorted(REGISTRY.keys() | {"DonorNamed", "DrainStarted", "StateReceived", "DonorFailed", "Donated", "PoolScaled"})
)
STEP_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
RECOVERY_BUCKETS = (1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)


def _counter(name: str, help_: str, *labels: Label) -> Metric:
    return Metric(name, "counter", help_, labels)


def _gauge(name: str, help_: str, *labels: Label) -> Metric:
    return Metric(name, "gauge", help_, labels)


_ALL = (
    # ---------------------------------------------------------------- the run
    _gauge("diloco_run_state", "1 for the state the run is in, 0 for the others.", Label("state", RUN_STATES)),
    _gauge("diloco_run_progress_ratio", "Committed share of the budget, 0 to 1."),
    _gauge("diloco_run_eta_seconds", "Estimated time to the end of the budget."),
    _gauge("diloco_status_timestamp_seconds", "When the orchestrator last wrote status.json, in Unix time."),
    _gauge(
        "diloco_eval_loss", "Newest held-out loss of the syncer's parameters, in the task's unit; absent if not finite."
    ),
    _counter(
        "diloco_evaluations_total",
        "Held-out evaluations, by whether the loss was a number.",
        Label("outcome", ("finite", "non_finite")),
    ),
    # ---------------------------------------------------------------- tokens and steps
    _counter("diloco_tokens_processed_total", "Tokens of finished steps.", LEARNER),
    _counter("diloco_tokens_committed_total", "Tokens in a contribution that merged, each once.", LEARNER),
    _counter(
        "diloco_tokens_discarded_total",
        "Tokens that no commit can contain any more, by why.",
        LEARNER,
        Label("reason", REASONS),
    ),
    _counter("diloco_steps_total", "Finished inner steps.", LEARNER),
    _counter("diloco_step_seconds_total", "Time spent in inner steps, without waiting.", LEARNER),
    _counter(
        "diloco_step_wait_seconds_total",
        "Time that inner steps waited before they could begin, by for what.",
        LEARNER,
        Label("kind", ("span", "adoption", "snapshot")),
    ),
    Metric(
        "diloco_step_duration_seconds",
        "histogram",
        "Duration of inner steps. Ray makes up the sum from the buckets' middles: take means from the counters.",
        (POOL,),
        STEP_BUCKETS,
    ),
    # ---------------------------------------------------------------- learners
    _gauge("diloco_learners", "Learners that the run wants.", POOL, REGION),
    _gauge("diloco_learners_live", "Learners that step and hold a lease.", POOL, REGION),
    _gauge("diloco_learner_info", "1, with the learner's pool and region.", LEARNER, POOL, REGION),
    _gauge(
        "diloco_learner_phase",
        "1 for the phase the learner is in, 0 for the others; silent: no lease, down: no incarnation.",
        LEARNER,
        Label("phase", (*PHASES, OTHER)),
    ),
    _gauge("diloco_learner_loss", "Training loss of the learner's last step, in the task's unit.", LEARNER),
    _gauge("diloco_learner_lease_age_seconds", "Time since the learner's last report.", LEARNER),
    _gauge("diloco_learner_version_lag", "Fragments of which the learner holds an old version.", LEARNER),
    _counter("diloco_lease_expiries_total", "Leases that ran out.", LEARNER),
    _counter("diloco_learners_fenced_total", "Incarnations that were fenced.", LEARNER, Label("reason", FENCES)),
    _counter(
        "diloco_restarts_total",
        "Incarnations asked for after the learner's first, by what ended the one before.",
        LEARNER,
        Label("cause", CAUSES),
    ),
    _counter("diloco_recoveries_total", "Deaths from which the learner has come back.", LEARNER),
    Metric(
        "diloco_recovery_duration_seconds",
        "histogram",
        "From a death to the first commit with a contribution of a later incarnation.",
        (),
        RECOVERY_BUCKETS,
    ),
    _gauge("diloco_last_recovery_seconds", "How long the learner's newest recovery took.", LEARNER),
    _counter("diloco_drains_total", "Drains begun.", LEARNER),
    _counter("diloco_donations_total", "States handed to a joining learner.", LEARNER),
    _counter("diloco_donors_failed_total", "Donors that did not deliver, by the joining learner.", LEARNER),
    _counter(
        "diloco_state_bytes_total",
        "Bytes of the states that joining learners received.",
        LEARNER,
        Label("source", ("peer", "syncer")),
    ),
    # ---------------------------------------------------------------- the syncer
    _gauge("diloco_syncer_step", "Newest syncer step committed or passed."),
    _gauge("diloco_syncer_target_steps", "Syncer steps of the whole budget, estimated for a budget of tokens."),
    _gauge("diloco_syncer_epoch", "The syncer's epoch."),
    _gauge("diloco_quorum", "K, the number of learners that a commit needs."),
    _gauge("diloco_grace_seconds", "The grace that a quorum reached now would get; absent when without end."),
    _gauge("diloco_last_commit_timestamp_seconds", "When the newest commit was made, in Unix time."),
    _gauge("diloco_commit_interval_seconds", "Median time between commits, over the whole run."),
    _gauge("diloco_outer_downtime_seconds", "Sum over the gaps between commits of what exceeds two median gaps."),
    _counter("diloco_commits_total", "Outer steps of single fragments.", FRAGMENT),
    _counter("diloco_steps_reopened_total", "Syncer steps that found too few contributions and began anew."),
    _counter("diloco_contributions_total", "Contributions that merged with a weight above 0.", LEARNER),
    _counter("diloco_live_at_commits_total", "Sum over commits of the learners live at that commit."),
    _gauge("diloco_merged_norm", "L2 norm of the newest merged outer gradient.", FRAGMENT),
    _counter("diloco_quorum_wait_seconds_total", "Sum over commits: opening to the K-th report."),
    _counter("diloco_grace_wait_seconds_total", "Sum over commits: what was waited after the quorum."),
    _counter("diloco_sync_seconds_total", "Sum over commits: decision to durable."),
    # ---------------------------------------------------------------- traffic
    _counter("diloco_contribution_bytes_total", "Payloads of merged contributions, upwards.", LEARNER),
    _counter("diloco_version_bytes_total", "Payloads of adopted fragments, downwards.", LEARNER),
    _counter("diloco_adoptions_total", "Fragments adopted.", LEARNER, Label("mode", MODES)),
    _counter(
        "diloco_adoptions_refused_total",
        "Fragments that a learner did not adopt.",
        LEARNER,
        Label("reason", ("older", "bad_digest", "fetch_failed")),
    ),
    # ---------------------------------------------------------------- refusals and faults
    _counter(
        "diloco_refusals_total",
        "Messages of learners that changed nothing, by why.",
        LEARNER,
        Label("reason", REFUSALS),
    ),
    _counter(
        "diloco_reads_failed_total",
        "Reads of a fragment without an answer in time, by why.",
        LEARNER,
        Label("reason", MISSED_READS),
    ),
    _counter("diloco_loops_failed_total", "Training loops that ended by an exception.", LEARNER),
    _counter("diloco_faults_injected_total", "Faults injected.", Label("kind", FAULTS)),
    _counter("diloco_faults_skipped_total", "Planned faults that found no target.", Label("kind", FAULTS)),
    # ---------------------------------------------------------------- the log and the store
    _counter("diloco_facts_total", "Facts in the log.", Label("kind", KINDS)),
    _counter("diloco_log_bytes_total", "Bytes of the log that were read for these metrics."),
    _counter("diloco_log_damaged_lines_total", "Parts of the log that cannot be read, and were left out."),
    _counter("diloco_exporter_errors_total", "Rounds of the exporter that failed; the next one goes on."),
    _gauge("diloco_store_free_bytes", "Free space where the run's folder is."),
    _gauge("diloco_store_size_bytes", "Size of the file system where the run's folder is."),
)
CATALOG: Mapping[str, Metric] = {metric.name: metric for metric in _ALL}
assert len(CATALOG) == len(_ALL), "two metrics of one name"


@dataclass
class Buckets:
    """The observations of a histogram."""

    counts: list[int]  # by bucket, not cumulative; the last is beyond all limits
    sum: float = 0.0


@dataclass(frozen=True)
class Sample:
    """The value of one series: what a counter counted and a histogram observed since the run began, or a gauge's."""

    name: str
    value: float | Buckets
    labels: Mapping[str, str] = field(default_factory=dict)


class LabelLimits:
    """Keeps label values within what the catalog allows."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], set[str]] = {}

    def admit(self, sample: Sample) -> dict[str, str]:
        """The sample's labels, all of them there, with `other` for a value that is not allowed.

        Half a surrogate pair, which JSON can spell and UTF-8 cannot, becomes a question mark.

        Raises KeyError for a metric or a label that the catalog does not have.
        """
        metric = CATALOG[sample.name]
        if unknown := sample.labels.keys() - {label.name for label in metric.labels}:
            raise KeyError(f"{sample.name} has no label {sorted(unknown)[0]!r}")
        return {label.name: self._value(label, sample.labels.get(label.name) or OTHER) for label in metric.labels}

    def _value(self, label: Label, given: object) -> str:
        value = str(given).encode(errors="replace").decode()
        if label.values:
            return value if value in label.values else OTHER
        seen = self._seen.setdefault((label.name, str(label.most)), set())
        if value not in seen and len(seen) >= label.most:
            return OTHER
        seen.add(value)
        return value
