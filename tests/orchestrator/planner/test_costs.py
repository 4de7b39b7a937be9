"""What keeping a run costs: its log grows with its steps, and nothing else does; commits and checkpoints by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.planner.sizing.costs import CONSTANTS, EARLIER, Upkeep, storage, upkeep
from orchestrator.planner.sizing.model_sizes import Shapes
from orchestrator.recipe.config import Recipe
from outer.protocol.fragments import Fragment, Tensor

ROOT = Path(__file__).resolve().parents[3]
VALUES = [10**9 // 6] * 24  # bytes of each fragment: 4 GB


def planned(steps: int = 1000, learners: int = 64, step_s: float | None = 1.0, **tables: Any) -> Upkeep:
    given = {
        "name": "run",
        "sync": {"P": 24, "H": 48},
        "pools": [{"name": "p", "learners": learners}],
        "budget": {"syncer_steps": steps},
    }
    return upkeep(Recipe.model_validate(given | tables), VALUES, steps, step_s, step_s)


def test_the_log_has_so_many_bytes_for_each_step_commit_and_contribution() -> None:
    of_a_step = 64 * 15.0 + 0.5 * (74.0 + 64 * 39.0)
    assert planned().log_run_bytes == pytest.approx(1000 * of_a_step)
    assert planned().log_day_bytes == pytest.approx(86_400 * of_a_step)
    assert planned(step_s=2.0).log_day_bytes == pytest.approx(43_200 * of_a_step)
    assert planned(step_s=None).log_day_bytes is None


def test_no_time_depends_on_the_age_of_the_run() -> None:
    young, old = planned(steps=10**5), planned(steps=10**7)
    assert (young.failover_s, young.failover_silent_s, young.end_s) == (
        old.failover_s,
        old.failover_silent_s,
        old.end_s,
    )
    assert old.check_core_s == pytest.approx(100 * young.check_core_s), "it reads the whole log"
    assert planned(steps=10).end_s < young.end_s, "a short run has a shorter tail"


def test_a_failover_takes_longer_for_large_values_and_for_a_syncer_that_is_silent() -> None:
    told = planned(run={"syncer_lease_s": 7.0})
    assert told.failover_s == pytest.approx(CONSTANTS["failover_s"].value + 4.0, abs=1e-3), "4 GB at 1 GB/s"
    assert told.failover_silent_s == pytest.approx(told.failover_s + 7.0)


def test_each_constant_names_a_benchmark_that_is_there_or_was_at_a_commit_or_says_that_it_is_assumed() -> None:
    sources = {constant.source for constant in CONSTANTS.values()}
    told = [source for source in sources if source != "assumed" and not source.endswith(EARLIER)]
    assert [source for source in told if not (ROOT / source).exists()] == []


def test_a_commit_is_parameters_and_outer_state_and_a_round_writes_all_of_them_once() -> None:
    """Two fragments of 100 and 300 elements with momentum, H = 4, half a second a step, three learners."""
    fragments = tuple(Fragment(i, (Tensor(f"t{i}", (n,), "float32"),)) for i, n in enumerate((100, 300)))
    shapes = Shapes(fragments, 1600, 3200, (400, 1200), {"p": 8})
    raw = {"name": "run", "sync": {"H": 4, "P": 2}, "pools": [{"name": "p", "learners": 3}], "budget": {"tokens": 1}}
    of = [Recipe.model_validate(raw | {"durability": {"mode": mode}})
          for mode in ("journal", "checkpoint")]  # fmt: skip
    cost, without = (storage(recipe, shapes, 0.5) for recipe in of)
    assert (cost.commit_bytes, cost.journal_per_second_bytes) == (1600.0, 3200 / 2.0)
    assert cost.journal_bytes == 3200 + 32 * 1600
    assert (without.commit_bytes, without.journal_per_second_bytes, without.journal_bytes) == (0.0, 0.0, 0)
    assert cost.checkpoint_bytes == without.checkpoint_bytes == 3200 + 3 * (1600 + 3200 + 1600)
    assert storage(of[0], shapes, None).journal_per_second_bytes is None, "not guessed"
