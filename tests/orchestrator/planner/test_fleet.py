"""The fleet simulator: the production machines with durations, held against closed forms and a real log's checkers."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from benchmarks.studies import bandwidth_model
from benchmarks.studies.models import even
from orchestrator.checkers.suite import check
from orchestrator.planner.fleet.description import (
    Fleet,
    FleetFault,
    FleetLink,
    FleetMember,
    SlowPeriods,
    Steady,
    Timing,
    Varying,
    constant,
)
from orchestrator.planner.fleet.ports import LinkNetwork
from orchestrator.planner.fleet.world import covered_s, simulate
from outer.config import SyncConfig
from outer.protocol.schedule import Budget
from tests.orchestrator.order import canonical

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
        "warm": True,
    }
    return Fleet(**given | changed)


def test_a_fleet_is_the_same_course_every_time():
    def course():
        rhythms = [
            Varying(Steady(1.0), Random(i), noise=0.1, slow_periods=SlowPeriods(30.0, 10.0, 2.0)) for i in range(3)
        ]
        return simulate(fleet(rhythms), 120.0)[0]

    assert course() == course()


def test_through_deaths_and_comings_every_promise_of_a_log_is_kept():
    faults = (
        FleetFault("kill", "learner-t-1", 60.0),
        FleetFault("kill", "learner-t-2", 120.0),
        FleetFault("leave", "learner-t-3", 200.0),
        FleetFault("join", "learner-t-3", 230.0),
    )
    rhythms = [Varying(Steady(1.0), Random(i), noise=0.05) for i in range(4)]
    made = fleet(rhythms, faults=faults, timing=TIMING, budget=Budget(None, 300), recorded=True)
    outcome, world = simulate(made, 1000.0)
    events = world.context.events()
    assert {type(event.fact).__name__ for event in events} >= {
        "LearnerLost",
        "Donated",
        "DrainStarted",
    }
    assert [verdict for verdict in check(canonical(events)) if verdict.status == "violated"] == []
    assert outcome.finished_at is not None and outcome.commits == 300
    assert 0.9 < outcome.goodput < 0.99


def test_what_a_unit_loses_by_dying_is_its_detection_and_restart():
    """Paced deaths: each costs what is left of a step, 0.3 s, imports, compiling and joining."""
    faults = tuple(FleetFault("kill", "learner-t-0", 100.5 + 200.0 * i) for i in range(4))
    outcome, world = simulate(fleet([Steady(1.0)] * 2, faults=faults, timing=TIMING), 900.0)
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
    outcome, _ = simulate(made, 1000.0)
    model = 4 * 24_000
    assert outcome.moved["us", "eu"] == 2 * rounds * model
    assert outcome.moved["eu", "us"] == rounds * model
    cold, _ = simulate(replace(made, warm=False), 1000.0)
    assert cold.moved["eu", "us"] == (rounds + 1) * model, "and the first versions"
    beside, _ = simulate(replace(made, links={}, syncer_region="us"), 1000.0)
    assert beside.moved["us", "us"] == 4 * rounds * model, "without relays beside the syncer"


def test_an_equal_share_of_every_fragment_goes_to_each_shard():
    regions = ("a", "b", "c", "d")
    members = tuple(FleetMember(f"learner-{r}-0", 8, 800, Steady(1.0), region=r) for r in regions)
    made = fleet([], members=members, shards=regions, syncer_region="a", budget=Budget(None, 48))
    outcome, _ = simulate(made, 1000.0)
    out = {pair: size for pair, size in outcome.moved.items() if pair[0] != pair[1]}
    up_and_down = out["a", "b"], out["c", "d"], out["d", "a"]
    assert max(up_and_down) == min(up_and_down)
    assert sum(size for (source, _), size in out.items() if source == "b") == pytest.approx(
        0.75 * (2 + 2) * 4 * 24_000, rel=0.02
    ), "three quarters of two rounds, up and down"


@pytest.mark.parametrize("share", [0.6, 0.95, 1.2])
def test_over_links_that_conserve_bytes_the_machines_are_as_busy_as_the_simpler_account_has_it(share):
    """Lock-step, a shard in each of four datacenters; `share`: of what has to leave one in a step of a second."""
    elements, regions = 240_000, [f"d{i}" for i in range(4)]
    bits = share * 0.75 * elements * (32 + 32) / 24
    simple = bandwidth_model.simulate(
        bandwidth_model.Fleet(1.0, 4, bits, bandwidth_model.even(elements, 24), bits_up=32, bits_down=32)
    )
    links = {(a, b): FleetLink(bits, 0.0, f"out of {a}") for a in regions for b in regions if a != b}
    rule = SyncConfig(overlap="strict", quorum="all", grace="infinite", read_timeout_s=100.0, transfer_s=100.0)
    members = tuple(FleetMember(f"learner-{r}-0", 8, 800, Steady(1.0), region=r) for r in regions)
    told = {"sync": rule, "quorum": 4, "fragments": even(elements, 24), "members": members, "links": links}
    outcome, _ = simulate(fleet([], syncer_region="d0", shards=tuple(regions), **told), 160.0, 60.0)
    assert outcome.goodput == pytest.approx(min(1.0, share), abs=0.01)
    assert outcome.goodput == pytest.approx(simple.utilisation, abs=0.01)


def test_a_link_carries_one_transfer_after_the_other_and_links_of_one_pipe_share_it():
    network = LinkNetwork(
        {("a", "b"): FleetLink(8.0, 1.0), ("c", "b"): FleetLink(8.0, 0.0, "in"), ("d", "b"): FleetLink(8.0, 0.0, "in")}
    )
    assert [network.carry(0.0, 10, "a", "b"), network.carry(5.0, 10, "a", "b")] == [11.0, 21.0]
    assert [network.carry(0.0, 10, "c", "b"), network.carry(0.0, 10, "d", "b")] == [10.0, 20.0]
    assert network.carry(3.0, 10, "b", "a") == 3.0, "what is not described takes no time"
    assert network.moved["a", "b"] == 20


def test_covered_time_is_a_union():
    assert covered_s([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0), (5.5, 5.7)]) == 4.0
