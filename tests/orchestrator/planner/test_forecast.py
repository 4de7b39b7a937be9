"""The forecast of a plan: what one death costs, drawn over a whole run, against the machines under all of them."""

from __future__ import annotations

from statistics import fmean

import pytest

from benchmarks.studies.models import even
from orchestrator.planner.failure_cost import LEARNERS_MAX
from orchestrator.planner.fleet.recipes import fleet
from orchestrator.planner.fleet.run import simulate
from orchestrator.planner.forecast import forecast
from orchestrator.planner.sizing.model_sizes import Shapes
from orchestrator.recipe.config import Recipe
from outer.protocol.schedule import Budget

ELEMENTS = 8_000
SHAPES = Shapes(
    fragments=even(ELEMENTS, 8),
    parameter_bytes=4 * ELEMENTS,
    inner_state_bytes=8 * ELEMENTS,
    outer_state_bytes=(4 * ELEMENTS // 8,) * 8,
    step_tokens={"a": 768, "b": 768},
)


def recipe(learners=4, pools=None, sync=None, **told) -> Recipe:
    first = {"name": "a", "learners": learners // 2}
    tables = {
        "name": "foreseen",
        "pools": [first, {"name": "b", "learners": learners - learners // 2, "slowdown": 1.3}],
        "budget": {"syncer_steps": 10_000},
        "sync": {"H": 8} | (sync or {}),
        "fleet": {"detect_s": 2.0, "replace_s": 20.0, "start_s": 10.0, "pools": pools or []} | told,
    }
    return Recipe.model_validate(tables)


@pytest.mark.full
@pytest.mark.parametrize("quorum", [1, 3, "all"])
def test_what_is_drawn_agrees_with_the_machines_under_all_failures_at_once(quorum):
    """A unit lives five minutes of one-second steps: far denser than any fleet, and still they agree."""
    wanted = recipe(mtbf_hours=300.0 / 3600.0, sync={"quorum": quorum})
    told = forecast(wanted, SHAPES, 1.0, 50_000.0)
    seen = [
        simulate(fleet(wanted, SHAPES, 1.0, seed, budget=Budget(None, 10**9), failing=True), 1800.0, 300.0)[0]
        for seed in range(3)
    ]
    full = 768 * (2 + 2 / 1.3)  # tokens a second
    assert told.goodput.mean == pytest.approx(fmean(one.goodput for one in seen), abs=0.03)
    assert told.participation.mean == pytest.approx(fmean(one.participation for one in seen), abs=0.03)
    # While no commit is possible more steps are lost with each further death, which the draws do not know.
    committed = fmean(one.tokens_committed / one.seconds / full for one in seen)
    assert told.committed.mean == pytest.approx(committed, abs=0.08 if quorum == "all" else 0.03)
    assert told.uptime.mean > 0.999
    assert told.goodput.low < told.goodput.mean < told.goodput.high < 0.95


def test_goodput_is_that_of_lives_and_outages():
    """A life of 1,000 s, then 2 s until it is noticed, 20 s until there is hardware, 10 s to start, and its step."""
    told = forecast(recipe(mtbf_hours=1000.0 / 3600.0), SHAPES, 1.0, 500_000.0)
    assert told.goodput.mean == pytest.approx(1000.0 / (1000.0 + 2.0 + 20.0 + 10.0 + 0.6), abs=0.003)
    cost = told.failure_costs["a"]
    assert 12.0 <= cost.stepping_s < 14.0 < cost.contributing_s, "a joiner gives once it has stepped on a current base"


def test_the_quorum_of_all_is_seldom_there():
    told = forecast(recipe(mtbf_hours=0.5, sync={"quorum": "all"}), SHAPES, 1.0, 200_000.0)
    one = forecast(recipe(mtbf_hours=0.5), SHAPES, 1.0, 200_000.0)
    alive = 1800.0 / (1800.0 + 33.0)
    assert told.quorum.mean == pytest.approx(alive**4, abs=0.03) and told.quorum.mean < alive**4, "who steps again"
    assert one.quorum.mean > 0.999
    assert told.participation.mean > 0.99, "of commits, and there are none without everybody"


def test_a_spot_pool_is_away_for_its_share_of_the_day():
    told = forecast(recipe(pools=[{"name": "b", "spot": 0.5}]), SHAPES, 1.0, 30 * 86_400.0)
    assert told.goodput.mean == pytest.approx(0.75, abs=0.01)
    assert told.uptime.mean > 0.999


def test_a_pool_that_is_preempted_often_loses_alone():
    told = forecast(recipe(pools=[{"name": "b", "mtbf_hours": 0.1}]), SHAPES, 1.0, 100_000.0)
    assert told.unit_mtbf_s == {"a": 8766.0 * 3600.0, "b": 360.0}
    assert 0.94 < told.goodput.mean < 0.97


@pytest.mark.full
def test_of_many_learners_a_sample_is_driven_with_its_part_of_the_links():
    told = forecast(recipe(learners=4 * LEARNERS_MAX, mtbf_hours=1.0), SHAPES, 1.0, 10_000.0, trials=4)
    assert told.deaths == pytest.approx(4 * LEARNERS_MAX * 10_000.0 / 3600.0, rel=0.1)
    assert told.participation.mean > 0.9

    def crowded(learners: int) -> float:
        """A fragment from every learner takes 1.5 of the 2 s that a read may last, then 2.5: half of them come late."""
        pools = [{"name": "a", "learners": 2, "region": "x"}, {"name": "b", "learners": learners, "region": "y"}]
        bits = 8.0 * 4.0 * ELEMENTS / 8 * learners / 3.0
        links = [{"between": ["x", "y"], "gbit_s": bits / 1e9}]
        made = recipe(links=links, syncer_region="x").model_dump(mode="json", by_alias=True, exclude_none=True)
        made["fleet"]["pools"] = []
        found = forecast(Recipe.model_validate(made | {"pools": pools}), SHAPES, 4.0, 100.0, trials=2)
        return found.participation.mean

    few, many = crowded(LEARNERS_MAX // 2), crowded(8 * LEARNERS_MAX)
    assert 0.3 < few < 0.9
    assert many == pytest.approx(few, abs=0.1)


def test_a_pool_may_have_a_step_of_its_own():
    told = forecast(recipe(pools=[{"name": "b", "step_s": 4.0}]), SHAPES, 1.0, 1000.0, trials=2)
    same = forecast(recipe(), SHAPES, 1.0, 1000.0, trials=2)
    assert told.failure_costs["b"].tokens_s > same.failure_costs["b"].tokens_s + 1.0, "a step of it weighs more"
    assert not forecast(
        recipe(pools=[{"name": n, "step_s": 2.0} for n in "ab"]), SHAPES, None, 9.0, trials=2
    ).step_is_assumed


def test_a_learner_is_absent_once_though_it_loses_its_hardware_twice():
    """Half of the day without, and an hour in which a death costs six: the union, as uptime has it."""
    wanted = recipe(
        pools=[{"name": n, "spot": 0.5, "mtbf_hours": 10.0} for n in "ab"], replace_s=6 * 3600.0, start_s=0.0
    )
    told = forecast(wanted, SHAPES, 1.0, 30 * 86_400.0)
    assert told.goodput.mean == pytest.approx(0.385, abs=0.02)


def test_without_a_step_one_second_is_assumed_and_lock_step_is_not_foreseen():
    told = forecast(recipe(), SHAPES, None, None, trials=2)
    assert told.step_is_assumed and told.step_s == 1.0 and told.goodput.mean > 0.999
    assert forecast(recipe(sync={"overlap": "strict"}), SHAPES, 1.0, 100.0) is None
