"""Checkpoints come often enough for the plan's kills."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.__main__ import faults
from orchestrator.recipe.config import ChaosConfig
from orchestrator.runtime.data_parallel.checkpoint_interval import Interval, interval


def chosen(**chaos: Any) -> Interval:
    given = ChaosConfig.model_validate(chaos)
    return interval(given, faults(given, ["learner-a-0"], 0)[0], 600.0)


def kills(key: str, *values: float) -> list[dict[str, Any]]:
    return [{"kind": "kill", "learner": "any", key: value} for value in values]


def test_without_kills_it_is_the_recipes() -> None:
    frozen = [{"kind": "freeze", "learner": "any", "at_s": 3.0}]
    assert chosen() == chosen(faults=frozen) == chosen(mtbf_s=8.0, kinds=["freeze"]) == Interval(600.0)


def test_random_kills_set_it_by_young_and_daly_and_at_most_a_quarter_of_their_mean_gap() -> None:
    assert chosen(mtbf_s=50.0) == Interval(20.0), "half of them freeze: sqrt(2 x 2 s x 100 s)"
    assert chosen(mtbf_s=20.0, kinds=["kill"]).seconds == 5.0


def test_planned_kills_set_it_by_their_mean_gap() -> None:
    assert chosen(faults=kills("at_s", 10.0, 60.0)).seconds == 7.5
    by_step = chosen(faults=kills("at_step", 40, 80))
    assert by_step == Interval(600.0, 10)
    assert by_step.in_steps(0.5) == 10 and by_step.in_steps(100.0) == 6


@pytest.mark.parametrize(
    ("given", "said"),
    [(Interval(0.0), "none"), (Interval(12.25), "12.2 s"), (Interval(0.0, 3), "3 steps")],
)
def test_it_is_told(given: Interval, said: str) -> None:
    assert str(given) == said
