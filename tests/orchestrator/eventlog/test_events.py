"""The log: what is written is what is read, and segments merge to the same log whatever their order."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
import types
import typing
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learners.protocol.facts import DeviceTaken, StepFinished
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import REGISTRY, Evaluated, RunFinished
from orchestrator.eventlog.reader import read_run
from orchestrator.eventlog.segments import EventEmitter, SegmentWriter, merge, read_segment
from outer.protocol.facts import StepOpened, StepPassed, SyncerStarted
from tests.orchestrator.histories import history


def example(hint: Any) -> Any:
    """A value of this type, other than its zero."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return (example(arguments[0]), example(arguments[0]))
    if origin is dict:
        return {"key": example(arguments[1])}
    if origin in (types.UnionType, typing.Union):
        return example(arguments[0])
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return build(hint)
    return {bool: True, int: 7, float: 0.1, str: 'näme "quoted"\n'}[hint]


def build(kind: type[Any]) -> Any:
    hints = typing.get_type_hints(kind)
    return kind(**{field.name: example(hints[field.name]) for field in dataclasses.fields(kind)})


@pytest.mark.parametrize("kind", REGISTRY.values(), ids=REGISTRY)
def test_every_fact_survives_its_line(kind: type[Any]) -> None:
    event = Event("learner-a-0", 2, 5, 1_700_000_000.123457, build(kind))
    line = event.to_json()
    assert "\n" not in line
    assert Event.from_json(line) == event


def test_a_field_that_came_later_is_left_out_where_it_is_empty_so_that_older_logs_keep_their_bytes() -> None:
    told, silent = (Event("orchestrator", 1, 0, 1.5, Evaluated(3, 2.5, 96, unit)) for unit in ("nats/image", ""))
    assert '"unit":"nats/image"' in told.to_json() and "unit" not in silent.to_json()
    assert [Event.from_json(each.to_json()) for each in (told, silent)] == [told, silent]


def test_a_step_without_auxiliary_values_is_written_as_before_there_were_any() -> None:
    step = StepFinished(1, 96, 0, 0, 2.5, 0.1, 0.0, "", 0.5)
    assert "aux" not in Event("learner-a-0", 1, 0, 1.5, step).to_json()
    told = Event("learner-a-0", 1, 0, 1.5, dataclasses.replace(step, aux={"accuracy": math.nan}))
    back = Event.from_json(told.to_json()).fact.aux
    assert math.isnan(back["accuracy"])


def test_a_number_that_is_not_finite_is_strict_json_and_comes_back() -> None:
    committed = next(event for event in history() if type(event.fact).__name__ == "Committed")
    for number in (math.nan, math.inf, -math.inf):
        line = dataclasses.replace(committed, fact=dataclasses.replace(committed.fact, norm=number)).to_json()
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
        back = Event.from_json(line).fact.norm
        assert back == number or (math.isnan(back) and math.isnan(number))


GOOD = Event("syncer", 1, 0, 1.0, StepPassed(3)).to_json()


@pytest.mark.parametrize(
    "line",
    [
        "",
        "no json",
        "[]",
        "{}",
        GOOD[:-5],
        GOOD.replace("StepPassed", "StepSkipped"),
        GOOD.replace('"syncer_step":3', '"step":3'),
        GOOD.replace('"syncer_step":3', '"syncer_step":"3"'),
        GOOD.replace('"syncer_step":3', '"syncer_step":3,"more":1'),
        GOOD.replace('"syncer_step":3', ""),
        GOOD.replace('"incarnation":1', '"incarnation":"1"'),
        GOOD.replace('"at":1.0', '"at":"noon"'),
    ],
)
def test_what_is_not_an_event_is_a_value_error(line: str) -> None:
    assert Event.from_json(GOOD).fact == StepPassed(3)
    with pytest.raises(ValueError):
        Event.from_json(line)


STEP = Event("a", 1, 0, 1.0, StepFinished(1, 8, 0, 0, 2.0, 1.0, 0.0, "", 0.5)).to_json()
DEVICE = Event("a", 1, 0, 1.0, DeviceTaken("cpu", "cpu", 1, 1, "", "", {"XLA_FLAGS": "--x"}, {})).to_json()
OPENED = Event("syncer", 1, 0, 1.0, StepOpened(1, 2)).to_json()
STARTED = Event("syncer", 1, 0, 1.0, SyncerStarted(1, (("w",),), (3,), ("a",), 1, 1, 1)).to_json()
HUGE, DEEP = "1" + "0" * 400, "[" * 100_000 + "]" * 100_000


def test_warnings_of_a_device_are_written_where_there_are_any() -> None:
    """So that a log from before there were such checks reads as it was written."""
    assert "warnings" not in DEVICE
    warned = DEVICE.replace('"versions":{}', '"versions":{},"warnings":{"burn-in":"bits differ"}')
    event = Event.from_json(warned)
    assert isinstance(event.fact, DeviceTaken) and event.fact.warnings == {"burn-in": "bits differ"}
    assert event.to_json() == warned != DEVICE


@pytest.mark.parametrize(
    ("line", "was", "now"),
    [
        (GOOD, '"at":1.0', f'"at":{HUGE}'),
        (GOOD, '"at":1.0', '"at":"nan"'),
        (GOOD, '"at":1.0', '"at":Infinity'),
        (GOOD, '"syncer_step":3', f'"syncer_step":{2**63}'),
        (GOOD, '"syncer_step":3', f'"syncer_step":{DEEP}'),
        (STEP, '"loss":2.0', f'"loss":{HUGE}'),
        (STEP, '"loss":2.0', '"loss":"2.0"'),
        (STEP, '"tokens":8', '"tokens":true'),
        (STEP, '"progress":0.5', '"progress":"abc"'),
        (STEP, '"progress":0.5', '"progress":[0.5]'),
        (DEVICE, '{"XLA_FLAGS":"--x"}', '"x"'),
        (DEVICE, '{"XLA_FLAGS":"--x"}', '{"XLA_FLAGS":3}'),
        (OPENED, '"fragment":2', '"fragment":[1]'),
        (OPENED, '"fragment":2', '"fragment":2.0'),
        (STARTED, '["w"]', '"w"'),
    ],
    ids=lambda value: value[:40],
)
def test_a_value_that_is_not_of_its_fields_type_is_a_value_error(line: str, was: str, now: str) -> None:
    assert Event.from_json(line).to_json() == line and was in line
    with pytest.raises(ValueError, match="not an event"):
        Event.from_json(line.replace(was, now))


def test_a_field_may_be_null_where_it_is_declared_so_and_only_there() -> None:
    assert Event.from_json(OPENED.replace('"fragment":2', '"fragment":null')).fact == StepOpened(1, None)
    assert Event.from_json(STEP.replace('"progress":0.5', '"progress":1')).fact.progress == 1.0
    with pytest.raises(ValueError):
        Event.from_json(OPENED.replace('"syncer_step":1', '"syncer_step":null'))


def test_a_writer_numbers_its_facts_from_zero() -> None:
    clock = iter([5.0, 4.0])
    emitter = EventEmitter("syncer", 3, lambda: next(clock))
    said = [emitter.emit(StepPassed(1)), emitter.emit(StepPassed(2))]
    assert [event.key for event in said] == [("syncer", 3, 0), ("syncer", 3, 1)]
    assert [event.at for event in said] == [5.0, 4.0]


def test_a_segment_is_appended_to_and_read_back(tmp_path: Path) -> None:
    path, events = tmp_path / "events" / "syncer.jsonl", history()[:6]
    for part in (events[:2], [], events[2:]):
        writer = SegmentWriter(path)
        writer.write(part)
        writer.close()
    assert list(read_segment(path)) == events


def test_a_last_line_cut_short_by_a_crash_is_left_out(tmp_path: Path) -> None:
    lines = [event.to_json() for event in history()[:3]]
    path = tmp_path / "segment.jsonl"
    path.write_text("\n".join(lines)[:-10])
    assert [event.to_json() for event in read_segment(path)] == lines[:2]


class Full:
    """A file on a disk that takes so many bytes and no more."""

    def __init__(self, file: Any, room: int) -> None:
        self.file, self.room, self.name = file, room, file.name

    def fileno(self) -> int:
        return int(self.file.fileno())

    def write(self, data: memoryview) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = int(self.file.write(data[: self.room]))
        self.room -= taken
        return taken

    def close(self) -> None:
        self.file.close()


def filled(path: Path, room: int) -> SegmentWriter:
    """A writer of one event, which failed to write a second."""
    writer = SegmentWriter(path)
    writer.write([Event("a", 1, 0, 0.0, StepPassed(0))])
    real = writer._file
    writer._file = Full(real, room)  # type: ignore[assignment]
    with pytest.raises(OSError, match="No space"):
        writer.write([Event("a", 1, 1, 0.0, StepPassed(1))])
    writer._file = real
    return writer


def test_what_a_full_disk_took_of_a_line_is_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "segment.jsonl"
    writer = filled(path, 20)
    writer.write([Event("a", 1, 1, 0.0, StepPassed(1))])  # there is room again
    writer.close()
    assert [event.fact for event in read_segment(path)] == [StepPassed(0), StepPassed(1)]
    assert [event.sequence for event in read_segment(path)] == [0, 1]


def test_a_part_of_a_line_that_cannot_be_taken_back_is_the_last_thing_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError("read-only")

    monkeypatch.setattr(os, "ftruncate", refuse)
    path = tmp_path / "segment.jsonl"
    writer = filled(path, 20)
    with pytest.raises(OSError, match=r"nothing more is written to .*segment\.jsonl: a line of it was cut short"):
        writer.write([Event("a", 1, 1, 0.0, StepPassed(1))])
    writer.close()
    assert [event.fact for event in read_segment(path)] == [StepPassed(0)]


def test_a_disk_that_was_full_from_the_start_leaves_nothing_to_take_back(tmp_path: Path) -> None:
    writer = filled(tmp_path / "segment.jsonl", 0)
    writer.write([Event("a", 1, 1, 0.0, StepPassed(1))])
    writer.close()
    assert len(list(read_segment(tmp_path / "segment.jsonl"))) == 2


def test_any_other_damage_names_file_and_line(tmp_path: Path) -> None:
    lines = [event.to_json() for event in history()[:3]]
    path = tmp_path / "segment.jsonl"
    path.write_text("\n".join([lines[0], lines[1][:-10], lines[2], ""]))
    with pytest.raises(ValueError, match=r"segment\.jsonl, line 2"):
        list(read_segment(path))


def test_a_clock_set_back_does_not_reorder_its_own_writer() -> None:
    early, late = Event("a", 1, 0, 10.0, StepPassed(1)), Event("a", 1, 1, 3.0, StepPassed(2))
    other = Event("b", 1, 0, 5.0, StepPassed(9))
    assert merge([[late, other, early]]) == [other, early, late]


@given(seed=st.integers(0, 2**32), parts=st.integers(1, 5))
def test_the_merge_forgets_how_the_log_was_cut_shuffled_and_doubled(seed: int, parts: int) -> None:
    events = history()
    whole = merge([events])
    doubled = events + events[::3]
    mixed = Random(seed).sample(doubled, len(doubled))
    segments = [mixed[part::parts] for part in range(parts)]
    assert merge(segments) == whole
    assert merge([whole]) == whole
    assert [event.at for event in whole] == sorted(event.at for event in events)


def test_the_whole_log_is_read_where_it_is_written_and_else_the_segments(tmp_path: Path) -> None:
    events = history()
    for writer in {event.writer for event in events}:
        segment = SegmentWriter(tmp_path / "events" / f"{writer}.jsonl")
        segment.write(event for event in events if event.writer == writer)
        segment.close()
    assert read_run(tmp_path) == merge([events])
    ending = Event("orchestrator", 1, 0, 1.0, RunFinished("stopped", "asked to"))
    (tmp_path / "events.jsonl").write_text(ending.to_json() + "\n")
    assert read_run(tmp_path) == [ending]


def test_a_run_without_a_log_has_said_nothing(tmp_path: Path) -> None:
    assert read_run(tmp_path) == []
