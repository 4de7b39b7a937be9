"""Events as lines of JSON: what is written is what is read, and nothing else is read."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from pathlib import Path
from typing import Any

import pytest

from learners.protocol.facts import DeviceTaken, StepFinished
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.fact_log import EventEmitter
from orchestrator.eventlog.facts import REGISTRY
from orchestrator.eventlog.reader import read_run
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


def test_auxiliary_values_that_are_not_finite_come_back() -> None:
    step = StepFinished(1, 96, 0, 0, 2.5, 0.1, 0.0, "", 0.5, {"accuracy": math.nan})
    back = Event.from_json(Event("learner-a-0", 1, 0, 1.5, step).to_json()).fact.aux
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


def test_a_run_without_a_log_has_said_nothing(tmp_path: Path) -> None:
    assert read_run(tmp_path) == []
