"""A donor alone: to whom it gives its state, when, and when it does not."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from learners.protocol.events_effects import Decline, Donate, Resume, StateArrived, StateSent
from learners.protocol.facts import Donated
from outer.protocol.messages import STEPPING, Grant, State, StateRequest, Stop, Welcome
from tests.golden.loop import Loop, joined, notice, only


def request(syncer_step: int = 0, deadline_s: float = 60.0) -> StateRequest:
    return StateRequest(1, "b", 2, "a", 3, syncer_step, deadline_s)


def declined(loop: Loop) -> list[str]:
    return [effect.reason for effect in only(Decline, loop.log)]


def test_a_state_is_given_at_the_first_boundary_after_the_joiners_clock_is_reached() -> None:
    loop = joined()
    loop.do(request(syncer_step=4))
    loop.deliver(2, 1)
    loop.steps(3)
    assert only(Donate, loop.log) == [], "what it holds may lack a version that the joiner will not be told of"
    loop.do(notice(4, 0))
    assert only(Donate, loop.log) == [], "not in the middle of a step"
    loop.steps(2)
    assert only(Donate, loop.log) == [Donate(request(syncer_step=4), 4, 4, (0, 2))]


def test_one_that_has_waited_beyond_its_deadline_is_given_nothing() -> None:
    loop = joined()
    loop.do(request(deadline_s=1.0))
    loop.step(seconds=1.0)
    assert only(Donate, loop.log) == []


def test_after_a_loss_that_is_not_finite_nothing_is_given_before_a_finite_one() -> None:
    loop = joined()
    loop.do(request())
    loop.step(loss=math.nan)
    assert only(Decline, loop.log) == [Decline(request(), "non_finite")], "it was asked before"
    loop.do(request())
    assert declined(loop) == ["non_finite"] * 2, "it was asked after"
    assert only(Donate, loop.log) == []
    loop.step()
    loop.do(request())
    loop.step()
    assert len(only(Donate, loop.log)) == 1


def test_one_that_stops_declines_to_those_that_still_wait() -> None:
    loop = joined()
    loop.do(request(syncer_step=4), Stop(1, "enough"))
    assert only(Decline, loop.step()) == [Decline(request(syncer_step=4), "stopped")]


@pytest.mark.parametrize("change", [{"epoch": 2}, {"donor_incarnation": 2}])
def test_a_request_to_another_epochs_or_incarnations_donor_is_declined(change: dict[str, Any]) -> None:
    loop = joined()
    stale = replace(request(), **change)
    assert loop.do(stale) == [Decline(stale, "stale")]


def test_one_that_does_not_step_yet_or_holds_a_peers_fragments_gives_nothing() -> None:
    loop = Loop(recover="peer")
    loop.compile()
    loop.do(Welcome(1, 4, 0.0, (4, 2)))
    assert loop.do(request()) == [Decline(request(), "not_whole")]
    loop.do(StateArrived(State("c", 1, 7, 4, "c's", "digest", 1)), Grant(1, 3, 0, 0, 200), Resume())
    assert loop.machine.phase == STEPPING
    assert loop.do(request()) == [Decline(request(), "not_whole")], "what it holds did not come from the syncer"


def test_what_was_given_is_said_with_what_was_held_then() -> None:
    loop = joined()
    loop.do(StateSent(request(), 4, "its digest", 800, (4, 2)))
    assert loop.facts(Donated) == [Donated("b", 2, 4, "its digest", 800, (4, 2))]
