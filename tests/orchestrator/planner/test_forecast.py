"""The forecast of a plan: one simulated run, held against lives and outages."""

from __future__ import annotations

import pytest

from benchmarks.studies.models import even
from orchestrator.planner import forecast as room
from orchestrator.planner.forecast import Forecast, forecast
from orchestrator.planner.sizing.model_sizes import Shapes
from orchestrator.recipe.config import Recipe

ELEMENTS = 8_000
SHAPES = Shapes(
    fragments=even(ELEMENTS, 8),
    parameter_bytes=4 * ELEMENTS,
    inner_state_bytes=8 * ELEMENTS,
    outer_state_bytes=(4 * ELEMENTS // 8,) * 8,
    step_tokens={"a": 768, "b": 768},
)


def recipe(pools=None, sync=None, steps=1_000, **told) -> Recipe:
    tables = {
        "name": "foreseen",
        "pools": [{"name": "a", "learners": 2}, {"name": "b", "learners": 2, "slowdown": 1.3}],
        "budget": {"syncer_steps": steps},
        "sync": {"H": 8} | (sync or {}),
        "fleet": {"detect_s": 2.0, "replace_s": 20.0, "start_s": 10.0, "pools": pools or []} | told,
    }
    return Recipe.model_validate(tables)


def told_of(made: Recipe, step_s: float | None = 1.0) -> Forecast:
    found = forecast(made, SHAPES, step_s)
    assert found is not None
    return found


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "STEPS_MAX", 4 * 2_500)


def test_goodput_is_that_of_lives_and_outages():
    """A life of 300 s, then 2 s until it is noticed, 20 s until there is hardware, 10 s to start, and its step."""
    wanted = recipe(mtbf_hours=300.0 / 3600.0, steps=100_000)
    told = told_of(wanted)
    assert not told.whole and told.run_s == pytest.approx(2_500 * 1.15)
    assert told.losses == pytest.approx(4 * told.run_s / 332.6, rel=0.3)
    assert told.goodput == pytest.approx(300.0 / 332.6, abs=0.03)
    assert told.uptime > 0.99 and 0.6 < told.participation < told.goodput
    assert 0.5 < told.committed < told.goodput


def test_a_run_that_is_short_enough_is_simulated_to_its_end():
    told = told_of(recipe())
    assert told.whole and told.losses == 0
    assert told.run_s == pytest.approx(1_000 * 1.15, rel=0.1), "the syncer's clock is the median learner's"
    assert min(told.goodput, told.participation, told.committed) > 0.97


def test_a_pool_that_is_there_for_some_hours_alone_is_away_for_the_others():
    """Over one day exactly."""
    told = told_of(recipe(pools=[{"name": "b", "spot": 0.5}], steps=100_000), 86_400 / 2_500 / 1.15)
    assert told.goodput == pytest.approx(0.75, abs=0.02)
    assert told.uptime > 0.999


def test_without_a_step_one_second_is_assumed_and_what_cannot_be_simulated_has_no_forecast():
    told = told_of(recipe(), None)
    assert told.step_is_assumed and told.step_s == 1.0
    assert not told_of(recipe(pools=[{"name": n, "step_s": 2.0} for n in "ab"]), None).step_is_assumed
    assert forecast(recipe(sync={"overlap": "strict"}), SHAPES, 1.0) is None
    assert forecast(recipe(sync={"H": 2_000}, steps=10_000), SHAPES, 1.0) is None, "three rounds are too many steps"
