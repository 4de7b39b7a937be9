"""A log read as columns gives the same tape as one read as events."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from learners.protocol.facts import Adopted, StepFinished
from orchestrator.eventlog.block import block_of
from orchestrator.eventlog.events import Event
from orchestrator.replay.incarnation import TapeError
from orchestrator.replay.said import checked, said_in
from orchestrator.replay.tape import record, tape_of
from tests.replay.shaken import Shaken


@pytest.fixture(scope="module")
def events(shaken_run: Callable[..., Shaken]) -> list[Event]:
    return shaken_run(adopt="rebase").events


def read(events: list[Event], rows: int = 64) -> object:
    blocks = (block_of(events[first : first + rows], first) for first in range(0, len(events), rows))
    return tape_of(checked(said_in(blocks)))


def test_columns_give_the_same_tape_as_events(events: list[Event]) -> None:
    assert read(events) == record(events)
    assert any(isinstance(event.fact, Adopted) and event.fact.read_at is not None for event in events)


def test_a_step_without_progress_or_loss_is_told_apart_from_one_at_zero(events: list[Event]) -> None:
    place = next(n for n, event in enumerate(events) if isinstance(event.fact, StepFinished))
    bare = [*events]
    bare[place] = replace(events[place], fact=replace(events[place].fact, loss=math.nan, progress=None))
    said = said_in([block_of(bare)])[events[place].writer, events[place].incarnation]
    (first,) = [fact for fact in said if isinstance(fact, StepFinished)][:1]
    assert first.progress is None and math.isnan(first.loss)


def test_a_fact_that_is_missing_or_told_twice_is_named(events: list[Event]) -> None:
    place = next(n for n, event in enumerate(events) if isinstance(event.fact, StepFinished))
    who, number = f"{events[place].writer} {events[place].incarnation}", events[place].sequence
    with pytest.raises(TapeError, match=f"{who}: its fact {number} is missing, and later ones are there"):
        read(events[:place] + events[place + 1 :])
    with pytest.raises(TapeError, match=f"{who}: its fact {number} is told twice"):
        read([*events, events[place]])
