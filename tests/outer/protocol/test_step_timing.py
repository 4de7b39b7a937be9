"""Averages and the fleet's step time."""

from __future__ import annotations

from statistics import median

from hypothesis import given
from hypothesis import strategies as st

from outer.protocol.step_timing import Average, step_time

SAMPLES = st.lists(st.floats(0.0, 1e6), min_size=1, max_size=20)


@given(samples=SAMPLES, smoothing=st.floats(0.01, 1.0))
def test_an_average_stays_within_what_it_has_seen(samples: list[float], smoothing: float) -> None:
    average = Average(smoothing)
    for sample in samples:
        average.add(sample)
    slack = 1e-9 * (1 + max(samples))
    assert min(samples) - slack <= average.value <= max(samples) + slack
    assert average.samples == len(samples)


def test_the_first_sample_counts_whole_and_later_ones_by_their_weight() -> None:
    average = Average(0.25)
    average.add(8.0)
    assert average.value == 8.0
    average.add(0.0)
    assert average.value == 6.0


def test_an_average_of_zero_is_not_an_average_of_nothing() -> None:
    average = Average(0.5)
    average.add(0.0)
    average.add(4.0)
    assert average.value == 2.0


@given(known=SAMPLES, unknown=st.integers(0, 3))
def test_step_time_is_the_median_of_those_that_have_stepped(known: list[float], unknown: int) -> None:
    positive = [value for value in known if value > 0]
    assert step_time([*known, *[0.0] * unknown]) == (median(positive) if positive else 0.0)
