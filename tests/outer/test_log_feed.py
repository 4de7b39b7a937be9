"""The syncer actor's feed of the log: nothing is acknowledged before it is durable, and nobody is silenced."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from outer.log_feed import LogFeed
from outer.protocol.facts import FactsLost, Finished
from outer.protocol.recorder import Numbered, Recorded
from outer.protocol.recovery import Entry
from tests.waiting import DEADLINE_S, in_a_loop


class Journal:
    """Takes what it is given; the test says when it is durable."""

    def __init__(self) -> None:
        self.full = False
        self.taken: list[Any] = []

    def note(self, writer: str, incarnation: int, facts: Sequence[Numbered]) -> None:
        self.taken += [(writer, incarnation, number, fact) for number, _, fact in facts]

    def append(self, entry: Entry, arrays: Any, number: int, at: float, stored: Any = None) -> None:
        self.taken.append(("syncer", entry.epoch, number, entry.record))


def feed(journal: Journal, writers: Sequence[Sequence[Any]] = ()) -> LogFeed:
    made = LogFeed(3, lambda: 0.0)
    made.begin(journal, writers)  # type: ignore[arg-type]
    return made


def facts(*numbers: int) -> list[Numbered]:
    return [(number, 0.0, f"fact {number}") for number in numbers]


def test_facts_are_acknowledged_once_they_are_durable_and_taken_once() -> None:
    log = feed(journal := Journal())
    assert log.take("a", 1, facts(0, 1), 0) and log.take("a", 1, facts(0, 1, 2), 0)
    assert [number for _, _, number, _ in journal.taken] == [0, 1, 2]
    assert log.durable("a", 1) == -1
    log.recorded([Recorded("a", 1, 1)])
    assert log.durable("a", 1) == 1


def test_what_an_earlier_epoch_made_durable_is_acknowledged_and_a_gap_is_logged_before_what_follows() -> None:
    log = feed(journal := Journal(), [("a", 1, 4)])
    assert log.durable("a", 1) == 4
    log.take("a", 1, facts(8, 9), 8)
    (writer, epoch, _, lost), *rest = journal.taken
    assert (writer, epoch) == ("syncer", 3) and isinstance(lost, FactsLost) and (lost.first, lost.last) == (5, 7)
    assert [(who, number) for who, _, number, _ in rest] == [("a", 8), ("a", 9)]


def test_the_syncers_facts_and_records_are_numbered_in_one_order() -> None:
    log, record = feed(journal := Journal()), Finished(1, 2, "why")
    log.log("first")
    log.append(0, record, [])
    log.log("second")
    assert journal.taken == [("syncer", 3, 0, "first"), ("syncer", 3, 1, record), ("syncer", 3, 2, "second")]


@pytest.mark.parametrize("why", ["full", "closed"])
def test_nothing_is_taken_while_the_store_refuses_or_once_the_epoch_is_over(why: str) -> None:
    log = feed(journal := Journal(), [("a", 1, 4)])
    if why == "full":
        journal.full = True
    else:
        log.close()
    assert not log.take("a", 1, facts(5), 5) and journal.taken == []
    assert log.durable("a", 1) == (4 if why == "full" else -1)


@in_a_loop
async def test_last_facts_are_answered_when_they_are_durable_or_at_the_deadline() -> None:
    log = feed(Journal())
    log.take("a", 1, facts(0, 1), 0)
    waiting = asyncio.ensure_future(log.made_durable("a", 1, 1, DEADLINE_S))
    await asyncio.sleep(0)
    log.recorded([Recorded("a", 1, 0)])
    await asyncio.sleep(0)
    assert not waiting.done()
    log.recorded([Recorded("a", 1, 1)])
    assert await waiting == await log.made_durable("a", 1, 7, 0.01) == 1
