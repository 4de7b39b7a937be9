"""A learner whose syncer dies goes on stepping, and speaks to the next epoch with everything it holds."""

from __future__ import annotations

from learners.protocol.events_effects import (
    Answer,
    Enter,
    Fetch,
    Fetched,
    Reattach,
    Resume,
    Send,
    StateMissed,
)
from outer.protocol.messages import COMPILING, IMPORTING, STEPPING, Attach, Grant, Stop, Welcome
from tests.golden.loop import Loop, joined, only


def attaches(loop: Loop) -> list[Attach]:
    return [e.message for e in only(Send, loop.log) if isinstance(e.message, Attach)]


def test_a_read_that_the_epoch_before_has_asked_for_is_not_answered_to_the_next() -> None:
    loop = joined()
    assert loop.read(2, 1) == [], "no copy is there yet"
    loop.do(Reattach(), Welcome(2, 0, 0.0, (0, 0)))
    loop.step()
    assert only(Answer, loop.log) == []
    assert len(loop.read(4, 0, epoch=2)) == 1


def test_who_is_not_compiled_yet_attaches_once_it_is() -> None:
    loop = Loop()
    loop.do(Enter(IMPORTING), Enter(COMPILING), Reattach())
    assert attaches(loop) == []


def test_one_that_was_joining_goes_on_with_what_it_has() -> None:
    loop = Loop(recover="peer")
    loop.compile()
    loop.do(Welcome(1, 8, 0.0, (8, 6)), Reattach(), Welcome(2, 8, 0.0, (8, 6)))
    fetches = only(Fetch, loop.do(StateMissed("", 0, "the syncer died")))
    assert [(fetch.fragment, fetch.version) for fetch in fetches] == [(0, 8), (1, 6)]
    loop.do(Grant(2, 3, 0, 0, 200), *(Fetched(fetch.fragment, fetch.version, "v") for fetch in fetches), Resume())
    assert loop.machine.phase == STEPPING


def test_one_that_has_stopped_attaches_to_nobody() -> None:
    loop = joined()
    loop.do(Stop(1, "enough"))
    loop.step()
    before = len(attaches(loop))
    loop.do(Reattach())
    assert len(attaches(loop)) == before
