"""Each fact enters the log once and in order, gaps are named, and nobody is silenced by one."""

from __future__ import annotations

from typing import Any

from outer.protocol.facts import FactsLost, StepPassed
from outer.protocol.recorder import NO_LONGER_HELD, Recorded, Recorder, runs_of


def facts(first: int, last: int) -> list[tuple[int, float, Any]]:
    return [(number, 0.5, f"fact {number}") for number in range(first, last + 1)]


def lost(first: int, last: int, incarnation: int = 1) -> FactsLost:
    return FactsLost("a", incarnation, first, last, NO_LONGER_HELD)


def test_what_the_sender_no_longer_holds_is_named_as_lost_once_and_it_goes_on() -> None:
    recorder = Recorder()
    recorder.take("a", 1, 0, facts(0, 1))
    assert recorder.take("a", 1, 5, facts(5, 6)) == (facts(5, 6), lost(2, 4))
    assert recorder.take("a", 1, 5, facts(5, 6)) == ([], None)
    assert recorder.take("a", 1, 9, []) == ([], lost(7, 8))
    assert recorder.take("a", 1, 9, facts(9, 9)) == (facts(9, 9), None)


def test_facts_in_the_message_itself_are_not_lost() -> None:
    """The oldest number was read after the facts, and an acknowledgement of an earlier epoch came in between."""
    assert Recorder().take("a", 1, 3, facts(0, 4)) == (facts(0, 4), None)


def test_the_two_newest_incarnations_of_a_writer_are_known_and_older_ones_refused() -> None:
    recorder = Recorder()
    for incarnation in (1, 2, 3):
        recorder.take("a", incarnation, 0, facts(0, 1))
        recorder.mark_durable([Recorded("a", incarnation, 1)])
    assert [recorder.durable("a", incarnation) for incarnation in (1, 2, 3)] == [-1, 1, 1]
    assert recorder.take("a", 1, 2, facts(2, 3)) == ([], None)
    recorder.mark_durable([Recorded("a", 1, 3)])
    assert recorder.take("a", 2, 0, facts(2, 3)) == (facts(2, 3), None), "the last facts of the one before"
    assert recorder.state() == [["a", 2, 1], ["a", 3, 1]]


def test_the_runs_of_a_group_cover_the_losses_in_it() -> None:
    own = [(7, 0.5, StepPassed(3)), (8, 0.5, lost(2, 4)), (9, 0.5, StepPassed(4))]
    assert runs_of("syncer", 2, own) == [Recorded("a", 1, 4), Recorded("syncer", 2, 9)]
    assert runs_of("b", 1, []) == []
    successor = Recorder()
    successor.mark_durable(runs_of("syncer", 2, own))
    assert successor.take("a", 1, 5, facts(5, 5)) == (facts(5, 5), None), "the gap is not named twice"
