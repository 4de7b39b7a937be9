"""The fleet simulator: the production machines with durations, held against closed forms and a real log's checkers.

And the forecast of a plan, which is one such run, against lives and outages.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from random import Random
from unittest.mock import patch

import pytest

from benchmarks.studies.models import even
from orchestrator.analysis.checks import check
from orchestrator.planner import forecast as room
from orchestrator.planner.fleet import world as world_module
from orchestrator.planner.fleet.description import Fleet, FleetLink, FleetMember, Steady, Timing, constant
from orchestrator.planner.fleet.world import FleetNetwork, LinkNetwork, simulate
from orchestrator.planner.forecast import Forecast, forecast
from orchestrator.planner.sizing.model_sizes import Shapes
from orchestrator.recipe.config import Recipe
from orchestrator.simulation.log import read
from outer.config import SyncConfig
from outer.protocol.facts import Committed
from outer.protocol.schedule import Budget

TIMING = Timing(
    import_s=constant(3.0),
    compile_s=constant(3.0),
    detect_s=constant(0.3),
    merge_s=lambda elements, learners: 0.01,
    append_s=lambda elements: 0.02,
)


def fleet(rhythms, **changed) -> Fleet:
    sync = changed.pop("sync", SyncConfig())
    given = {
        "sync": sync,
        "quorum": 1,
        "fragments": even(24_000, sync.round_steps),
        "members": tuple(FleetMember(f"learner-t-{i}", 8, 800, rhythm) for i, rhythm in enumerate(rhythms)),
        "budget": Budget(None, 10**9),
    }
    return Fleet(**given | changed)


def test_through_deaths_every_promise_of_a_log_is_kept():
    lives = iter([math.inf, 60.0, 120.0, math.inf, *[math.inf] * 2])  # of the four first incarnations, then the others
    rhythms = [Steady(1.0, Random(i), noise=0.05) for i in range(4)]
    made = fleet(rhythms, death=lambda mean_s: next(lives), timing=TIMING, budget=Budget(None, 300))
    outcome, world = simulate(made, 1000.0)
    events, _ = read(world.context)
    assert {type(event.fact).__name__ for event in events} >= {"LearnerLost", "Donated"}
    assert [verdict for verdict in check(events) if verdict.status == "violated"] == []
    assert outcome.finished_at is not None and outcome.commits == 300
    assert 0.9 < outcome.goodput < 0.99


def test_what_a_unit_loses_by_dying_is_its_detection_and_restart():
    """Paced deaths: each costs what is left of a step, 0.3 s, imports, compiling and joining."""
    lives = iter([100.5, math.inf, *[193.7] * 3, math.inf])  # 200 s from death to death
    outcome, world = simulate(fleet([Steady(1.0)] * 2, death=lambda mean_s: next(lives), timing=TIMING), 900.0)
    steps = world.steps["learner-t-0"]
    pauses = [b.began - a.ended for a, b in pairwise(steps) if b.began > a.ended + 1e-9]
    assert len(pauses) == 4
    assert all(0.5 + 0.3 + 6.0 <= pause < 0.5 + 0.3 + 6.0 + 2.5 for pause in pauses)
    assert outcome.uptime == 1.0


def test_contributions_cross_for_each_learner_and_versions_once_for_a_region():
    rhythms, rounds = [Steady(1.0)] * 2, 5
    links = {("us", "eu"): FleetLink(1e6, 0.1), ("eu", "us"): FleetLink(1e6, 0.1)}
    members = tuple(FleetMember(f"learner-t-{i}", 8, 800, rhythm, region="us") for i, rhythm in enumerate(rhythms))
    budget = Budget(None, 24 * rounds)
    made = fleet(rhythms, members=members, links=links, syncer_region="eu", budget=budget)
    model = 4 * 24_000

    def moved(fleet: Fleet) -> Counter[tuple[str, str]]:
        return simulate(fleet, 1000.0)[1].network.regions.moved

    assert moved(made)["us", "eu"] == 2 * rounds * model
    assert moved(made)["eu", "us"] == rounds * model
    beside = replace(made, links={}, syncer_region="us")
    assert moved(beside)["us", "us"] == 4 * rounds * model, "without relays beside the syncer"


@pytest.mark.parametrize("tau", [2, 8])
def test_an_exchange_takes_one_read_and_one_notice_a_learner_and_one_fetch_a_region_and_stretches_no_round(tau):
    """Over a link of three steps. With two fetches at a time, one call with messages at a time, and a question to the
    syncer before each fetch nearby, a round of 24 steps took 71; with no more than tau = 2 steps open it took 96.
    """
    step_s, latency_s, steps = 0.02, 0.06, 24
    sync = SyncConfig.model_validate({"P": steps, "H": steps, "tau": tau})
    members = tuple(FleetMember(f"learner-t-{i}", 8, 800, Steady(step_s), region="us") for i in range(3))
    links = {("us", "eu"): FleetLink(1e9, latency_s), ("eu", "us"): FleetLink(1e9, latency_s)}
    made = fleet((), sync=sync, quorum=3, members=members, links=links, syncer_region="eu")
    asked = Counter[tuple[str, bool]]()  # by method, and whether it crosses the link

    class Counted(FleetNetwork):
        def carry(self, source, target, method, answer, happen, *args):
            if happen.__name__ == "_arrive":
                asked[method, "syncer" in (source.key[0], target.key[0])] += 1
            return super().carry(source, target, method, answer, happen, *args)

    with patch.object(world_module, "FleetNetwork", Counted):
        outcome, world = simulate(made, 15.0, 5.0)
    versions = len(world.commits) + steps  # with the first ones
    assert asked["fetch", True] <= versions + 2 * steps, "the others of the region get it from the one that asks"
    assert asked["read", True] <= 3 * versions and asked["inbox", True] <= 3 * versions
    assert asked["holds", False] <= 2 * versions and asked["received", False] <= 2 * versions, "nobody polls"
    rounds = outcome.commits / steps
    assert outcome.participation == 1.0 and 10.0 / step_s / rounds < 1.05 * steps
    took = [after.at - before.at for before, after in zip(world.commits, world.commits[steps:], strict=False)]
    assert max(took[steps:]) < 1.5 * steps * step_s, "no fragment waits for its turn"


def regions(mbit: float, worst_mbit: float = 0.0, lost: float = 0.0, setup_s: float = 0.0):
    """Four regions, 60 ms from the first, which has the syncer: the outcome, of each learner its share of the commits
    and the steps that it has in a commit.

    `worst_mbit`: of the last region's links. `lost`: share of the calls over them. `setup_s`: of each transfer, before
    its first byte leaves. Steps of 0.13 s, H = P = 24, tau = 2, quorum 1, fragments of 0.3 MB.
    """
    links, rng = {}, Random(1)
    for region in "bcd":
        bits = 1e6 * (worst_mbit if worst_mbit and region == "d" else mbit)
        links["a", region] = links[region, "a"] = FleetLink(bits, 0.03)
    members = tuple(FleetMember(each, 8, 800, Steady(0.13, Random(each), 0.03), region=each) for each in "abcd")
    timing = Timing(merge_s=lambda elements, learners: 0.01, append_s=lambda elements: 0.01)
    sync = SyncConfig.model_validate({"P": 24, "H": 24, "tau": 2})
    made = fleet(
        (), sync=sync, fragments=even(1_800_000, 24), members=members, links=links, syncer_region="a", timing=timing
    )

    class Rough(FleetNetwork):
        def carry(self, source, target, method, answer, happen, *args):
            if lost and "d" in (source.key[0], target.key[0]) and rng.random() < lost:
                return 0
            bulk = isinstance(answer, tuple) and self._size(target, method, answer) > 0.0
            if bulk and {source.key[0], target.key[0]} != {"a", "syncer"}:
                self._time.reach(setup_s, None, super().carry, source, target, method, answer, happen, *args)
                return 1
            return super().carry(source, target, method, answer, happen, *args)

        def lost_s(self):
            return 3.0

    with patch.object(world_module, "FleetNetwork", Rough):
        outcome, world = simulate(made, 60.0, 20.0)
    commits = [event.fact for event in read(world.context)[0] if isinstance(event.fact, Committed)][-outcome.commits :]
    parts = Counter(one.learner for commit in commits for one in commit.participants)
    steps = {name: sum(one.steps for c in commits for one in c.participants if one.learner == name) for name in "abcd"}
    return outcome, *({name: each[name] / len(commits) for name in "abcd"} for each in (parts, steps))


STEPS_S = 1.0 / 0.13


@pytest.mark.parametrize(
    ("mbit", "setup_s", "share", "merged"), [(50.0, 1.0, 0.9, 1.7), (20.0, 0.0, 1.0, 19.0), (10.0, 0.0, 0.3, 3.6)]
)
def test_learners_far_away_contribute_what_their_links_carry_and_rounds_stay_as_long(mbit, setup_s, share, merged):
    """At 10 Mbit/s a link carries 54 % of the fragments. Windows of a quarter of a round left each two steps."""
    outcome, shares, steps = regions(mbit, setup_s=setup_s)
    assert min(shares.values()) >= share and shares["a"] == 1.0
    assert min(steps.values()) >= merged
    assert max(outcome.steps.values()) / (outcome.commits / 24) <= 1.1 * 24


@pytest.mark.parametrize(("worst", "share"), [({"worst_mbit": 5.0}, 0.2), ({"lost": 0.02, "setup_s": 0.3}, 0.7)])
def test_a_link_of_a_tenth_of_the_rate_or_with_losses_delays_nobody_and_its_learner_still_contributes(worst, share):
    """At a tenth of the rate a link carries 27 % of the fragments. Where reads waited for their deadline, 2 % of lost
    calls cost all others a third of their commits.
    """
    outcome, shares, _ = regions(50.0, **worst)
    assert outcome.commits / 40.0 >= 0.95 * STEPS_S
    assert shares["d"] >= share and min(shares[name] for name in "abc") == 1.0


def test_a_link_carries_one_transfer_after_the_other():
    network = LinkNetwork({("a", "b"): FleetLink(8.0, 1.0)})
    assert [network.carry(0.0, 10, "a", "b"), network.carry(5.0, 10, "a", "b")] == [11.0, 21.0]
    assert network.carry(3.0, 10, "b", "a") == 3.0, "what is not described takes no time"
    assert network.moved["a", "b"] == 20


def test_waiting_for_all_costs_the_fast_and_a_grace_window_costs_nobody():
    """Section 8: half of eight learners are 28 % slower, and where all wait for all they step 86 % of the time."""
    stepping = {}
    for rule in ({"overlap": "strict", "quorum": "all", "grace": "infinite"}, {"quorum": 1}):
        speeds = [1.0] * 4 + [1.0 / 0.72] * 4
        rhythms = [Steady(speed, Random(number), 0.02) for number, speed in enumerate(speeds)]
        made = fleet(rhythms, sync=SyncConfig.model_validate(rule), quorum=8 if "overlap" in rule else 1, timing=TIMING)
        stepping[rule["quorum"]] = simulate(made, 200.0, 70.0)[0].goodput
    assert stepping == {"all": pytest.approx(0.86, abs=0.03), 1: pytest.approx(1.0, abs=0.01)}


# ------------------------------------------------------------------ the forecast of a plan

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


def test_without_a_step_one_second_is_assumed_and_what_cannot_be_simulated_has_no_forecast():
    told = told_of(recipe(), None)
    assert told.step_is_assumed and told.step_s == 1.0
    assert not told_of(recipe(pools=[{"name": n, "step_s": 2.0} for n in "ab"]), None).step_is_assumed
    assert forecast(recipe(sync={"overlap": "strict"}), SHAPES, 1.0) is None
    assert forecast(recipe(sync={"H": 2_000}, steps=10_000), SHAPES, 1.0) is None, "three rounds are too many steps"
