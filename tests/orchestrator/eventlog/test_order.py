"""Events are ordered as the log orders them, whatever the learners' clocks say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from learners.protocol.facts import Adopted, StepFinished
from orchestrator.accounting.books import settle
from orchestrator.eventlog.order import canonical
from outer.protocol.facts import Committed
from tests.orchestrator.histories import history


def test_a_log_in_order_stays_as_it_is_and_holds_each_event_once() -> None:
    events = history()
    assert canonical([*events, *events]) == canonical(events) == canonical(canonical(events))
    assert [e for e in canonical(events) if e.writer == "syncer"] == [e for e in events if e.writer == "syncer"]


@pytest.mark.parametrize("skew_s", [-7.5, 7.5])
def test_a_learner_whose_clock_is_wrong_still_steps_before_the_commit_and_adopts_after_it(skew_s: float) -> None:
    events = history()
    skewed = canonical(replace(e, at=e.at + skew_s) if e.writer == "b" else e for e in reversed(events))
    assert [e.sequence for e in skewed if e.writer == "b"] == [e.sequence for e in events if e.writer == "b"]
    place = {
        (e.writer, e.incarnation, e.fact.step): n for n, e in enumerate(skewed) if isinstance(e.fact, StepFinished)
    }
    committed = {e.fact.syncer_step: n for n, e in enumerate(skewed) if isinstance(e.fact, Committed)}
    for event in skewed:
        if isinstance(event.fact, Committed):
            for one in event.fact.participants:
                assert place[one.learner, one.incarnation, one.step] < committed[event.fact.syncer_step]
    for n, event in enumerate(skewed):
        if isinstance(event.fact, Adopted) and event.fact.version:
            assert n > committed[event.fact.version]
    assert settle(skewed) == settle(events)
