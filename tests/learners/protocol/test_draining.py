"""A learner that is told to leave: what it asks for no more, and how long it stays."""

from __future__ import annotations

import pytest

from learners.protocol.events_effects import Event, Exit, Leave, Resume
from learners.protocol.learner import HOLD_S
from outer.protocol.messages import DRAINING, Drain, Welcome
from tests.golden.loop import Loop, joined, only

DRAIN_S = 30.0


def stays(*told: tuple[float, Event]) -> float:
    """Seconds from the first word until it goes, when nothing of it is ever merged."""
    loop = joined(drain_s=DRAIN_S)
    loop.steps(2)
    for at, event in told:
        loop.now = 2.0 + at
        loop.do(event)
        if loop.machine.phase != DRAINING:
            loop.step(seconds=0.0)
    while not only(Exit, loop.do(Resume())):
        assert loop.now < 200.0, "it stays without end"
        loop.now += HOLD_S
    return loop.now - 2.0


def drain(deadline_s: float) -> Drain:
    return Drain(1, 3, "its node is to go", deadline_s)


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        ([(0.0, Leave())], DRAIN_S),
        ([(0.0, Leave()), (1.0, drain(5.0))], 6.0),
        ([(0.0, drain(5.0)), (1.0, Leave())], 5.0),
        ([(0.0, drain(5.0)), (1.0, drain(20.0))], 5.0),
    ],
)
def test_told_twice_it_keeps_to_the_earlier_end(told: list[tuple[float, Event]], seconds: float) -> None:
    assert stays(*told) == seconds


@pytest.mark.parametrize("told", [drain(60.0), Leave()])
def test_one_that_is_to_leave_asks_for_no_more_samples(told: Event) -> None:
    loop = Loop(span_steps=8)
    loop.join(samples=8)  # half a span, which is little
    loop.step()
    assert loop.reports[-1].wants_span
    before = len(loop.reports)
    loop.do(told)
    loop.step()
    loop.now += HOLD_S
    loop.do(Resume())
    reports = loop.reports[before:]
    assert reports[-1].phase == DRAINING
    assert not any(report.wants_span for report in reports)


def test_one_with_nothing_to_lose_leaves_at_the_next_boundary() -> None:
    joining = Loop()
    joining.compile()
    joining.do(Welcome(1, 0, 0.0, (0, 0)), drain(60.0))
    assert only(Exit, joining.do(Resume())) == [Exit("drained")]


def test_in_lock_step_nobody_stays_for_others_to_take_what_it_has() -> None:
    loop = joined(overlap="strict")
    loop.do(drain(60.0))
    assert only(Exit, loop.step()) == [Exit("drained")]
