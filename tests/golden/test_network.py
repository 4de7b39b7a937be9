"""Both machines over a network that loses, doubles and reorders, with learners that die, return and freeze."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learners.protocol.facts import Adopted, StateReceived
from orchestrator.checkers import suite
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import RunFinished
from outer.config import SyncConfig
from outer.protocol import events_effects as outer
from outer.protocol.facts import Committed, Refused
from outer.protocol.messages import STEPPING
from outer.protocol.syncer import Budget
from tests.golden.world import CALM, NetworkFaults, World
from tests.property_settings import examples

P, H, QUORUM = 2, 4, 2
SPEED = {"a": 0.1, "b": 0.13, "c": 0.21}
STORM_S, HEALING_S = 12.0, 6.0
COMMIT_S_MAX = 4.0  # a fragment's turn comes every H steps of about 0.13 s; reads may time out once

WEATHER = st.builds(
    NetworkFaults,
    lost=st.sampled_from([0.0, 0.1, 0.4]),
    doubled=st.sampled_from([0.0, 0.3]),
    unfetched=st.sampled_from([0.0, 0.2]),
    delay_s=st.sampled_from([0.0, 0.05, 0.6]),
)
PLANS = st.builds(
    SyncConfig,
    P=st.just(P),
    H=st.just(H),
    tau=st.integers(0, 3),
    adopt=st.sampled_from(["overwrite", "rebase"]),
    pacing=st.sampled_from(["clock", "quorum"]),
    participants=st.sampled_from(["eligible", "reported"]),
    grace=st.sampled_from(["adaptive", 0.0, 0.3]),
    read_timeout_s=st.just(0.4),
    lease_s=st.just(0.8),
    drain_s=st.just(2.0),  # two that leave may keep the third below the quorum for as long
    recover=st.sampled_from(["peer", "syncer"]),
)


class Impatient(World):
    """Ticks once between any two events, before the syncer wants one: nothing may come of it."""

    checked_at, probes = 0.0, 0

    def _drive_outer(self, event: outer.Event) -> None:
        between, wake_at = (self.checked_at + self.now) / 2, self.syncer.wake_at
        if self.checked_at < between < self.now and (wake_at is None or between < wake_at):
            effects = self.syncer.handle(between, outer.Tick())
            assert effects == [], f"at {between} something was due, but wake_at was {wake_at}"
            self.probes += 1
        self.checked_at = self.now
        super()._drive_outer(event)


def storm(
    sync: SyncConfig,
    network: NetworkFaults,
    seed: int,
    deaths: int,
    freezes: int,
    kind: type[World] = World,
    leaves: int = 0,
) -> World:
    """A run that is harassed for STORM_S and left in peace for HEALING_S."""
    chance = Random(seed)
    world = kind(sync=sync, learners=SPEED, quorum=QUORUM, budget=Budget(None, 10_000), seed=seed, network=network)
    for name in SPEED:
        world.start(name)
    for _ in range(deaths):
        name, at = chance.choice(list(SPEED)), chance.uniform(0.5, STORM_S - 3.0)
        world.at(at, lambda name=name: world.kill(name))  # type: ignore[misc]
        world.at(at + chance.uniform(0.0, 0.5), lambda name=name: world.bury(name))  # type: ignore[misc]
        world.at(at + chance.uniform(0.5, 2.0), lambda name=name: world.start(name))  # type: ignore[misc]
    for _ in range(freezes):
        name, at = chance.choice(list(SPEED)), chance.uniform(0.5, STORM_S - 3.0)
        seconds = chance.uniform(0.1, 2.5)
        world.at(at, lambda name=name, seconds=seconds: world.freeze(name, seconds))  # type: ignore[misc]
    for _ in range(leaves):
        name, at = chance.choice(list(SPEED)), chance.uniform(0.5, STORM_S - 3.0)
        world.at(at, lambda name=name: world.drain(name))  # type: ignore[misc]
        world.at(STORM_S, lambda name=name: come_back(world, name))  # type: ignore[misc]
    world.run(STORM_S)
    world.network = CALM
    world.run(STORM_S + HEALING_S)
    return world


def come_back(world: World, name: str) -> None:
    """Start a learner again once it has left."""
    if name not in world.units or world.units[name].exited:
        world.start(name)
    else:
        world.at(world.now + 0.1, lambda: come_back(world, name))


def commits(world: World) -> list[tuple[float, Committed]]:
    return [(said.at, said.fact) for said in world.said if isinstance(said.fact, Committed)]


def assert_safe(world: World) -> None:
    made = [fact for _, fact in commits(world)]
    for before, after in pairwise(made):
        assert before.syncer_step < after.syncer_step, "commits are in the order of t"
    for fragment in range(P):
        versions = [fact for fact in made if fact.fragment == fragment]
        for before, after in pairwise(versions):
            assert after.base_version == before.syncer_step, "each version is made from the one before"
    merged = Counter(
        (one.learner, one.incarnation, fact.fragment, fact.syncer_step) for fact in made for one in fact.participants
    )
    assert all(times == 1 for times in merged.values()), "a contribution merges once"
    assert all(len(fact.participants) >= QUORUM for fact in made), "nothing commits below K"
    for fragment, value in enumerate(world.values):
        covered = {
            (one.learner, one.incarnation, step)
            for fact in made
            if fact.fragment == fragment
            for one in fact.participants
            for step in range(one.base_step + 1, one.step + 1)
        }
        assert dict(value) == dict.fromkeys(covered, 1), "each covered step is in the value once, and no other"
    units = {
        (one.learner, one.incarnation, step)
        for fact in made
        for one in fact.participants
        for step in range(one.base_step + 1, one.step + 1)
    }
    assert world.syncer.tokens_committed == 10 * len(units), "a step of 10 tokens counts once, over all fragments"
    for each in world.units.values():
        counts = {n for value in each.values for (name, number, _), n in value.items() if (name, number) == each.key}
        assert counts <= {1}, "no step is in a learner's own value twice"
    adopted: dict[tuple[str, int, int], int] = {}
    for said in world.said:
        if isinstance(said.fact, Adopted):
            key = (said.writer, said.incarnation, said.fact.fragment)
            assert said.fact.version > adopted.get(key, -1), "no learner adopts an older version, or one twice"
            adopted[key] = said.fact.version


def assert_recovers(world: World) -> None:
    healed = [(at, fact) for at, fact in commits(world) if at > STORM_S]
    for fragment in range(P):
        times = [STORM_S, *(at for at, fact in healed if fact.fragment == fragment), STORM_S + HEALING_S]
        gaps = [after - before for before, after in pairwise(times)]
        assert max(gaps) <= COMMIT_S_MAX, f"fragment {fragment} commits at {times}"


STORMS = {
    "network": WEATHER,
    "seed": st.integers(0, 2**16),
    "deaths": st.integers(0, 3),
    "freezes": st.integers(0, 3),
    "leaves": st.integers(0, 2),
}


@examples(20)
@given(sync=PLANS, **STORMS)
def test_whatever_the_network_does_nothing_merges_twice_and_commits_resume_when_it_heals(
    sync: SyncConfig, network: NetworkFaults, seed: int, deaths: int, freezes: int, leaves: int
) -> None:
    world = storm(sync, network, seed, deaths, freezes, leaves=leaves)
    assert_safe(world)
    assert_recovers(world)


@examples(8)
@given(sync=PLANS, **STORMS)
def test_nothing_falls_due_before_the_syncer_asks_to_be_woken(
    sync: SyncConfig, network: NetworkFaults, seed: int, deaths: int, freezes: int, leaves: int
) -> None:
    world = storm(sync, network, seed, deaths, freezes, Impatient, leaves)
    assert_safe(world)
    assert isinstance(world, Impatient) and world.probes > 100


@examples(8)
@given(sync=PLANS, **STORMS)
def test_rebasing_neither_loses_nor_doubles_a_step_of_ones_own(
    sync: SyncConfig, network: NetworkFaults, seed: int, deaths: int, freezes: int, leaves: int
) -> None:
    world = storm(sync.model_copy(update={"adopt": "rebase"}), network, seed, deaths, freezes, leaves=leaves)
    assert_safe(world)
    based = {
        (said.writer, said.incarnation, said.fact.fragment): said.fact.after_step
        for said in world.said
        if isinstance(said.fact, Adopted) and said.fact.mode == "bootstrap"
    }
    for each in world.units.values():
        for fragment, value in enumerate(each.values):
            # Until the first version came from the syncer, what it did on this fragment was a copy's, and is dropped.
            if each.machine.phase != STEPPING or (*each.key, fragment) not in based:
                continue
            own = {(*each.key, step) for step in range(based[*each.key, fragment] + 1, each.machine.step + 1)}
            kept = {unit: count for unit, count in value.items() if unit[:2] == each.key}
            assert kept == dict.fromkeys(own, 1)


def test_overwhelmed_runs_are_harassed_indeed() -> None:
    """The storms above do reach what they are meant to reach."""
    sync = SyncConfig.model_validate({"P": P, "H": H, "tau": 2, "read_timeout_s": 0.4, "lease_s": 0.8})
    facts = [
        said.fact
        for seed in range(3)
        for network in (NetworkFaults(0.3, 0.3, 0.2, 0.6), NetworkFaults(0.1, 0.3, 0.2, 0.05))
        for said in storm(sync, network, seed=seed, deaths=3, freezes=3, leaves=1).said
    ]
    said = Counter(type(fact).__name__ for fact in facts)
    reasons = {fact.reason for fact in facts if isinstance(fact, Refused)}
    troubles = ("LeaseExpired", "LeaseRenewed", "LearnerFenced", "SpanReturned", "StepReopened", "ReadFailed")
    recoveries = ("DonorNamed", "Donated", "StateReceived", "DrainStarted")
    assert [name for name in (*troubles, *recoveries) if not said[name]] == []
    assert {"peer", "syncer"} == {fact.source for fact in facts if isinstance(fact, StateReceived)}
    assert {"doubled", "late"} <= reasons
    assert said["Committed"] > 80


def events_of(world: World) -> list[Event]:
    """The run's facts as its log would have them."""
    numbers: Counter[tuple[str, int]] = Counter()
    events = []
    for said in world.said:
        key = (said.writer, said.incarnation)
        events.append(Event(*key, numbers[key], said.at, said.fact))
        numbers[key] += 1
    return [*events, Event("orchestrator", 1, 0, world.now + 1.0, RunFinished("stopped", "enough"))]


@pytest.mark.full
@examples(8)
@given(sync=PLANS, **STORMS)
def test_every_checker_passes_the_log_of_a_storm(
    sync: SyncConfig, network: NetworkFaults, seed: int, deaths: int, freezes: int, leaves: int
) -> None:
    world = storm(sync, network, seed, deaths, freezes, leaves=leaves)
    verdicts = suite.check(events_of(world))
    assert [verdict for verdict in verdicts if verdict.status == "violated"] == []
