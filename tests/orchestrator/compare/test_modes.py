"""What `diloco compare` trains, and which recipes it cannot compare."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.compare.modes import arm, unfit
from orchestrator.recipe.config import Recipe
from tests.replay.shaken import recipe

ALL = recipe(20)  # two learners with batches of 2 and one of 4
ALIKE = Recipe.model_validate(ALL.canonical() | {"pools": [{"name": "a", "learners": 3, "batch_size": 4}]})


def changed(**tables: Any) -> Recipe:
    return Recipe.model_validate(ALIKE.canonical() | tables)


def test_both_ways_change_nothing_but_faults_and_pools_that_take_what_is_there() -> None:
    pool = {"name": "a", "learners": 3, "max": 6, "batch_size": 4, "opportunistic": True}
    given = changed(pools=[pool], chaos={"mtbf_s": 9.0})
    made = arm(given)
    assert not made.chaos.active and not made.pools[0].opportunistic
    assert made.canonical() | {"chaos": 0, "pools": 0} == given.canonical() | {"chaos": 0, "pools": 0}


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"sync": ALIKE.canonical()["sync"] | {"overlap": "strict"}}, "learners that wait for each other"),
        ({"eval": {"every": 0}}, "leaves nothing to compare"),
        ({"pools": [{"name": "a", "batch_size": 2}, {"name": "b", "batch_size": 3}]}, "5 samples cannot be shared"),
        ({"pools": [{"name": "a", "learners": 2, "resources": {"CPU": 1, "GPU": 1}}]}, "pool a has GPUs"),
        (
            {"pools": [*ALIKE.canonical()["pools"], {"name": "far", "region": "far", "joined": True}],
             "durability": {"store": "kept"}},
            "pool far is in a cluster of its own",
        ),
    ],
)  # fmt: skip
def test_a_recipe_that_cannot_be_compared_is_told_why(tables: dict[str, Any], words: str) -> None:
    assert [*unfit(changed(eval={"every": 6}))] == []
    assert words in "".join(map(str, unfit(changed(**{"eval": {"every": 6}} | tables))))
