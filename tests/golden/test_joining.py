"""Both machines: learners that join from a peer's state, and learners that leave without losing a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from learners.protocol.facts import DonorFailed, StateReceived, StepFinished
from outer.config import SyncConfig
from outer.protocol.facts import Committed, DonorNamed, LearnerFenced
from outer.protocol.syncer import Budget
from tests.golden.world import World

T = TypeVar("T")
SPEED = {"a": 0.1, "b": 0.13, "c": 0.21}
H = 4


def world(speed: Mapping[str, float] = SPEED, quorum: int = 1, kind: type[World] = World, **sync: Any) -> World:
    given = {"P": 2, "H": H, "tau": 1, "read_timeout_s": 0.4, "lease_s": 0.8, "join_s": 15.0}
    made = kind(
        sync=SyncConfig.model_validate(given | sync), learners=speed, quorum=quorum, budget=Budget(None, 10_000)
    )
    for name in speed:
        made.start(name)
    made.run(4.0)
    return made


def facts(world: World, kind: type[T], writer: str = "", incarnation: int = 0) -> list[T]:
    said = (s for s in world.said if isinstance(s.fact, kind))
    return [
        s.fact for s in said if s.writer == (writer or s.writer) and s.incarnation == (incarnation or s.incarnation)
    ]


def restart(world: World, *names: str) -> None:
    for name in names:
        world.kill(name)
        world.bury(name)
    for name in names:
        world.start(name)


def kill_once_named(world: World, donor: str) -> None:
    world.run(20.0, stop=lambda: any(fact.donor == donor for fact in facts(world, DonorNamed)))
    world.kill(donor)


def merged(world: World, learner: str, incarnation: int) -> list[Committed]:
    return [
        commit
        for commit in facts(world, Committed)
        if any((one.learner, one.incarnation) == (learner, incarnation) for one in commit.participants)
    ]


def test_after_two_donors_that_failed_the_syncers_snapshot_is_taken() -> None:
    """Though a third could still give, and there is time to ask it."""
    one = world(SPEED | {"d": 0.1})
    restart(one, "a")
    kill_once_named(one, "b")
    kill_once_named(one, "c")
    one.run(20.0)
    assert [fact.donor for fact in facts(one, DonorNamed)] == ["b", "c"]
    assert [(fact.donor, fact.reason) for fact in facts(one, DonorFailed)] == [("b", "timeout"), ("c", "timeout")]
    assert [fact.source for fact in facts(one, StateReceived, "a", 2)] == ["syncer"]
    assert merged(one, "a", 2)


def test_commits_go_on_when_the_quorum_needs_a_joiner_that_has_no_base_yet() -> None:
    """No commit would ever bring it one: the syncer tells it of the current versions after a round's time."""
    one = world(quorum=3)
    restart(one, "a")
    at = one.syncer.committed_step
    one.run(9.0)
    assert facts(one, StateReceived, "a", 2)[0].source == "peer"
    assert one.syncer.committed_step > at + H
    assert merged(one, "a", 2)


# ------------------------------------------------------------------ leaving


def steps_of(world: World, learner: str) -> set[int]:
    return {s.fact.step for s in world.said if isinstance(s.fact, StepFinished) and s.writer == learner}


def committed_steps_of(world: World, learner: str) -> set[int]:
    parts = [one for fact in facts(world, Committed) for one in fact.participants if one.learner == learner]
    return {step for one in parts for step in range(one.base_step + 1, one.step + 1)}


def test_leaving_counts_for_the_quorum_until_nothing_is_left_to_give() -> None:
    one = world(quorum=3)
    one.drain("b")
    one.run(8.0)
    assert steps_of(one, "b") == committed_steps_of(one, "b")
    last = facts(one, Committed)[-1]
    assert {part.learner for part in last.participants} == set(SPEED), "then nothing commits below K"


def test_one_whose_last_steps_nobody_takes_leaves_at_its_deadline() -> None:
    one = world({"a": 0.1, "b": 0.1}, quorum=2, drain_s=3.0)
    one.kill("a")
    one.bury("a")
    one.leave("b")
    one.run(12.0)
    assert one.units["b"].exited.startswith("drained, but its last steps")
    assert [fact.reason for fact in facts(one, LearnerFenced)] == ["killed", "drained"]
