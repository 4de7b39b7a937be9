"""A plan of learners that come and go: the fewest, the most, and what one that joins fetches."""

from __future__ import annotations

from typing import Any

import pytest

from learners.training import state_arrays as state
from learners.training import task
from learners.training.trainer import Trainer
from learners.training.tree import deal
from orchestrator.planner.sizing.model_sizes import shapes_of
from orchestrator.recipe.toml_text import load
from orchestrator.recipe.validation import resolve
from tests.orchestrator.planner.test_planner import RECIPES, planned, recipe

ELASTIC = [{"name": "a", "learners": 3, "min": 2, "max": 5}, {"name": "b", "learners": 2, "min": 1, "max": 2}]


@pytest.mark.parametrize(
    ("quorum", "says"),
    [
        (1, None),
        (2, "with its pools at their min without pool a (2 of 3 learners) only 1 are left"),
        (3, "with its pools at their min only 3 learners are left"),
        (4, "with its pools at their min only 3 learners are left"),
        (5, "is every one of 5 learners"),
    ],
)
def test_the_quorum_is_held_against_the_fewest_learners_that_scaling_leaves(quorum: int, says: str | None) -> None:
    found = [warning.message for warning in planned(recipe(pools=ELASTIC, sync={"quorum": quorum})).warnings]
    assert len(found) == (says is not None)
    assert says is None or says in found[0]


def test_a_pool_that_may_go_altogether_counts_as_gone_beside_one_that_stays() -> None:
    spot = [{"name": "a", "learners": 2, "min": 2}, {"name": "b", "learners": 4}]
    (warning,) = planned(recipe(pools=spot, sync={"quorum": 2})).warnings
    assert "only 2 learners are left" in warning.message
    assert planned(recipe(pools=spot[1:], sync={"quorum": 2})).warnings == (), "no min at all: as they start"


def test_regions_are_counted_by_the_learners_that_stay() -> None:
    pools = [pool | {"region": region} for pool, region in zip(ELASTIC, ("west", "east"), strict=True)]
    found = [warning.message for warning in planned(recipe(pools=pools, sync={"quorum": 2})).warnings]
    assert [("pool a (2 of 3" in message, "region west (2 of 3" in message) for message in found] == [
        (True, False),
        (False, True),
    ]


def test_a_plan_says_whether_the_pools_find_a_place_at_their_max() -> None:
    fits = planned(recipe(pools=ELASTIC, sync={"quorum": 1}), nodes=["CPU=8.2"])
    assert (fits.ok, fits.warnings) == (True, ())
    assert fits.at_max is not None and len(fits.at_max.learners) == 7
    short = planned(recipe(pools=ELASTIC, sync={"quorum": 1}), nodes=["CPU=7.2"])
    assert short.ok, "it can start"
    assert short.at_max is not None
    (lost,) = short.at_max.shortfalls
    assert (lost.who, lost.units) == ("b", 1) and "room for 1 of 2" in lost.reason
    assert planned(nodes=["CPU=5.2"]).at_max is None, "no pool may grow"


# ------------------------------------------------------------------ joining


@pytest.mark.full
def test_a_peer_gives_a_joiner_what_its_trainer_holds() -> None:
    resolved = resolve(load(RECIPES / "demo.toml"))
    built = task.load(resolved.task, resolved.data, resolved.seed, dict(resolved.model))
    held = state.pack(Trainer(built, deal(built, resolved.sync), resolved.inner, seed=0).state_leaves())
    assert planned(resolved, shapes_of(resolved)).traffic.donation_bytes == state.size(held)


@pytest.mark.parametrize("sync", [{"recover": "syncer"}, {"overlap": "strict", "quorum": "all"}])
def test_who_starts_from_the_syncer_is_given_nothing_by_a_peer(sync: dict[str, Any]) -> None:
    assert planned(recipe(sync=sync)).traffic.donation_bytes is None


def test_a_peers_state_that_comes_too_late_is_warned_of() -> None:
    # 1400 bytes of parameters and 2800 of inner state are 33,600 bits; 60 s are the deadline.
    narrow = ["CPU=2.2,name=n,bandwidth=5.5e-7", "CPU=9,bandwidth=1"]
    wide = [narrow[0].replace("5.5e-7", "5.7e-7"), narrow[1]]
    few = {"pools": [{"name": "a", "learners": 2}, {"name": "b", "learners": 2}], "sync": {"read_timeout_s": 60}}
    (warning,) = planned(recipe(**few), nodes=narrow).warnings
    assert warning.field == "sync.transfer_s"
    assert "a peer's state of 4.1 KiB takes 61.1 s over n" in warning.message
    assert planned(recipe(**few), nodes=wide).warnings == ()
    from_syncer = few | {"sync": {"read_timeout_s": 60, "recover": "syncer"}}
    assert planned(recipe(**from_syncer), nodes=narrow).warnings == ()


def test_an_opportunistic_pool_needs_a_place_for_its_min_alone() -> None:
    spot = {"name": "b", "learners": 2, "max": 8, "opportunistic": True}
    pools = [{"name": "a", "learners": 3, "min": 3}, spot]
    found = planned(recipe(pools=pools, sync={"quorum": 1}), nodes=["CPU=4.2"])
    assert found.ok
    needed = planned(recipe(pools=[pools[0], spot | {"min": 1}], sync={"quorum": 1}), nodes=["CPU=4.2"])
    assert [limit.message.partition(":")[0] for limit in needed.limits] == ["b"]
