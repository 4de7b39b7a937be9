"""Both machines: learners that join from a peer's state, where that is hard."""

from __future__ import annotations

from collections.abc import Mapping

from learners.protocol.facts import DonorFailed, StateReceived
from outer.protocol.facts import Committed, DonorNamed
from tests.golden.world import World, running

SPEED = {"a": 0.1, "b": 0.13, "c": 0.21}
H = 4


def world(speed: Mapping[str, float] = SPEED, quorum: int = 1) -> World:
    sync = {"P": 2, "H": H, "tau": 1, "read_timeout_s": 0.4, "lease_s": 0.8, "join_s": 15.0}
    return running(speed, sync, until=4.0, quorum=quorum, span_steps=4)


def kill_once_named(world: World, donor: str) -> None:
    world.run(20.0, stop=lambda: any(fact.donor == donor for fact in world.facts(DonorNamed)))
    world.kill(donor)


def merged(world: World, learner: str, incarnation: int) -> list[Committed]:
    return [
        commit
        for commit in world.facts(Committed)
        if any((one.learner, one.incarnation) == (learner, incarnation) for one in commit.participants)
    ]


def test_after_two_donors_that_failed_the_syncers_snapshot_is_taken() -> None:
    """Though a third could still give, and there is time to ask it."""
    one = world(SPEED | {"d": 0.1})
    one.restart("a")
    kill_once_named(one, "b")
    kill_once_named(one, "c")
    one.run(20.0)
    assert [fact.donor for fact in one.facts(DonorNamed)] == ["b", "c"]
    assert [(fact.donor, fact.reason) for fact in one.facts(DonorFailed)] == [("b", "timeout"), ("c", "timeout")]
    assert [fact.source for fact in one.facts(StateReceived, "a", 2)] == ["syncer"]
    assert merged(one, "a", 2)


def test_commits_go_on_when_the_quorum_needs_a_joiner_that_has_no_base_yet() -> None:
    """No commit would ever bring it one: the syncer tells it of the current versions after a round's time."""
    one = world(quorum=3)
    one.restart("a")
    at = one.syncer.committed_step
    one.run(9.0)
    assert one.facts(StateReceived, "a", 2)[0].source == "peer"
    assert one.syncer.committed_step > at + H
    assert merged(one, "a", 2)
