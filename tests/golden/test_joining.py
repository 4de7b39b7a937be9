"""Both machines: learners that join from a peer's state, and learners that leave without losing a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeVar

import pytest

from learners.protocol.facts import DonorFailed, PhaseEntered, StateReceived, StepFinished
from outer.config import SyncConfig
from outer.protocol.facts import Committed, DonorNamed, DrainStarted, LearnerFenced
from outer.protocol.messages import DRAINING, STEPPING, Drain
from outer.protocol.syncer import RESEND_S, Budget
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


def test_within_the_first_round_nobody_is_asked_for_a_state() -> None:
    started = world()
    assert facts(started, DonorNamed) == []
    assert {fact.source for fact in facts(started, StateReceived)} == {"syncer"}


def test_a_donor_that_dies_half_way_is_replaced_by_another() -> None:
    one = world()
    restart(one, "a")
    one.kill("b")  # it was named a moment ago
    one.at(one.now + 0.5, lambda: one.bury("b"))
    one.run(14.0)
    assert [fact.donor for fact in facts(one, DonorNamed)] == ["b", "c"]
    assert [(fact.donor, fact.reason) for fact in facts(one, DonorFailed)] == [("b", "timeout")]
    assert [fact.donor for fact in facts(one, StateReceived, "a", 2)] == ["c"]
    assert merged(one, "a", 2)


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


def test_one_that_is_not_alive_is_not_named() -> None:
    one = world()
    restart(one, "a")
    one.kill("b")
    one.freeze("c", 9.0)
    one.run(20.0)
    assert [fact.donor for fact in facts(one, DonorNamed)] == ["b"], "c is frozen when b has failed"
    assert [fact.source for fact in facts(one, StateReceived, "a", 2)] == ["syncer"]


def test_two_joiners_at_once_ask_different_donors() -> None:
    one = world(SPEED | {"d": 0.1})
    restart(one, "a", "b")
    one.run(8.0)
    assert [(fact.learner, fact.donor) for fact in facts(one, DonorNamed)] == [("a", "c"), ("b", "d")]
    for name in ("a", "b"):
        assert [fact.source for fact in facts(one, StateReceived, name, 2)] == ["peer"]
        assert merged(one, name, 2)


def test_when_all_die_at_once_nobody_is_whole_and_all_start_from_the_syncer() -> None:
    one = world()
    before = one.syncer.committed_step
    restart(one, *SPEED)
    one.run(8.0)
    assert {fact.source for name in SPEED for fact in facts(one, StateReceived, name, 2)} == {"syncer"}
    assert facts(one, DonorNamed) == []
    assert one.syncer.committed_step > before + H


def test_a_joiner_is_no_donor_before_every_fragment_came_from_the_syncer() -> None:
    one = world({"a": 0.1, "b": 0.1})
    restart(one, "a")
    one.run(one.now + 0.05)
    assert one.units["a"].machine.phase == STEPPING
    restart(one, "b")  # only a could give, and a is not whole
    one.run(8.0)
    assert [(fact.learner, fact.donor) for fact in facts(one, DonorNamed)] == [("a", "b")]
    assert [fact.source for fact in facts(one, StateReceived, "b", 2)] == ["syncer"]


def test_commits_go_on_when_the_quorum_needs_a_joiner_that_has_no_base_yet() -> None:
    """No commit would ever bring it one: the syncer tells it of the current versions after a round's time."""
    one = world(quorum=3)
    restart(one, "a")
    at = one.syncer.committed_step
    one.run(9.0)
    assert facts(one, StateReceived, "a", 2)[0].source == "peer"
    assert one.syncer.committed_step > at + H
    assert merged(one, "a", 2)


@pytest.mark.parametrize("recover", ["peer", "syncer"])
def test_recover_chooses_where_a_joiners_state_comes_from(recover: str) -> None:
    one = world(recover=recover)
    restart(one, "a")
    one.run(8.0)
    assert [fact.source for fact in facts(one, StateReceived, "a", 2)] == [recover]


# ------------------------------------------------------------------ leaving


def steps_of(world: World, learner: str) -> set[int]:
    return {s.fact.step for s in world.said if isinstance(s.fact, StepFinished) and s.writer == learner}


def committed_steps_of(world: World, learner: str) -> set[int]:
    parts = [one for fact in facts(world, Committed) for one in fact.participants if one.learner == learner]
    return {step for one in parts for step in range(one.base_step + 1, one.step + 1)}


@pytest.mark.parametrize("asked_by", ["orchestrator", "host"])
def test_a_learner_that_leaves_loses_no_step(asked_by: str) -> None:
    one = world()
    if asked_by == "orchestrator":
        one.drain("b")
    else:
        one.leave("b")
    at = max(steps_of(one, "b"))
    one.run(8.0)
    assert one.units["b"].exited == "drained"
    assert max(steps_of(one, "b")) <= at + 1, "it steps no more, but for the step under way"
    assert steps_of(one, "b") == committed_steps_of(one, "b")
    assert [fact.phase for fact in facts(one, PhaseEntered, "b")][-2:] == [DRAINING, "stopped"]
    assert [fact.learner for fact in facts(one, DrainStarted)] == ["b"]
    assert [(fact.learner, fact.reason) for fact in facts(one, LearnerFenced)] == [("b", "drained")]
    assert one.syncer.committed_step > 40, "the others go on"


class Lossy(World):
    """The first Drain is lost on its way."""

    def __init__(self, **run: Any) -> None:
        self.drains: list[tuple[float, Drain]] = []  # as they were sent
        super().__init__(**run)

    def _to_learner(self, name: str, incarnation: int, event: Any, sure: bool = False) -> None:
        if isinstance(event, Drain):
            self.drains.append((self.now, event))
            if len(self.drains) == 1:
                return
        super()._to_learner(name, incarnation, event, sure)


def test_one_that_did_not_hear_that_it_is_to_leave_is_told_again_with_the_time_that_is_left() -> None:
    one = world(kind=Lossy)
    assert isinstance(one, Lossy)
    one.drain("b")
    one.run(8.0)
    (lost_at, lost), (at, again) = one.drains
    assert lost.deadline_s == 30.0 and again.deadline_s == pytest.approx(30.0 - (at - lost_at))
    assert RESEND_S <= at - lost_at < RESEND_S + 2 * SPEED["b"]
    assert one.units["b"].exited == "drained"
    assert steps_of(one, "b") == committed_steps_of(one, "b")


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


def test_one_that_has_not_stepped_yet_leaves_at_once() -> None:
    one = world()
    one.kill("b")
    one.bury("b")
    one.start("b")
    one.drain("b")
    assert [fact.reason for fact in facts(one, LearnerFenced)] == ["killed", "drained"]


def test_one_that_comes_back_after_leaving_is_a_new_incarnation() -> None:
    one = world()
    one.drain("b")
    one.run(7.0)
    one.start("b")
    one.run(11.0)
    assert merged(one, "b", 2)
    assert Counter(fact.reason for fact in facts(one, LearnerFenced)) == {"drained": 1}
