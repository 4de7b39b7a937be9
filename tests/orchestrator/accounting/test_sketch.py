"""Sketches: exact while few, to 1 % for ever, mergeable, and no larger for more numbers."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.accounting.sketch import WIDTH, Sketch

NUMBERS = st.lists(st.floats(-1e15, 1e15) | st.floats(-2, 2), min_size=1, max_size=80)
NEAR = 1 + 1e-9  # what rounding may add to a bin


def sketch(values: list[float], exact: int = 0) -> Sketch:
    made = Sketch(exact)
    made.add(values)
    return made


def rank(values: list[float], share: float) -> float:
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


@given(NUMBERS, st.floats(0, 1))
def test_a_quantile_lies_within_its_bounds(values: list[float], share: float) -> None:
    lower, upper = sketch(values).quantile(share)
    true = rank(values, share)
    assert lower - abs(lower) * (NEAR - 1) - 1e-12 <= true <= upper + abs(upper) * (NEAR - 1) + 1e-12
    if 1e-12 < abs(true) < 1e12:
        assert upper - lower <= abs(true) * WIDTH * NEAR * 1.01


@given(NUMBERS, st.floats(0, 1))
def test_few_numbers_are_exact(values: list[float], share: float) -> None:
    kept = sketch(values, exact=80)
    assert kept.quantile(share) == (rank(values, share),) * 2
    assert kept.middle(share) == rank(values, share)
    assert kept.median == pytest.approx(statistics.median(values), rel=1e-15)
    limit = values[0]
    count, total = kept.above(limit)
    assert count == sum(value > limit for value in values)
    assert total == pytest.approx(math.fsum(value for value in values if value > limit), rel=1e-9, abs=1e-3)


@given(NUMBERS, NUMBERS, st.sampled_from([0, 4, 64, 200]))
def test_merging_is_adding_all(first: list[float], second: list[float], exact: int) -> None:
    merged, whole = sketch(first, exact), sketch(first + second, exact)
    merged.merge(sketch(second, exact))
    assert (merged.count, merged.least, merged.most) == (whole.count, whole.least, whole.most)
    assert merged.sum == pytest.approx(whole.sum, rel=1e-9, abs=1e-3)
    for share in (0.0, 0.1, 0.5, 0.9, 1.0):
        assert merged.quantile(share) == whole.quantile(share)


def test_what_lies_above_a_limit_is_known_to_a_bin() -> None:
    values = np.random.default_rng(1).lognormal(0.0, 1.0, 20_000)
    made = Sketch()
    made.add(values)
    for limit in (0.1, 1.0, 5.0):
        count, total = made.above(limit)
        assert count == pytest.approx((values > limit).sum(), rel=0.01)
        assert total == pytest.approx(values[values > limit].sum(), rel=0.01)
    assert made.above(made.most) == (0, 0)
    assert made.above(-1.0) == (made.count, pytest.approx(made.sum))
    assert made.median == pytest.approx(np.median(values), rel=WIDTH)


def test_it_is_no_larger_for_more_numbers() -> None:
    made, rng = Sketch(), np.random.default_rng(2)
    for _ in range(20):
        made.add(rng.normal(0, 1, 10_000) * 10.0 ** rng.integers(-20, 20, 10_000))
    assert made.count == 200_000
    assert made.keys.size < 12_300
    assert not made.values.size


def test_what_is_not_finite_is_left_out() -> None:
    made = sketch([math.nan, math.inf, -math.inf, 2.0])
    assert (made.count, made.sum, made.least, made.most) == (1, 2.0, 2.0, 2.0)
    empty = Sketch()
    assert math.isnan(empty.median)
    assert math.isnan(empty.mean)
    assert all(map(math.isnan, empty.quantile(0.5)))
    assert empty.above(0.0) == (0, 0)
