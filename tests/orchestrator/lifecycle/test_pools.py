"""Opportunistic pools: whom they take and let go as places come and go, and how they are kept from thrashing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.eventlog.facts import PoolScaled
from orchestrator.lifecycle.actions import AskToLeave, Release, Start
from orchestrator.lifecycle.controller import Controller, State
from orchestrator.lifecycle.pools import HOLD_S, HOLD_S_MAX, LET_GO_S, SETTLED_S, STAY_S, NodeFollower
from orchestrator.lifecycle.requests import problems
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.problems import InputError
from orchestrator.recipe.toml_text import parse
from orchestrator.recipe.validation import problems as recipe_problems

SPOT = {"name": "spot", "learners": 1, "max": 3, "opportunistic": True}


def recipe(*pools: dict[str, Any], quorum: int | str = 1, **sync: Any) -> Recipe:
    tables = {"name": "demo", "budget": {"syncer_steps": 100}, "sync": {"quorum": quorum} | sync}
    return Recipe.model_validate(tables | {"pools": pools or [SPOT]})


def controller(*pools: dict[str, Any], quorum: int = 1) -> Controller:
    made = recipe(*pools, quorum=quorum)
    return Controller(made.learners, backoff_s=1.0, hang_s=20.0, pools=made.pools, quorum=quorum)


def run(made: Controller, name: str) -> None:
    incarnation = made.units[name].incarnation.number + 1
    made.started(name, incarnation)
    made.answered(name, incarnation, node="node-of-" + name)


def names(*indices: int) -> tuple[str, ...]:
    return tuple(f"learner-spot-{index}" for index in indices)


def test_a_place_that_stays_free_is_taken_and_the_log_says_by_whom() -> None:
    made = recipe()
    local = Controller(made.learners, backoff_s=1.0, hang_s=20.0, pools=made.pools, quorum=1, local=True)
    assert local.claims() == [], "a Ray of the run's own has no nodes that come"
    made = controller()
    assert made.claims() == list(names(1, 2))
    assert [each.learner for each in made.advance(0.0)] == list(names(0))
    run(made, "learner-spot-0")
    assert made.follow(1.0, {"learner-spot-2"}) == []
    found = made.follow(1.0 + SETTLED_S, {"learner-spot-2"})
    assert found == [PoolScaled("spot", 2, names(2), (), "a place has come free for it")]
    assert made.advance(4.0) == [Start("learner-spot-2")]
    assert made.claims() == list(names(1)), "the others wait on"
    made = controller()
    for now in range(20):  # it comes and goes between two looks
        assert made.follow(float(now), {"learner-spot-1"} if now % 2 else set()) == []


def lost(made: Controller, name: str, now: float) -> None:
    made.lost(now, name, made.units[name].incarnation.number)


def test_a_learner_whose_place_is_gone_for_long_is_let_go_and_asks_for_one_again() -> None:
    made = controller(SPOT | {"learners": 2})
    made.advance(0.0)
    for name in names(0, 1):
        run(made, name)
    lost(made, "learner-spot-0", 100.0)
    assert made.follow(50.0, set()) == made.follow(99.0, names(0, 1)) == [], "it finds another place in time"
    assert made.follow(100.0, set()) == []
    assert made.follow(100.0 + LET_GO_S - 0.1, set()) == []
    record, released = made.follow(100.0 + LET_GO_S, set())
    assert isinstance(record, PoolScaled) and (record.learners, record.removed) == (1, names(0))
    assert released == Release("learner-spot-0"), "its place may never come back: another is asked for"
    assert made.units["learner-spot-0"].state is State.DONE
    assert made.pools.members["spot"] == list(names(1)), "the one that runs stays, though it is not the first"
    assert made.claims() == list(names(0, 2))


def test_one_that_already_asks_ray_for_an_incarnations_place_is_told_to_leave() -> None:
    made = controller(SPOT | {"learners": 2})
    made.advance(0.0)
    run(made, "learner-spot-1")
    made.started("learner-spot-0", 1)
    made.follow(0.0, set())
    _, asked = made.follow(LET_GO_S, set())
    assert isinstance(asked, AskToLeave) and (asked.learner, asked.incarnation) == ("learner-spot-0", 1)
    assert made.claims() == ["learner-spot-2"], "until it has left"


@pytest.mark.parametrize(("pools", "quorum"), [([SPOT | {"learners": 2, "min": 2}], 1), ([SPOT | {"learners": 2}], 2)])
def test_none_is_let_go_below_min_or_the_quorum(pools: list[dict[str, Any]], quorum: int) -> None:
    made = controller(*pools, quorum=quorum)
    made.advance(0.0)
    assert made.follow(0.0, set()) == made.follow(1e6, set()) == []


def test_a_pool_whose_nodes_come_and_go_takes_them_later_each_time() -> None:
    follower, now, waits = NodeFollower("spot"), 0.0, []
    for _ in range(8):
        since = now
        while not follower.look(now, ["a"], [], 1).added:
            now += 1.0
        waits.append(now - since)
        now += 5.0
        while not follower.look(now, [], ["a"], 1).removed:
            now += 1.0
    assert waits[0] == SETTLED_S
    assert waits[1:4] == [HOLD_S, 2 * HOLD_S, 4 * HOLD_S]
    assert max(waits) == waits[-1] == HOLD_S_MAX
    follower.look(now, ["a"], [], 1)
    assert follower.look(now + HOLD_S_MAX, ["a"], [], 1).added == ("a",)
    now += HOLD_S_MAX + STAY_S
    follower.look(now, [], ["a"], 1)
    assert follower.look(now + LET_GO_S, [], ["a"], 1).removed == ("a",)
    follower.look(now + 20.0, ["a"], [], 1)
    assert follower.look(now + 20.0 + SETTLED_S, ["a"], [], 1).added == ("a",), "it had stayed long"


def test_a_later_orchestrator_wants_what_an_earlier_one_left() -> None:
    made = controller({"name": "base"}, SPOT, quorum=1)
    [record] = made.rejoin(["learner-spot-2", "learner-base-0", "learner-spot-9"])
    assert record == PoolScaled("spot", 2, names(0, 2), names(1), "the run goes on"), "the other may have let 1 go"
    assert Start("learner-spot-2") in made.advance(0.0)


def test_a_learner_that_goes_on_from_its_own_state_has_time_to_find_a_place() -> None:
    made = controller(SPOT | {"learners": 2})
    made.advance(0.0)
    run(made, "learner-spot-0")
    made.started("learner-spot-1", 4, resumed=True)
    assert made.follow(0.0, set()) == made.follow(1e3, set()) == []
    lost(made, "learner-spot-1", 1e3)  # its start took too long
    made.follow(1e3, set())
    assert made.pools.sizes["spot"] == 2 and made.follow(1e3 + LET_GO_S, set())


def test_a_pool_below_what_is_needed_does_not_wait_to_take_a_place() -> None:
    follower = NodeFollower("spot")
    for now in (0.0, SETTLED_S):
        follower.look(now, ["a"], [], 1)
    for now in (3.0, 3.0 + LET_GO_S):
        found = follower.look(now, [], ["a"], 1)
    assert "takes nobody" in found.reason
    assert not any(follower.look(now, ["b"], [], 1) for now in (19.0, 22.0))
    assert follower.look(23.0, ["b"], ["c"], 0).added == ("b",)


@given(
    looks=st.lists(
        st.tuples(
            st.floats(0.5, 30.0),
            st.sets(st.sampled_from(names(0, 1, 2, 3))),
            st.dictionaries(st.sampled_from(names(0, 1, 2, 3)), st.sampled_from(["up", "left", "lost"])),
        ),
        max_size=40,
    ),
    least=st.integers(0, 2),
)
def test_whatever_ray_says_a_pool_stays_between_min_and_max_and_the_log_adds_up(
    looks: list[tuple[float, set[str], dict[str, str]]], least: int
) -> None:
    made = controller(SPOT | {"learners": 2, "min": least, "max": 4}, {"name": "base"}, quorum=1)
    known, now = {"learner-spot-0", "learner-spot-1"}, 0.0
    for seconds, placed, happens in looks:
        now += seconds
        for started in made.advance(now):
            assert isinstance(started, Start)
            made.started(started.learner, made.units[started.learner].incarnation.number + 1)
        for name, what in happens.items():
            if (unit := made.units.get(name)) is None or unit.state in (State.WAITING, State.DONE):
                continue
            if what == "up":
                made.answered(name, unit.incarnation.number)
            elif what == "left":
                made.left(name, unit.incarnation.number)
            else:
                lost(made, name, now)
        for action in made.follow(now, placed):
            if isinstance(action, PoolScaled):
                assert known.isdisjoint(action.added) and known.issuperset(action.removed)
                known = (known | set(action.added)) - set(action.removed)
                assert action.learners == len(known)
        assert least <= made.pools.sizes["spot"] <= 4
        assert set(made.pools.members["spot"]) == known == {name for name in made.wanted if "spot" in name}


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="give max"):
        parse({"name": "a", "budget": {"syncer_steps": 9}, "pools": [{"name": "spot", "opportunistic": True}]})
    [problem] = [each for each in recipe_problems(recipe(quorum="all")) if "opportunistic" in each.field]
    assert problem.fix == "give the quorum as a number"
    assert any("lock step" in each.message for each in recipe_problems(recipe(overlap="strict")))
    [problem] = problems(recipe(), {"spot": 1}, "spot", 2, local=False)
    assert "follows the nodes" in problem.message
    assert controller().scale(0.0, "spot", {"learners": 2}) == [], "an old request is not heard"
