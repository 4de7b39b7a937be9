"""Each fragment is due once a round, at most one at a time; the budget says when the run ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outer.protocol.schedule import Budget, Schedule

SHAPES = st.integers(1, 40).flatmap(lambda H: st.tuples(st.integers(1, H), st.just(H)))


@given(shape=SHAPES, start=st.integers(0, 1000))
def test_in_any_round_each_fragment_is_due_exactly_once(shape: tuple[int, int], start: int) -> None:
    schedule = Schedule(*shape)
    due = [schedule.due(start + step) for step in range(shape[1])]
    assert sorted(fragment for fragment in due if fragment is not None) == list(range(shape[0]))


@given(shape=SHAPES)
def test_a_fragment_is_due_at_its_offset_and_gaps_differ_by_at_most_one_step(shape: tuple[int, int]) -> None:
    fragments, round_steps = shape
    schedule = Schedule(*shape)
    offsets = [schedule.offset(fragment) for fragment in range(fragments)]
    assert [schedule.due(offset) for offset in offsets] == list(range(fragments))
    gaps = {after - before for before, after in zip(offsets, [*offsets[1:], round_steps], strict=True)}
    assert max(gaps) - min(gaps) <= 1
    assert max(gaps) == schedule.gap


@given(shape=SHAPES, now=st.integers(0, 500), steps=st.integers(0, 100))
def test_upcoming_is_what_will_be_due_soonest_first_and_each_once(shape: tuple[int, int], now: int, steps: int) -> None:
    schedule = Schedule(*shape)
    expected: list[int] = []
    for step in range(now + 1, now + steps + 1):
        fragment = schedule.due(step)
        if fragment is not None and fragment not in expected:
            expected.append(fragment)
    assert schedule.upcoming(now, steps) == tuple(expected)


@pytest.mark.parametrize("shape", [(0, 4), (5, 4)])
def test_more_fragments_than_steps_in_a_round_is_a_mistake_of_the_caller(shape: tuple[int, int]) -> None:
    with pytest.raises(AssertionError):
        Schedule(*shape)


@pytest.mark.parametrize(
    ("budget", "tokens", "syncer_step", "share", "over"),
    [
        (Budget(400, None), 0, 9, 0.0, ""),
        (Budget(400, None), 100, 9, 0.25, ""),
        (Budget(400, None), 399, 9, 0.9975, ""),
        (Budget(400, None), 400, 0, 1.0, "400 tokens are committed"),
        (Budget(400, None), 1_500, 0, 1.0, "1,500 tokens are committed"),
        (Budget(None, 8), 900, 0, 0.0, ""),
        (Budget(None, 8), 0, 7, 0.875, ""),
        (Budget(None, 8), 0, 8, 1.0, "syncer step 8 is reached"),
        (Budget(None, 8), 0, 9, 1.0, "syncer step 9 is reached"),
        (Budget(400, 8), 100, 8, 0.25, "syncer step 8 is reached"),
        (Budget(400, 8), 400, 8, 1.0, "400 tokens are committed"),
    ],
)
def test_how_much_of_it_is_committed_and_why_it_is_over(
    budget: Budget, tokens: int, syncer_step: int, share: float, over: str
) -> None:
    assert budget.progress(tokens, syncer_step) == share
    assert budget.reached(tokens, syncer_step) == over
