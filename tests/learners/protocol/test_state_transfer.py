"""A donor alone: to whom it gives its state, when, and when it does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from learners.protocol.events_effects import Decline, Donate, StateSent
from learners.protocol.facts import Donated
from outer.protocol.messages import StateRequest, Stop
from tests.golden.loop import Loop, joined, only


def request(syncer_step: int = 0, deadline_s: float = 60.0) -> StateRequest:
    return StateRequest(1, "b", 2, "a", 3, syncer_step, deadline_s)


def declined(loop: Loop) -> list[str]:
    return [effect.reason for effect in only(Decline, loop.log)]


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
