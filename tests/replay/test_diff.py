"""Two logs part where their contents do, causally: neither clocks nor the order of names decides what is first."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from learners.protocol.facts import StepFinished
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import RunStarted
from orchestrator.replay.log_diff import NOTHING, compare
from outer.protocol.facts import Committed, SpanGranted
from tests.orchestrator.histories import altered, is_a
from tests.replay.shaken import Shaken


@pytest.fixture(scope="module")
def events(shaken_run: Callable[..., Shaken]) -> list[Event]:
    return shaken_run().events


def test_a_log_is_the_same_as_itself_whatever_clocks_and_order_say(events: list[Event]) -> None:
    later = [replace(event, at=event.at * 2 + 7.0) for event in reversed(events)]
    slower = altered(altered(later, is_a(StepFinished), seconds=9.0, waited_s=8.0), is_a(Committed), quorum_s=7.0)
    renamed = altered(slower, is_a(RunStarted), name="another", config_hash="cafe")
    found = compare(events, renamed)
    assert (found.first, found.others, found.events) == (None, 0, len(events))
    assert found.recipes_differ and not compare(events, slower).recipes_differ


def test_what_is_not_a_number_is_equal_to_itself_and_to_no_number(events: list[Event]) -> None:
    nan = altered(events, is_a(StepFinished, step=4), loss=math.nan)
    assert compare(nan, list(nan)).first is None
    for one, other in ((nan, events), (events, nan)):
        first = compare(one, other).first
        assert first is not None and set(first.fields) == {"loss"}


def test_a_part_of_a_fact_is_named_by_its_place_with_both_values(events: list[Event]) -> None:
    commit = next(event for event in events if is_a(Committed, syncer_step=20)(event))
    one, *rest = commit.fact.participants
    other = altered(events, is_a(Committed, syncer_step=20), participants=(replace(one, weight=0.25), *rest))
    first = compare(events, other).first
    assert first is not None
    assert (first.writer, first.sequence, first.kinds) == ("syncer", commit.sequence, ("Committed", "Committed"))
    assert first.fields == {"participants.0.weight": (one.weight, 0.25)}


def test_of_several_divergences_the_first_is_the_one_that_may_have_caused_the_others(events: list[Event]) -> None:
    granted = next(event.fact for event in events if is_a(SpanGranted, span=6)(event))
    a_step = next(event for event in events if is_a(StepFinished, span=6)(event))
    by_syncer = altered(events, is_a(SpanGranted, span=6), stop=granted.stop + 1)
    both = altered(by_syncer, is_a(StepFinished, span=6), loss=9.0)
    found = compare(events, both)
    assert found.first is not None and found.others == 1
    assert a_step.writer < "syncer", "by name the learner would be first"
    assert (found.first.writer, found.first.kinds[0]) == ("syncer", "SpanGranted")

    read = next(e.fact.participants[0] for e in events if is_a(Committed)(e) and e.fact.syncer_step > 20)
    mine = is_a(StepFinished, step=read.step)
    earlier = altered(events, lambda event: event.writer == read.learner and mine(event), loss=9.0)
    later = altered(earlier, lambda event: is_a(Committed)(event) and event.fact.syncer_step > 20, digest="0" * 64)
    first = compare(events, later).first
    assert first is not None and (first.writer, set(first.fields)) == (read.learner, {"loss"})


def test_a_writer_that_stops_saying_anything_parts_there(events: list[Event]) -> None:
    last = max((event for event in events if event.writer == "syncer"), key=lambda event: event.sequence)
    cut = [event for event in events if event is not last]
    first, mirrored = compare(events, cut).first, compare(cut, events).first
    assert first is not None and mirrored is not None
    assert (first.sequence, first.kinds) == (last.sequence, (type(last.fact).__name__, NOTHING))
    assert mirrored.kinds == (NOTHING, type(last.fact).__name__)
