"""Tokens of a union of step ranges, against a set of steps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outer.protocol.coverage import Coverage, Mark

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


def test_nothing_covered_has_no_last_step() -> None:
    assert (Coverage().tokens, Coverage().last_step) == (0, 0)
