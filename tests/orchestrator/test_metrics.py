"""Metrics from a log: exact against the books and the summary, bounded in their labels, and named as they should be."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import fields, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from learners.facts import Adopted, StepFinished
from orchestrator.books import settle
from orchestrator.checkers.history import History
from orchestrator.cli.app import build
from orchestrator.events import REGISTRY, Event, FaultSkipped, LearnerLost, RunFinished, SegmentWriter
from orchestrator.goodput import outer_downtime, participation
from orchestrator.recipes import dump, template
from orchestrator.store import RunStore
from orchestrator.summary import summarise
from orchestrator.telemetry.catalog import CATALOG, KINDS, LEARNERS_MAX, OTHER, Bounds, Sample
from orchestrator.telemetry.exposition import Exposition, exposition_of
from orchestrator.telemetry.gauges import gauges
from orchestrator.telemetry.measure import RULES, WRITER, Measures
from orchestrator.telemetry.reader import Reader
from orchestrator.telemetry.tail import Line, Tail, parse
from outer.facts import Committed, LearnerFenced, ReadFailed, Refused, StepOpened, StepReopened
from tests.orchestrator.histories import altered, history, inserted, is_a

Totals = dict[tuple[str, tuple[tuple[str, str], ...]], float]
A_MISSES = frozenset((second, "a") for second in (4, 6, 8))


def lines(events: Iterable[Event]) -> list[Line]:
    return [parse(event.to_json()) for event in events]


def samples(events: Iterable[Event]) -> list[Sample]:
    measures = Measures("fp32", "1.0")
    told = [sample for line in lines(events) for sample in measures.take(line)]
    return [*told, *measures.close(), *measures.rhythm()]


def totals(told: Iterable[Sample]) -> Totals:
    """Each series' value at the end: counters added up, gauges as last set."""
    values: Totals = defaultdict(float)
    for sample in told:
        key = (sample.name, tuple(sorted(sample.labels.items())))
        values[key] = sample.value + (values[key] if CATALOG[sample.name].kind == "counter" else 0.0)
    return dict(values)


def summed(values: Totals, name: str, by: str) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for (metric, labels), value in values.items():
        if metric == name:
            found[dict(labels)[by]] += value
    return dict(found)


def nonzero(values: dict[str, int]) -> dict[str, int]:
    return {key: value for key, value in values.items() if value}


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


@settings(deadline=None, max_examples=40)
@given(
    st.frozensets(st.tuples(st.integers(1, 16).map(lambda half: 2 * half), st.sampled_from("abc")), max_size=20),
    st.lists(
        st.tuples(st.integers(1, 7).map(lambda n: 4 * n + 2), st.sampled_from(("stale_base", "late"))), max_size=3
    ),
)
def test_tokens_equal_the_books_to_the_last_whoever_misses_what(
    absent: frozenset[tuple[int, str]], refusals: list[tuple[int, str]]
) -> None:
    events = history(absent)
    for step, reason in refusals:
        refused = Refused("a", 1, "contribution", reason, step, 1)
        events = inserted(events, is_a(StepOpened, syncer_step=step), refused)
    assert_as_in_the_books(events)


@pytest.mark.parametrize("reason", ["stale_base", "non_finite", "doubled"])
def test_a_refused_contribution_discards_for_the_reason_that_the_books_give(reason: str) -> None:
    refused = Refused("a", 1, "contribution", reason, 6, 1)
    events = inserted(history(A_MISSES), is_a(StepOpened, syncer_step=6), refused)
    assert_as_in_the_books(events)
    discarded = summed(totals(samples(events)), "diloco_tokens_discarded_total", "reason")
    assert (discarded.get("stale_base", 0) > 0) == (reason == "stale_base")
    assert (discarded.get("refused", 0) > 0) == (reason == "non_finite")


def test_what_rebasing_keeps_is_not_discarded_before_the_end() -> None:
    events = [
        replace(event, fact=replace(event.fact, mode="rebase")) if is_a(Adopted)(event) else event
        for event in history(A_MISSES)
    ]
    assert_as_in_the_books(events)


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
    measures, told = Measures("fp32", "1.0"), []
    for line in lines(events):
        if line.kind == "Committed" and line.fact["syncer_step"] == 6:
            assert "c" in {one["learner"] for one in line.fact["participants"]}
            assert discarded(told) == {}, "it may still merge"
        told += list(measures.take(line))
    assert discarded(told)["killed"] == 3 * 16, "steps 7 to 9"


def gone(event: Event) -> Event:
    """The commit without what the first incarnation of c sent."""
    left = tuple(one for one in event.fact.participants if (one.learner, one.incarnation) != ("c", 1))
    return replace(event, fact=replace(event.fact, participants=left))


def discarded(told: Iterable[Sample]) -> dict[str, float]:
    return summed(totals(told), "diloco_tokens_discarded_total", "reason")


def test_a_death_after_the_end_of_the_run_kills_no_tokens() -> None:
    events = inserted(history(), is_a(RunFinished), LearnerLost("b", 1, "died", "too late to matter"))
    assert_as_in_the_books(events)
    assert settle(events).by_learner["b"].discarded["killed"] == 0


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
    share = participation(History(events))
    assert share is not None
    assert sum(contributions.values()) / live == share.alive_mean
    [killed] = [fault for fault in summary["faults"] if fault["kind"] == "kill"]
    assert values[key("diloco_recovery_seconds_total", learner="c")] == pytest.approx(killed["recovery_s"])
    assert values[key("diloco_recoveries_total", learner="c")] == 1
    assert values[key("diloco_outer_downtime_seconds")] == pytest.approx(outer_downtime(History(events)))
    assert values[key("diloco_restarts_total", learner="c", cause="died")] == 1
    assert summed(values, "diloco_facts_total", "kind") == {
        kind: len([event for event in events if type(event.fact).__name__ == kind])
        for kind in {type(event.fact).__name__ for event in events}
    }


def test_a_death_that_no_fault_explains_counts_from_the_last_sign_of_life() -> None:
    events = [event for event in history() if not is_a(REGISTRY["FaultInjected"], fault_kind="kill")(event)]
    [row] = [fault for fault in summarise(events, {}, [])["faults"] if not fault["injected"]]
    values = totals(samples(events))
    assert values[key("diloco_recovery_seconds_total", learner="c")] == pytest.approx(row["recovery_s"])


# ------------------------------------------------------------------ the table


def test_rules_name_metrics_and_labels_of_the_catalog_and_fields_of_the_facts() -> None:
    for kind, rules in RULES.items():
        assert kind in KINDS
        for rule in rules:
            assert {label.name for label in CATALOG[rule.metric].labels} == rule.labels.keys(), rule.metric
            if kind in REGISTRY:
                known = {field.name for field in fields(REGISTRY[kind])} | {WRITER, ""}
                assert {*rule.labels.values(), rule.amount} <= known, kind


UNITS = {"tokens": "tokens", "seconds": "seconds", "bytes": "bytes", "ratio": "ratio"}


@pytest.mark.parametrize("metric", CATALOG.values(), ids=lambda metric: metric.name)
def test_names_follow_the_conventions_of_prometheus(metric: Any) -> None:
    assert re.fullmatch(r"diloco(_[a-z]+)+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert metric.help.endswith(".")
    if metric.unit in UNITS:
        assert f"_{metric.unit}" in metric.name, "the unit is in the name"
    else:
        assert metric.unit in ("", "nats per token")
        assert not re.search(r"_(seconds|bytes|ratio)(_|$)", metric.name)
    assert not re.search(r"_(ms|milliseconds|kb|mb|percent|hours|minutes)(_|$)", metric.name), "base units"
    assert bool(metric.buckets) == (metric.kind == "histogram")
    assert list(metric.buckets) == sorted(metric.buckets)
    names = [label.name for label in metric.labels]
    assert "run" not in names
    assert not {"le", "WorkerId", "incarnation", "pid", "node", "digest"} & set(names)


def test_every_metric_is_moved_by_something() -> None:
    numbers, texts = count(1), {"message": "contribution", "reason": "late", "mode": "overwrite"}
    planned = [
        Line("learner-t-0", 1, 1.0, kind, texts | {"learner": "a", "source": "peer", "bytes": next(numbers)})
        for kind in ("DrainStarted", "StateReceived", "DonorFailed", "Donated")
    ]
    events = inserted(
        history(A_MISSES),
        is_a(StepOpened, syncer_step=6),
        Refused("a", 1, "contribution", "late", 6, 1),
        ReadFailed("a", 1, 6, 1, "timeout"),
        StepReopened(6, 1, 0, "too few"),
        FaultSkipped("kill", "b", "gone"),
    )
    events = altered(events, is_a(StepFinished), waited_s=0.5, waited_for="span")
    events = altered(events, is_a(Committed), grace_s=0.2)
    measures = Measures("fp32", "1.0")
    others = [
        Line("a", 1, 0.0, kind, fact)
        for kind, fact in (
            ("AdoptionRefused", {"reason": "older"}),
            ("LoopFailed", {"step": 1}),
        )
    ]
    moved = {sample.name for line in [*lines(events), *planned, *others] for sample in measures.take(line)}
    moved |= {sample.name for sample in [*measures.close(), *measures.rhythm(), *gauges(STATUS)]}
    moved |= {
        "diloco_log_bytes_total",
        "diloco_log_damaged_lines_total",
        "diloco_store_free_bytes",
        "diloco_store_size_bytes",
    }  # the reader's own
    assert moved | {"diloco_exporter_errors_total"} == set(CATALOG)


def test_a_label_value_outside_its_set_is_called_other_and_names_are_limited_in_number() -> None:
    bounds = Bounds()
    strange = Sample("diloco_refusals_total", 1, {"learner": "a", "reason": "phase of the moon"})
    assert bounds.admit(strange) == {"learner": "a", "reason": OTHER}
    many = [Sample("diloco_steps_total", 1, {"learner": f"learner-{i}"}) for i in range(LEARNERS_MAX + 50)]
    seen = {bounds.admit(sample)["learner"] for sample in many}
    assert len(seen) == LEARNERS_MAX
    assert OTHER in seen
    with pytest.raises(KeyError, match="pid"):
        bounds.admit(Sample("diloco_steps_total", 1, {"learner": "a", "pid": "7"}))


def test_a_kind_that_nobody_knows_yet_is_counted_and_harms_nothing() -> None:
    told = list(Measures("fp32", "1.0").take(Line("syncer", 1, 0.0, "MoonRose", {"phase": "full"})))
    assert told == [Sample("diloco_facts_total", 1, {"kind": OTHER})]


def test_numbers_that_are_not_finite_are_told_apart_and_never_exported() -> None:
    events = altered(history(), is_a(REGISTRY["Evaluated"]), loss=float("nan"))
    events = altered(events, is_a(Committed), norm=float("inf"))
    values = totals(samples(events))
    assert values[key("diloco_evaluations_total", outcome="non_finite")] == 1
    assert all(value == value and abs(value) != float("inf") for value in values.values())


# ------------------------------------------------------------------ status


STATUS: dict[str, Any] = {
    "run": {
        "name": "demo",
        "state": "running",
        "syncer_step": 25,
        "target_syncer_steps": 100,
        "progress": 0.25,
        "eval_loss": 2.5,
        "goodput": 0.8,
        "eta_s": 60.0,
        "started_at": 100.0,
    },
    "learners": [
        {
            "name": f"learner-east-{index}",
            "pool": "east",
            "region": "r1" if index else None,
            "state": state,
            "loss": 2.2,
            "lease_age_s": 0.1,
            "version_lag": 1,
        }
        for index, state in enumerate(("stepping", "silent", "dancing"))
    ],
    "syncer": {"epoch": 1, "quorum": 2, "grace_s": 0.1},
    "written_at": 130.0,
}


def test_a_status_becomes_gauges_one_phase_each_and_live_against_wanted() -> None:
    values = totals(gauges(STATUS))
    for index, phase in enumerate(("stepping", "silent", OTHER)):
        phases = {
            dict(labels)["phase"]: value
            for (name, labels), value in values.items()
            if name == "diloco_learner_phase" and ("learner", f"learner-east-{index}") in labels
        }
        assert {name for name, value in phases.items() if value} == {phase}
    assert values[key("diloco_learners", pool="east", region="r1")] == 2
    assert values[key("diloco_learners_live", pool="east", region="r1")] == 0
    assert values[key("diloco_learners_live", pool="east", region="none")] == 1
    assert summed(values, "diloco_run_state", "state")["running"] == 1
    assert values[key("diloco_grace_seconds")] == 0.1


def test_what_a_status_does_not_know_is_missing_and_not_zero() -> None:
    unknown = STATUS | {"run": STATUS["run"] | {"eval_loss": None, "goodput": None}, "syncer": {"grace_s": None}}
    names = {sample.name for sample in gauges(unknown)}
    assert not names & {"diloco_eval_loss", "diloco_run_goodput_ratio", "diloco_grace_seconds", "diloco_syncer_epoch"}
    assert {sample.name for sample in gauges({})} == {"diloco_run_state"}


# ------------------------------------------------------------------ the folder


def write(store: RunStore, events: Iterable[Event]) -> None:
    """As a run does: learners' facts are in the syncer's segment."""
    for event in events:
        name = event.writer if event.writer in ("orchestrator", "chaos") else "syncer"
        writer = SegmentWriter(store.path(f"events/{name}.jsonl"))
        writer.write([event])
        writer.close()


def test_a_growing_log_is_read_once_line_by_line_and_a_half_line_waits(tmp_path: Path) -> None:
    store, events = RunStore(tmp_path), history()
    tail, seen = Tail(tmp_path), []
    assert tail.poll() == []
    for start in range(0, len(events), 50):
        write(store, events[start : start + 50])
        seen += tail.poll()
    assert sorted(map(repr, seen)) == sorted(map(repr, lines(events)))
    segment = tmp_path / "events" / "chaos.jsonl"
    text = events[0].to_json().encode() + b"\n"
    with open(segment, "ab") as file:
        file.write(text[:20])
        file.flush()
        assert tail.poll() == []
        file.write(text[20:])
    assert tail.poll() == lines(events[:1])


def test_one_segments_lines_stay_in_their_order_though_a_learners_clock_is_behind(tmp_path: Path) -> None:
    events = [event for event in history() if event.writer == "syncer"][:40]
    behind = [replace(event, at=event.at - 3600.0 * (index % 2)) for index, event in enumerate(events)]
    write(RunStore(tmp_path), behind)
    assert Tail(tmp_path).poll() == lines(behind)


DAMAGED = (
    b"\0" * 40,
    b'{"writer": "syncer", "inc',
    b"[]",
    b"[" * 100_000,
    b'{"writer": "a", "incarnation": 1, "at": "noon", "kind": "Finished", "fact": {}}',
    b'{"writer": "a", "incarnation": 1, "at": NaN, "kind": "Finished", "fact": {}}',
    b'{"writer": "a", "incarnation": 1, "at": 1.0, "kind": "Finished", "fact": 3}',
    b"\xff\xfe",
)


def test_damaged_lines_are_counted_and_passed_and_take_nothing_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = history()
    write(RunStore(tmp_path), events)
    for segment in (tmp_path / "events").iterdir():
        first, *others = segment.read_bytes().splitlines(keepends=True)
        segment.write_bytes(b"".join([first, *(line + b"\n" for line in DAMAGED), *others]))
    monkeypatch.setattr("orchestrator.telemetry.tail.CHUNK_BYTES", 16)  # less than any line has
    tail, seen, before = Tail(tmp_path), [], -1
    while tail.bytes_read > before:
        before = tail.bytes_read
        seen += tail.poll()
    assert sorted(map(repr, seen)) == sorted(map(repr, lines(events)))
    assert tail.damaged == 3 * len(DAMAGED)
    assert tail.bytes_read == sum(segment.stat().st_size for segment in (tmp_path / "events").iterdir())


def test_a_segment_that_cannot_be_read_costs_no_line_of_the_others(tmp_path: Path) -> None:
    write(RunStore(tmp_path), history())
    tail = Tail(tmp_path)
    unreadable = tmp_path / "events" / "z.jsonl"
    unreadable.mkdir()
    with pytest.raises(OSError):
        tail.poll()
    unreadable.rmdir()
    assert len(tail.poll()) == len(history())


def test_a_fact_that_lacks_what_its_kind_has_and_a_caller_that_stops_cost_one_line(tmp_path: Path) -> None:
    store, events = RunStore(tmp_path), history()
    write(store, events)
    with open(tmp_path / "events" / "chaos.jsonl", "a") as file:
        for kind, fact in (("Adopted", {}), ("StepFinished", {"tokens": -5}), ("Committed", {"quorum_s": 1})):
            file.write(json.dumps(Line("a", 1, events[5].at, kind, fact)._asdict()) + "\n")
        file.write(replace(events[5], fact=Refused("\ud800", 1, "contribution", "late", 6, 1)).to_json() + "\n")
    reader, told = Reader(store, "fp32"), []
    look = reader.look()
    told += [next(look) for _ in range(20)]
    look.close()
    told += [sample for _ in range(3) for sample in reader.look()]
    assert reader.over
    values = totals(told)
    assert values[key("diloco_log_damaged_lines_total")] == 3
    assert sum(summed(values, "diloco_tokens_committed_total", "learner").values()) == settle(events).committed
    segments = (tmp_path / "events").iterdir()
    assert values[key("diloco_log_bytes_total")] == sum(segment.stat().st_size for segment in segments)
    exposition = Exposition("demo")
    exposition.apply(told)
    assert 'diloco_refusals_total{learner="?",reason="late",run="demo"} 1.0' in exposition.text()


def test_whoever_sees_the_run_ended_sees_its_final_counts(tmp_path: Path) -> None:
    store, events = RunStore(tmp_path), history()
    write(store, events)
    store.write_json("status.json", STATUS | {"run": STATUS["run"] | {"state": "finished"}})
    reader, told = Reader(store, "fp32"), []
    while not reader.over:
        told += list(reader.look())
    ended = next(i for i, each in enumerate(told) if each.labels.get("state") == "finished")
    after = [each for each in told[ended:] if CATALOG[each.name].kind == "counter"]
    assert after == []
    assert sum(summed(totals(told), "diloco_tokens_committed_total", "learner").values()) == settle(events).committed
    assert list(reader.look())[-1].name == "diloco_store_size_bytes", "looking on adds nothing"
    assert not [each for each in reader.look() if CATALOG[each.name].kind == "counter"]


def test_every_look_sets_all_gauges_again_for_ray_forgets_those_that_nobody_sets(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    write(store, history())
    store.write_json("status.json", STATUS)
    reader = Reader(store, "fp32")
    looks = [list(reader.look()) for _ in range(3)]
    set_by = [
        {(each.name, *each.labels.items()) for each in look if CATALOG[each.name].kind == "gauge"} for look in looks
    ]
    assert {"diloco_build_info", "diloco_merged_norm", "diloco_last_recovery_seconds"} <= {
        name for name, *_ in set_by[2]
    }
    assert set_by[0] < set_by[1] == set_by[2], "the first look does not know yet that there is no more"


def test_the_text_is_what_prometheus_reads_and_a_second_reader_finds_the_same(tmp_path: Path) -> None:
    store, events = RunStore(tmp_path), history()
    write(store, events)
    store.write_json("status.json", STATUS)
    texts = [exposition_of(store, "demo", "fp32").text() for _ in range(2)]
    families = [{family.name: family for family in text_string_to_metric_families(text)} for text in texts]
    assert {name.removesuffix("_total") for name in CATALOG} == families[0].keys()
    for name in families[0].keys() - {"diloco_store_free_bytes"}:
        assert families[0][name].samples == families[1][name].samples
    processed = sum(sample.value for sample in families[0]["diloco_tokens_processed"].samples)
    assert processed == settle(events).processed
    assert all(sample.labels["run"] == "demo" for family in families[0].values() for sample in family.samples)


def test_a_histogram_has_its_buckets() -> None:
    exposition = Exposition("demo")
    exposition.apply([Sample("diloco_step_duration_seconds", value, {"pool": "p"}) for value in (0.02, 0.3, 500.0)])
    counts = {
        row["labels"]["le"]: row["value"]
        for row in exposition.samples()
        if row["name"] == "diloco_step_duration_seconds_bucket"
    }
    assert (counts["0.01"], counts["0.025"], counts["0.5"], counts["+Inf"]) == (0, 1, 2, 3)


def test_the_command_prints_text_or_json_and_refuses_a_folder_that_is_none(tmp_path: Path) -> None:
    recipe = template_recipe(tmp_path)
    store, events = RunStore(tmp_path / "run"), history()
    store.create()
    store.write_text("config.toml", recipe)
    write(store, events)
    runner = CliRunner()
    text = runner.invoke(build(), ["metrics", str(store.root)])
    assert text.exit_code == 0, text.output
    assert "diloco_commits_total{" in text.stdout
    told = json.loads(runner.invoke(build(), ["metrics", str(store.root), "--json"]).stdout)
    committed = sum(each["value"] for each in told if each["name"] == "diloco_tokens_committed_total")
    assert committed == settle(events).committed
    missing = runner.invoke(build(), ["metrics", str(tmp_path / "no")])
    assert missing.exit_code == 2
    assert "no such folder" in missing.output
    (tmp_path / "empty").mkdir()
    assert runner.invoke(build(), ["metrics", str(tmp_path / "empty")]).exit_code == 2


def template_recipe(folder: Path) -> str:
    from orchestrator.recipes import load

    path = folder / "recipe.toml"
    path.write_text(template("demo"))
    return dump(load(path))
