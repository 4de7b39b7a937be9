"""A joiner alone: which state it starts from when peers are late; and a donor: to whom it gives its state, and when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from learners.protocol.events_effects import (
    Decline,
    Donate,
    Exit,
    Fetch,
    Recover,
    Resume,
    StateMissed,
    StateSent,
)
from learners.protocol.facts import Donated, DonorFailed
from learners.protocol.learner import HOLD_S
from outer.protocol.messages import State, StateRequest, Stop, Welcome
from tests.golden.loop import Loop, joined, notice, only

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


def test_in_lock_step_no_peer_is_asked_for_its_state() -> None:
    loop = Loop(recover="peer", overlap="strict")
    loop.compile()
    assert only(Fetch, loop.do(Welcome(1, 4, 0.0, (4, 2)))) == [Fetch(0, 4, ""), Fetch(1, 2, "")]
    assert only(Recover, loop.log) == []


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


# ------------------------------------------------------------------ the donor


def request(syncer_step: int = 0, deadline_s: float = 60.0) -> StateRequest:
    return StateRequest(1, "b", 2, "a", 3, syncer_step, deadline_s)


def test_one_that_has_waited_beyond_its_deadline_is_given_nothing() -> None:
    loop = joined()
    loop.do(request(deadline_s=1.0))
    loop.step(seconds=1.0)
    assert only(Donate, loop.log) == []


def test_one_that_stops_declines_to_those_that_still_wait() -> None:
    loop = joined()
    loop.do(request(syncer_step=4), Stop(1, "enough"))
    assert only(Decline, loop.step()) == [Decline(request(syncer_step=4), "stopped")]


@pytest.mark.parametrize("change", [{"epoch": 2}, {"donor_incarnation": 2}])
def test_a_request_to_another_epochs_or_incarnations_donor_is_declined(change: dict[str, Any]) -> None:
    loop = joined()
    stale = replace(request(), **change)
    assert loop.do(stale) == [Decline(stale, "stale")]


def test_what_was_given_is_said_with_what_was_held_then() -> None:
    loop = joined()
    loop.do(StateSent(request(), 4, "its digest", 800, (4, 2)))
    assert loop.facts(Donated) == [Donated("b", 2, 4, "its digest", 800, (4, 2))]
