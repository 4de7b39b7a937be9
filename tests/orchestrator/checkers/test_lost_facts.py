"""Lost facts that the log names break no check; replay and time are then unknown. Others that are missing do."""

from __future__ import annotations

import pytest

from learners.protocol.facts import Adopted, StepFinished
from orchestrator.eventlog.block import block_of
from orchestrator.eventlog.events import Event
from outer.protocol.facts import FactsLost
from tests.orchestrator.accounting.test_windows import blocks
from tests.orchestrator.checkers.test_suite import folded
from tests.orchestrator.histories import history, is_a, renumbered

UNKNOWN = dict.fromkeys(("accounted.time", "replayable.steps"), "unknown")


def losing(first: int, last: int, told: bool = True, events: list[Event] | None = None) -> list[Event]:
    """The log without what learner b said at these steps."""
    events, out = history() if events is None else events, list[Event]()
    gone = [
        e
        for e in events
        if e.writer == "b"
        and (
            (isinstance(e.fact, StepFinished) and first <= e.fact.step <= last)
            or (isinstance(e.fact, Adopted) and first <= e.fact.after_step <= last)
        )
    ]
    for event in events:
        if event is gone[0] and told:
            lost = FactsLost("b", 1, gone[0].sequence, gone[-1].sequence, "its buffer was full")
            out.append(Event("syncer", 1, 0, event.at, lost))
        if event not in gone:
            out.append(event)
    numbers = [event for event in renumbered(out) if event.writer == "syncer"]
    return [numbers.pop(0) if event.writer == "syncer" else event for event in out]


@pytest.mark.parametrize("size", [1, 30, 10_000])
def test_facts_that_the_log_says_are_lost_break_no_check(size: int) -> None:
    found = folded(blocks(losing(5, 9), size))
    assert {name: status for name, status in found.items() if status not in ("pass", "idle")} == UNKNOWN


@pytest.mark.parametrize("size", [1, 30, 10_000])
def test_nor_do_facts_that_are_lost_twice(size: int) -> None:
    """Both losses may be in one block."""
    found = folded(blocks(losing(12, 14, events=losing(5, 9)), size))
    assert {name: status for name, status in found.items() if status not in ("pass", "idle")} == UNKNOWN


def test_facts_that_nobody_says_are_lost_do() -> None:
    found = folded([block_of(losing(5, 9, told=False))])
    broken = {name for name, status in found.items() if status == "violated"}
    assert broken >= {"versions.clocks", "merges.counters", "books.committed", "replayable.steps"}


def test_lost_facts_excuse_no_wrong_count() -> None:
    """What is known of a contribution's steps must not exceed what it counts."""
    events = losing(5, 9)
    grown = [
        Event(e.writer, e.incarnation, e.sequence, e.at, StepFinished(*{**vars(e.fact), "tokens": 800}.values()))
        if e.writer == "b" and is_a(StepFinished, step=10)(e)
        else e
        for e in events
    ]
    assert folded([block_of(grown)])["merges.counters"] == "violated"
