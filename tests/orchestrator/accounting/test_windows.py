"""The windows of steps: the same however the log is cut into blocks, and right after trimming."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from learners.protocol.facts import Adopted, StepFinished
from orchestrator.accounting.fold import drive
from orchestrator.accounting.windows import StepWindows
from orchestrator.eventlog.block import Block, Key, block_of
from orchestrator.eventlog.events import Event
from tests.orchestrator.histories import history

C1 = ("c", 1)


def blocks(events: Sequence[Event], size: int) -> Iterator[Block]:
    for start in range(0, len(events), size):
        yield block_of(events[start : start + size], start)


def said(events: Sequence[Event], key: Key) -> list[StepFinished]:
    return [e.fact for e in events if (e.writer, e.incarnation) == key and isinstance(e.fact, StepFinished)]


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_windows_hold_every_incarnations_steps_and_running_totals(size: int) -> None:
    events = history()
    windows = StepWindows()
    drive([windows], blocks(events, size))
    assert {*windows} == {("a", 1), ("b", 1), ("c", 1), ("c", 2)}
    for key in windows:
        facts, rows = said(events, key), windows[key].rows
        assert rows.step.tolist() == [fact.step for fact in facts]
        assert rows.tokens_upto.tolist() == np.cumsum([fact.tokens for fact in facts]).tolist()
        assert rows.clock_upto.tolist() == np.cumsum([fact.seconds + fact.waited_s for fact in facts]).tolist()
        assert windows[key].tokens_between(3, 6) == sum(fact.tokens for fact in facts if 3 < fact.step <= 6)
        assert [events[position].fact for position in rows.position.tolist()] == facts
        adopted = [e.fact for e in events if (e.writer, e.incarnation) == key and isinstance(e.fact, Adopted)]
        for fragment in (0, 1):
            here = [fact for fact in adopted if fact.fragment == fragment]
            assert windows.wiped[windows.slots[key], fragment] == max(fact.after_step for fact in here)
            assert windows.version[windows.slots[key], fragment] == here[-1].version


def test_totals_stay_right_after_trimming() -> None:
    events = history()
    windows = StepWindows()
    first, second = blocks(events, (len(events) + 1) // 2)
    windows.take(first)
    slot = windows.slots["a", 1]
    windows.trim(np.array([slot]), np.array([5]))
    assert windows["a", 1].rows.step[0] == 1  # still there for the folds after the books
    windows.take(second)
    window = windows["a", 1]
    assert window.rows.step.tolist() == list(range(6, 30))
    assert (window.tokens_before, window.clock_before) == (40, 5.0)
    assert window.rows.tokens_upto[-1] == windows.tokens[slot] == 29 * 8
    assert windows.count[slot] == 29


def test_a_slot_is_given_again_once_its_incarnation_is_dropped() -> None:
    events = history()
    end = next(i for i, e in enumerate(events) if (e.writer, e.incarnation) == ("c", 2))
    windows = StepWindows()
    windows.take(block_of(events[:end]))
    slot = windows.slots[C1]
    table = windows.fit(np.zeros(0, np.int64), 7)
    table[:] = 1
    windows.drop(C1)
    windows.take(block_of(events[end:], end))
    assert C1 not in windows and windows.slots["c", 2] == slot
    assert windows.count[slot] == len(said(events, ("c", 2)))
    assert windows.fit(table, 7)[slot] == 7


def test_a_step_that_does_not_ascend_is_left_out() -> None:
    def step(sequence: int, number: int) -> Event:
        return Event("a", 1, sequence, float(sequence), StepFinished(number, 10, 0, 0, 1.0, 1.0, 0.0, ""))

    windows = StepWindows()
    drive([windows], blocks([step(0, 1), step(1, 2), step(2, 2), step(3, 1), step(4, 4)], 3))
    assert windows["a", 1].rows.step.tolist() == [1, 2, 4]
    assert windows.tokens.tolist() == [30]


def test_rows_are_found_for_many_pairs_at_once() -> None:
    windows = StepWindows()
    windows.take(block_of(history()))
    a, c = windows.slots["a", 1], windows.slots[C1]
    slots = np.array([a, a, c])
    last, first = windows.upto(slots, np.array([6, 99, 9])), windows.upto(slots, np.array([3, -1, 7]))
    assert (last - first).tolist() == [3, 29, 2]
    assert windows.tokens_in(first, last).tolist() == [24, 232, 32]
    assert windows.by(slots, windows.rows.position[last - 1]).tolist() == (last - 1).tolist()
