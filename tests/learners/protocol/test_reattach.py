"""A learner whose syncer dies goes on stepping, and speaks to the next epoch with everything it holds."""

from __future__ import annotations

from learners.protocol.events_effects import (
    Answer,
    Enter,
    Exit,
    Fetch,
    Fetched,
    Reattach,
    Resume,
    RunStep,
    Send,
    StateMissed,
)
from outer.protocol.messages import COMPILING, IMPORTING, STEPPING, Attach, Grant, Notice, Stop, Welcome
from tests.golden.loop import Loop, joined, only


def attaches(loop: Loop) -> list[Attach]:
    return [e.message for e in only(Send, loop.log) if isinstance(e.message, Attach)]


def test_it_attaches_again_as_the_same_incarnation_and_steps_meanwhile() -> None:
    loop = joined()
    loop.do(Reattach())
    assert attaches(loop) == [Attach("a", 3, {"seed": 0})] * 2
    assert only(RunStep, loop.step()) != []
    assert loop.reports[-1].epoch == 1, "it has not heard of another"
    loop.do(Welcome(2, 0, 0.0, (0, 0)))
    assert loop.reports[-1].epoch == 2 and loop.machine.phase == STEPPING
    assert [counters.steps for counters in loop.reports[-1].counters] == [1, 1], "its bases stay"
    assert only(RunStep, loop.step()) != [], "so do its spans"


def test_it_hears_the_epoch_it_is_attached_to_and_no_other() -> None:
    loop = joined()
    loop.do(Reattach(), Welcome(2, 0, 0.0, (0, 0)))
    assert only(Fetch, loop.do(Notice(1, 2, 1, 2, "digest", 0.0))) == []
    assert only(Fetch, loop.do(Notice(2, 2, 1, 2, "digest", 0.0))) != []
    loop.do(Stop(1, "a zombie says so"))
    assert only(Exit, loop.step()) == []
    loop.do(Welcome(1, 0, 0.0, (0, 0)))
    assert loop.reports[-1].epoch == 2, "an older Welcome comes late"


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
