"""A joiner alone: which state it starts from when peers are late, and when it gives up."""

from __future__ import annotations

import pytest

from learners.protocol.events_effects import (
    Exit,
    Fetch,
    Fetched,
    FetchFailed,
    Inherit,
    Recover,
    Resume,
    StateArrived,
    StateMissed,
)
from learners.protocol.facts import DonorFailed, StateReceived
from learners.protocol.learner import HOLD_S
from outer.protocol.messages import State, Welcome
from tests.golden.loop import Loop, notice, only

START_S = 60.0  # the loop's
JOIN_S = 10.0
PEERS = State("b", 1, 7, 8, "b's", "digest", 800, (8, 6))
OF_A_ROUND, OF_MORE = 8, 10  # syncer steps heard of; it attached at 4, and H = 4


def joining(recover: str = "peer") -> Loop:
    """Attached at second 0."""
    loop = Loop(recover=recover, join_s=JOIN_S)
    loop.compile()
    loop.do(Welcome(1, 4, 0.0, (4, 2)))
    return loop


@pytest.mark.parametrize(("syncer_step", "seconds"), [(OF_A_ROUND, JOIN_S + 1.0), (OF_MORE, JOIN_S)])
def test_a_state_that_took_long_by_one_measure_alone_is_taken(syncer_step: int, seconds: float) -> None:
    loop = joining()
    loop.now = seconds + 4e-7  # which is not told
    loop.do(notice(syncer_step, 0), StateArrived(PEERS))
    assert [effect.state for effect in only(Inherit, loop.do(Resume()))] == [PEERS]
    assert loop.facts(StateReceived) == [StateReceived("peer", "b", 1, 7, "digest", 800, seconds, (8, 6))]


def test_a_state_that_took_more_than_a_round_and_join_s_is_thrown_away_for_the_snapshot() -> None:
    loop = joining()
    loop.now = JOIN_S + 1.0
    loop.do(notice(OF_MORE, 0), StateArrived(PEERS))
    assert loop.facts(DonorFailed) == [DonorFailed("b", 1, "too_old")]
    assert only(Fetch, loop.log) == [Fetch(0, OF_MORE, "digest"), Fetch(1, 2, "")], "what a notice brought stays"
    loop.do(Fetched(0, OF_MORE, "v10"), Fetched(1, 2, "v2"), Resume())
    assert only(Inherit, loop.log) == []
    assert loop.facts(StateReceived) == [StateReceived("syncer", "", 0, 0, "", 0, JOIN_S + 1.0)]


def test_a_notice_brings_even_the_first_version_to_one_that_holds_none() -> None:
    assert joining().do(notice(0, 0)) == [Fetch(0, 0, "digest")]


def test_in_lock_step_no_peer_is_asked_for_its_state() -> None:
    loop = Loop(recover="peer", overlap="strict")
    loop.compile()
    assert only(Fetch, loop.do(Welcome(1, 4, 0.0, (4, 2)))) == [Fetch(0, 4, ""), Fetch(1, 2, "")]
    assert only(Recover, loop.log) == []


def test_of_the_snapshot_only_what_is_neither_here_nor_on_its_way_is_fetched() -> None:
    loop = joining()
    loop.do(notice(6, 0), notice(8, 0), Fetched(0, 6, "v6"), FetchFailed(0, 8, "fetch_failed"))
    assert only(Fetch, loop.do(StateMissed("", 0, "none"))) == [Fetch(1, 2, "")], "6 waits for the boundary"
    loop.now = HOLD_S
    assert only(Fetch, loop.do(Resume())) == [], "6 is adopted"


@pytest.mark.parametrize(("seconds", "asked"), [(JOIN_S, [(), ("b",)]), (JOIN_S + 1.0, [()])])
def test_another_donor_is_asked_only_while_a_state_could_come_in_time(
    seconds: float, asked: list[tuple[str, ...]]
) -> None:
    loop = joining()
    loop.now = seconds
    loop.do(notice(OF_MORE, 0), StateMissed("b", 1, "timeout"))
    assert [effect.seek.failed for effect in only(Recover, loop.log)] == asked
    assert loop.facts(DonorFailed) == [DonorFailed("b", 1, "timeout")]


@pytest.mark.parametrize("recover", ["peer", "syncer"])
def test_one_for_whom_nothing_ever_comes_fails_after_start_s(recover: str) -> None:
    loop = joining(recover)
    while not (left := only(Exit, loop.do(Resume()))):
        assert loop.now < 2 * START_S, "it waits without end"
        loop.now += HOLD_S
    assert left[0].reason.startswith("failed: no state"), "which ends its process with an error"
    assert loop.now > START_S
