"""Metrics from a log: exact against the books and the summary, bounded in their labels, and named as they should be."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learners.protocol.facts import (
    Adopted,
    AdoptionRefused,
    Donated,
    DonorFailed,
    LoopFailed,
    StateReceived,
    StepFinished,
)
from orchestrator.accounting.accounts import Accounts
from orchestrator.accounting.fold import drive
from orchestrator.accounting.summary import summarise
from orchestrator.eventlog.block import Block
from orchestrator.eventlog.events import Event, Unknown
from orchestrator.eventlog.facts import REGISTRY, FaultSkipped, LearnerLost, RunFinished
from orchestrator.eventlog.reader import LogReader
from orchestrator.store.run_store import RunStore
from orchestrator.store.status_model import model
from orchestrator.telemetry.catalog import CATALOG, LEARNERS_MAX, OTHER, Buckets, LabelLimits, Sample
from orchestrator.telemetry.fold import MetricsFold
from orchestrator.telemetry.run_samples import all_samples, gauges, now
from outer.protocol.facts import (
    Committed,
    DrainStarted,
    Finished,
    LearnerFenced,
    ReadFailed,
    Refused,
    StepOpened,
    StepReopened,
)
from tests.orchestrator.histories import altered, blocks, history, inserted, is_a, restarted, settle
from tests.orchestrator.store.test_status import NAMES, RECIPE, SYNCER, about, row, view
from tests.property_settings import examples

Totals = dict[tuple[str, tuple[tuple[str, str], ...]], Any]
A_MISSES = frozenset((second, "a") for second in (4, 6, 8))


def folded(events: Iterable[Event], rows: int = 1 << 20) -> MetricsFold:
    """The metrics of these events, in blocks of so many rows."""
    return metrics_of(blocks(list(events), rows))


def metrics_of(blocks: Iterable[Block]) -> MetricsFold:
    """The metrics of a log that is read to its end."""
    accounts = Accounts()
    fold = MetricsFold("fp32", accounts)
    drive([accounts, fold], blocks)
    if fold.over:
        fold.finish(accounts.results().books)
    return fold


def samples(events: Iterable[Event]) -> list[Sample]:
    return [*folded(events).samples()]


def totals(told: Iterable[Sample]) -> Totals:
    """Each series' value; of a histogram its buckets."""
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in told}


@pytest.mark.parametrize("rows", [1, 9])
def test_however_the_log_is_cut_into_blocks_the_metrics_are_the_same(rows: int) -> None:
    whole, cut = totals(samples(restarted(history()))), totals(folded(restarted(history()), rows).samples())
    assert whole.keys() == cut.keys()
    for series, value in whole.items():
        if isinstance(value, Buckets):
            assert (cut[series].counts, cut[series].sum) == (value.counts, pytest.approx(value.sum))
        else:
            assert cut[series] == pytest.approx(value)


def test_what_a_new_epoch_says_again_counts_once() -> None:
    once, twice = totals(samples(history())), totals(samples(restarted(history())))
    attached = {"diloco_attached_total", "diloco_facts_total", "diloco_syncer_epoch"}
    names = {name for name, _ in once} - attached
    assert {k: v for k, v in twice.items() if k[0] in names} == {k: v for k, v in once.items() if k[0] in names}
    told = samples([Event("syncer", 1, 0, 0.0, Unknown("MoonRose", {"phase": "full"}))])
    assert told == [Sample("diloco_facts_total", 1, {"kind": OTHER})], "of a kind that nobody knows yet"


def summed(values: Totals, name: str, by: str) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for (metric, labels), value in values.items():
        if metric == name:
            found[dict(labels)[by]] += value
    return dict(found)


# ------------------------------------------------------------------ exact


def assert_as_in_the_books(events: list[Event]) -> None:
    books, values = settle(events), totals(samples(events))
    for name, ledger in books.by_learner.items():
        of = {"learner": name}
        assert values[key("diloco_tokens_processed_total", **of)] == ledger.processed
        assert values.get(key("diloco_tokens_committed_total", **of), 0) == ledger.committed
        for reason, tokens in ledger.discarded.items():
            assert values.get(key("diloco_tokens_discarded_total", **of, reason=reason), 0) == tokens, reason


def key(name: str, **labels: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    return (name, tuple(sorted(labels.items())))


@examples(40)
@given(
    st.frozensets(st.tuples(st.integers(1, 16).map(lambda half: 2 * half), st.sampled_from("abc")), max_size=20),
    st.lists(
        st.tuples(st.integers(1, 7).map(lambda n: 4 * n + 2), st.sampled_from(("stale_base", "late"))), max_size=3
    ),
)
def test_tokens_equal_the_accounts_whatever_facts_are_missing(
    absent: frozenset[tuple[int, str]], refusals: list[tuple[int, str]]
) -> None:
    events = history(absent)
    for step, reason in refusals:
        refused = Refused("a", 1, "contribution", reason, step, 1)
        events = inserted(events, is_a(StepOpened, syncer_step=step), refused)
    assert_as_in_the_books(events)


def test_a_refused_contribution_discards_for_the_reason_that_the_books_give() -> None:
    for reason in ("stale_base", "non_finite", "doubled"):
        refused = Refused("a", 1, "contribution", reason, 6, 1)
        events = inserted(history(A_MISSES), is_a(StepOpened, syncer_step=6), refused)
        assert_as_in_the_books(events)
        told = discarded(samples(events))
        assert (told.get("stale_base", 0) > 0) == (reason == "stale_base")
        assert (told.get("refused", 0) > 0) == (reason == "non_finite")
    rebased = [
        replace(event, fact=replace(event.fact, mode="rebase")) if is_a(Adopted)(event) else event
        for event in history(A_MISSES)
    ]
    assert_as_in_the_books(rebased)
    late = inserted(history(), is_a(RunFinished), LearnerLost("b", 1, "died", "after the end: too late to matter"))
    assert_as_in_the_books(late)
    assert settle(late).by_learner["b"].discarded["killed"] == 0


def test_what_a_dead_learner_had_sent_may_still_merge_and_only_then_is_the_rest_killed() -> None:
    fenced = inserted(history(), is_a(StepOpened, syncer_step=6), LearnerFenced("c", 1, "killed"))
    events = [gone(event) if is_a(Committed)(event) and event.fact.syncer_step > 6 else event for event in fenced]
    of_the_dead = {("c", 1, Adopted)}
    events = [
        event
        for event in events
        if (event.writer, event.incarnation, type(event.fact)) not in of_the_dead or event.fact.after_step <= 6
    ]
    assert_as_in_the_books(events)
    commit = next(place for place, event in enumerate(events) if is_a(Committed, syncer_step=6)(event))
    assert "c" in {one.learner for one in events[commit].fact.participants}
    assert discarded(folded(events[:commit]).samples()) == {}, "it may still merge"
    end = next(place for place, event in enumerate(events) if is_a(Finished)(event))
    assert discarded(folded(events[:end]).samples())["killed"] == 3 * 16, "steps 7 to 9"


def gone(event: Event) -> Event:
    """The commit without what the first incarnation of c sent."""
    left = tuple(one for one in event.fact.participants if (one.learner, one.incarnation) != ("c", 1))
    return replace(event, fact=replace(event.fact, participants=left))


def discarded(told: Iterable[Sample]) -> dict[str, float]:
    return summed(totals(told), "diloco_tokens_discarded_total", "reason")


def test_counts_equal_the_summarys() -> None:
    events = inserted(history(), is_a(StepOpened, syncer_step=6), Refused("a", 1, "contribution", "late", 6, 1))
    summary, values = summarise(events, {"sync": {"codec": "fp32"}}, []), totals(samples(events))
    assert sum(summed(values, "diloco_commits_total", "fragment").values()) == summary["commits"]
    assert sum(summed(values, "diloco_contribution_bytes_total", "learner").values()) == summary["wire_bytes"]["up"]
    assert sum(summed(values, "diloco_version_bytes_total", "learner").values()) == summary["wire_bytes"]["down"]
    assert summed(values, "diloco_refusals_total", "reason") == summary["refusals"]
    contributions = summed(values, "diloco_contributions_total", "learner")
    shares = {name: merged / summary["commits"] for name, merged in contributions.items()}
    assert shares == summary["participation"]["by_learner"]
    live = values[key("diloco_live_at_commits_total")]
    assert sum(contributions.values()) / live == summary["participation"]["alive_mean"]
    [killed] = [fault for fault in summary["faults"] if fault["kind"] == "kill"]
    assert values[key("diloco_last_recovery_seconds", learner="c")] == pytest.approx(killed["recovery_s"])
    assert values[key("diloco_recoveries_total", learner="c")] == 1
    assert values[key("diloco_outer_downtime_seconds")] == pytest.approx(summary["outer_downtime_s"])
    assert values[key("diloco_restarts_total", learner="c", cause="died")] == 1
    assert summed(values, "diloco_facts_total", "kind") == Counter(type(event.fact).__name__ for event in events)
    events = [event for event in history() if not is_a(REGISTRY["FaultInjected"], fault_kind="kill")(event)]
    [row] = [fault for fault in summarise(events, {}, [])["faults"] if not fault["injected"]]
    recovery_s = totals(samples(events))[key("diloco_last_recovery_seconds", learner="c")]
    assert recovery_s == pytest.approx(row["recovery_s"]), "of a death that no fault explains"


# ------------------------------------------------------------------ the table


def test_every_metric_is_moved_by_something(tmp_path: Path) -> None:
    events = inserted(
        history(A_MISSES),
        is_a(StepOpened, syncer_step=6),
        Refused("a", 1, "contribution", "late", 6, 1),
        ReadFailed("a", 1, 6, 1, "timeout"),
        StepReopened(6, 1, 0, "too few"),
        DrainStarted("a", 1, "scaled"),
        FaultSkipped("kill", "b", "gone"),
    )
    own = [StateReceived("peer", "b", 1, 3, "", 9, 1.0), DonorFailed("b", 1, "timeout"), Donated("b", 1, 3, "", 9)]
    events = inserted(events, is_a(StepFinished), *own, AdoptionRefused(0, 1, "older"), LoopFailed(1, "oh"))
    events = altered(events, is_a(StepFinished), waited_s=0.5, waited_for="span")
    events = altered(events, is_a(Committed), grace_s=0.2)
    log = LogReader(tmp_path)
    moved = {sample.name for sample in [*all_samples(folded(events), log), *now(RunStore(tmp_path), status(), False)]}
    assert moved | {"diloco_exporter_errors_total"} == set(CATALOG)


def test_a_label_value_outside_its_set_is_called_other_and_names_are_limited_in_number() -> None:
    bounds = LabelLimits()
    strange = Sample("diloco_refusals_total", 1, {"learner": "a", "reason": "phase of the moon"})
    assert bounds.admit(strange) == {"learner": "a", "reason": OTHER}
    many = [Sample("diloco_steps_total", 1, {"learner": f"learner-{i}"}) for i in range(LEARNERS_MAX + 50)]
    seen = {bounds.admit(sample)["learner"] for sample in many}
    assert len(seen) == LEARNERS_MAX
    assert OTHER in seen
    with pytest.raises(KeyError, match="pid"):
        bounds.admit(Sample("diloco_steps_total", 1, {"learner": "a", "pid": "7"}))


def test_a_fact_that_says_less_than_nothing_counts_as_nothing() -> None:
    events = altered(history(), is_a(StepFinished), seconds=-5.0)
    values, whole = totals(samples(events)), totals(samples(history()))
    assert values[key("diloco_steps_total", learner="a")] == whole[key("diloco_steps_total", learner="a")]
    spent = {name: values[key("diloco_step_seconds_total", learner=name)] for name in "abc"}
    assert sum(spent.values()) < sum(whole[key("diloco_step_seconds_total", learner=name)] for name in "abc")
    assert min(spent.values()) > 0


def test_numbers_that_are_not_finite_are_told_apart_and_never_exported() -> None:
    events = altered(history(), is_a(REGISTRY["Evaluated"]), loss=float("nan"))
    events = altered(events, is_a(Committed), norm=float("inf"))
    values = totals(samples(events))
    assert values[key("diloco_evaluations_total", outcome="non_finite")] == 1
    numbers = [value for value in values.values() if not isinstance(value, Buckets)]
    assert all(math.isfinite(value) for value in numbers)


# ------------------------------------------------------------------ status


def status(state: str = "running") -> dict[str, Any]:
    rows = [row(NAMES[0]), row(NAMES[1], alive=False), row(NAMES[2], phase="dancing")]
    return model(RECIPE, about(state), view(*rows), SYNCER, {})


def test_a_status_becomes_gauges_one_phase_each_and_live_against_wanted_and_what_it_does_not_know_is_missing() -> None:
    values = totals(gauges(status()))
    for name, phase in zip(NAMES, ("stepping", "silent", OTHER), strict=True):
        phases = {
            dict(labels)["phase"]: value
            for (metric, labels), value in values.items()
            if metric == "diloco_learner_phase" and ("learner", name) in labels
        }
        assert {each for each, value in phases.items() if value} == {phase}
    assert values[key("diloco_learners", pool="east", region="r1")] == 2
    assert values[key("diloco_learners_live", pool="east", region="r1")] == 1
    assert values[key("diloco_learners_live", pool="west", region="none")] == 0
    assert summed(values, "diloco_run_state", "state")["running"] == 1
    assert values[key("diloco_grace_seconds")] == 0.1
    unknown = {sample.name for sample in gauges(model(RECIPE, replace(about(), eval_loss=None), {}, {}, {}))}
    assert not unknown & {"diloco_eval_loss", "diloco_grace_seconds", "diloco_syncer_epoch"}
    assert {sample.name for sample in gauges({})} == {"diloco_run_state"}
