"""Events as lines of JSON, and facts from JSON values: nothing is read but what its fields declare."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from pathlib import Path
from typing import Any

import pytest

from learners.protocol.facts import StepFinished
from orchestrator.eventlog.events import Event, fact_of
from orchestrator.eventlog.facts import REGISTRY
from orchestrator.eventlog.reader import read_run
from tests.orchestrator.histories import event_of, history


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
    assert event_of(line) == event


def test_auxiliary_values_that_are_not_finite_come_back() -> None:
    step = StepFinished(1, 96, 0, 0, 2.5, 0.1, 0.0, "", 0.5, {"accuracy": math.nan})
    back = event_of(Event("learner-a-0", 1, 0, 1.5, step).to_json()).fact.aux
    assert math.isnan(back["accuracy"])


def test_a_number_that_is_not_finite_is_strict_json_and_comes_back() -> None:
    committed = next(event for event in history() if type(event.fact).__name__ == "Committed")
    for number in (math.nan, math.inf, -math.inf):
        line = dataclasses.replace(committed, fact=dataclasses.replace(committed.fact, norm=number)).to_json()
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
        back = event_of(line).fact.norm
        assert back == number or (math.isnan(back) and math.isnan(number))


@pytest.mark.parametrize(
    ("kind", "good", "name", "wrong"),
    [
        ("StepPassed", {"syncer_step": 3}, "syncer_step", "3"),
        ("StepPassed", {"syncer_step": 3}, "syncer_step", 2**63),
        ("StepPassed", {"syncer_step": 3}, "step", 3),
        ("StepOpened", {"syncer_step": 1, "fragment": None}, "fragment", [1]),
        ("StepOpened", {"syncer_step": 1, "fragment": 2}, "fragment", 2.0),
        ("StepOpened", {"syncer_step": 1, "fragment": 2}, "syncer_step", None),
        ("Evaluated", {"syncer_step": 1, "loss": "nan", "tokens": 8}, "loss", "2.0"),
        ("Evaluated", {"syncer_step": 1, "loss": 2, "tokens": 8}, "tokens", True),
        ("Evaluated", {"syncer_step": 1, "loss": 2.0, "tokens": 8}, "loss", 10**400),
        ("Evaluated", {"syncer_step": 1, "loss": 2.0, "tokens": 8}, "metrics", {"accuracy": "high"}),
        ("NodePreempted", {"node": "n", "learners": ["a"], "remaining_s": None}, "learners", "a"),
        ("NodePreempted", {"node": "n", "learners": ["a"], "remaining_s": 1}, "remaining_s", "soon"),
    ],
)
def test_a_value_that_is_not_of_its_fields_type_is_refused(
    kind: str, good: dict[str, Any], name: str, wrong: Any
) -> None:
    assert type(fact_of(kind, good)) is REGISTRY[kind]
    with pytest.raises((TypeError, KeyError, OverflowError)):
        fact_of(kind, good | {name: wrong})


def test_a_run_without_a_log_has_said_nothing(tmp_path: Path) -> None:
    assert read_run(tmp_path) == []
