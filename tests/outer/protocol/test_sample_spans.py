"""Samples are lent to one incarnation at a time, what a dead one left is lent again first; each step counts once."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outer.protocol.coverage import Coverage, Mark
from outer.protocol.sample_spans import RETURNED_MAX, SPAN_STEPS_MAX, Span, SpanPool, span_size


def ranges(spans: Iterable[Span]) -> list[tuple[int, int]]:
    return [(span.start, span.stop) for span in spans]


def test_a_returned_range_is_cut_to_whole_batches_of_the_learner_that_gets_it() -> None:
    pool = SpanPool()
    pool.grant("a", 1, 10, 2)
    pool.release("a", 1, committed=3)
    assert ranges([pool.grant("big", 1, 16, 8)]) == [(10, 26)], "7 samples are no batch of 8"
    assert ranges([pool.grant("b", 1, 6, 3), pool.grant("b", 1, 2, 1)]) == [(3, 9), (9, 10)]


@pytest.mark.parametrize("order", list(permutations("abc")))
def test_neighbours_that_return_are_one_range_in_either_order(order: tuple[str, ...]) -> None:
    pool = SpanPool()
    for name in "abc":
        pool.grant(name, 1, 8, 2)
    for name in order:
        pool.release(name, 1, committed=0)
    assert ranges([pool.grant("d", 1, 24, 24)]) == [(0, 24)], "a batch may need samples of all three"


@pytest.mark.parametrize(
    ("ahead_s", "step_s", "steps"),
    [(3600.0, 0.0, 16), (3600.0, 0.1, 18_000), (3600.0, 0.7, 2572), (20.0, 5.0, 16), (0.0, 0.1, 16)],
)
def test_one_span_lasts_for_half_the_time_ahead_as_soon_as_the_step_time_is_known(
    ahead_s: float, step_s: float, steps: int
) -> None:
    assert span_size(16, ahead_s, step_s) == steps


def test_no_step_time_makes_a_span_endless() -> None:
    assert span_size(16, 3600.0, 5e-324) == SPAN_STEPS_MAX


def test_deaths_do_not_crumble_the_pool_and_rests_too_small_for_anybody_do_not_pile_up() -> None:
    """Batches of 3 leave a rest of each returned range of 8; only the largest rests are kept."""
    pool, heir = SpanPool(), SpanPool()
    for incarnation in range(3 * RETURNED_MAX):
        for name in ("dies", "lives"):
            heir.replay_grant(name, incarnation, pool.grant(name, incarnation, 8, 8))
        for back, returns in pool.release("dies", incarnation, committed=incarnation % 7):
            heir.replay_return("dies", incarnation, back, returns)
        span = pool.grant("small", incarnation, 3, 3)
        heir.replay_grant("small", incarnation, span)
    _, _, returned, _ = pool.state()
    assert RETURNED_MAX // 2 < len(returned) <= RETURNED_MAX and sorted(heir.state()[2]) == sorted(returned)
    for incarnation in range(3 * RETURNED_MAX):
        pool.release("lives", incarnation, committed=0)
        pool.release("small", incarnation, committed=0)
    assert len(pool.state()[2]) <= RETURNED_MAX


# ------------------------------------------------------------------ coverage


RANGES = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 12)).map(lambda pair: (pair[0], pair[0] + pair[1])), max_size=15
)
STEP_TOKENS = st.lists(st.integers(1, 9), min_size=45, max_size=45)


@given(ranges=RANGES, tokens=STEP_TOKENS)
def test_each_step_counts_once_however_ranges_overlap(ranges: list[tuple[int, int]], tokens: list[int]) -> None:
    """`tokens[s - 1]` is what step s brought."""
    coverage, covered = Coverage(), set[int]()

    def mark(step: int) -> Mark:
        return Mark(step, sum(tokens[:step]))

    for begin, end in ranges:
        fresh = set(range(begin + 1, end + 1)) - covered
        covered |= fresh
        assert coverage.add(mark(begin), mark(end)) == sum(tokens[step - 1] for step in fresh)
        assert coverage.tokens == sum(tokens[step - 1] for step in covered)
        assert coverage.last_step == max(covered)
        for (_, before), (after, _) in zip(coverage.intervals, coverage.intervals[1:], strict=False):
            assert before.step < after.step, "what touches is one interval: the books do not grow with the run"
