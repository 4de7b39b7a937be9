"""Metrics from a run's folder: a log that grows, a status that changes, and the text that Prometheus reads."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from orchestrator.accounting.books import settle
from orchestrator.cli.app import build
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.segments import SegmentWriter
from orchestrator.recipe.toml_text import dump, template
from orchestrator.store.run_store import RunStore
from orchestrator.telemetry.catalog import CATALOG, Sample
from orchestrator.telemetry.exposition import Exposition, exposition_of
from orchestrator.telemetry.log_tail import Line, Tail
from orchestrator.telemetry.run_samples import RunSamples
from outer.protocol.facts import Refused
from tests.orchestrator.histories import history
from tests.orchestrator.telemetry.test_metrics import STATUS, key, lines, summed, totals


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
    monkeypatch.setattr("orchestrator.telemetry.log_tail.CHUNK_BYTES", 16)  # less than any line has
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
    reader, told = RunSamples(store, "fp32"), []
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


def test_metrics_of_an_ended_run_hold_its_final_counts(tmp_path: Path) -> None:
    store, events = RunStore(tmp_path), history()
    write(store, events)
    store.write_json("status.json", STATUS | {"run": STATUS["run"] | {"state": "finished"}})
    reader, told = RunSamples(store, "fp32"), []
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
    reader = RunSamples(store, "fp32")
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
    from orchestrator.recipe.toml_text import load

    path = folder / "recipe.toml"
    path.write_text(template("demo"))
    return dump(load(path))
