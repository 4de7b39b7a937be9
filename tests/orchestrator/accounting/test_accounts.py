"""The accounts as a fold: however a log is cut into blocks, results are the same; sketches of many numbers are near."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.simulation.cluster import Cluster
from chaos.simulation.profile import draw
from orchestrator.accounting.accounts import Accounts
from orchestrator.accounting.sketch import WIDTH, Sketch
from orchestrator.accounting.verdicts import Verdict
from orchestrator.checkers.suite import Suite
from orchestrator.eventlog.block import block_of
from orchestrator.eventlog.events import Event

NUMBERS = st.lists(st.floats(-1e15, 1e15) | st.floats(-2, 2), min_size=1, max_size=80)
NEAR = 1 + 1e-9  # what rounding may add to a bin


def asked(accounts: Accounts) -> Any:
    goodput, wanted_s = accounts.goodput()
    return asdict(accounts.books.books()), goodput and asdict(goodput), wanted_s


def told(events: list[Event], cuts: Iterable[int] = ()) -> Any:
    """Books, time and verdicts of a log that is cut into blocks at these places, asked at each of them."""
    accounts = Accounts()
    suite = Suite(accounts)
    found = asked(accounts), suite.verdicts()
    for start, stop in pairwise(sorted({0, len(events), *cuts})):
        block = block_of(events[start:stop], start)
        accounts.take(block)
        suite.take(block)
        found = asked(accounts), suite.verdicts()
    return found


def assert_same(one: Any, other: Any, where: str = "") -> None:
    """Equal, numbers up to the rounding of sums of seconds that are no multiples of 2**-22."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for name, value in one.items():
            assert_same(value, other[name], f"{where}.{name}")
    elif isinstance(one, (list, tuple)) and not isinstance(one, Verdict):
        assert len(one) == len(other), where
        for place, (value, another) in enumerate(zip(one, other, strict=True)):
            assert_same(value, another, f"{where}[{place}]")
    else:
        assert one == (pytest.approx(other) if isinstance(one, float) else other), where


@pytest.mark.parametrize("profile", ["calm", "membership", "storage", "joining", "lockstep"])
def test_neither_blocks_nor_questions_midway_change_a_result(profile: str) -> None:
    cluster = Cluster(draw(1, profile))
    cluster.run()
    events, rng = list(cluster.context.events()), Random(1)
    assert_same(told(events, [rng.randrange(len(events)) for _ in range(20)]), told(events))


# ------------------------------------------------------------------ sketches


@given(NUMBERS, st.floats(0, 1))
def test_a_quantile_is_within_its_bounds_and_exact_while_numbers_are_few(values: list[float], share: float) -> None:
    made, exact = Sketch(), Sketch()
    for _ in range(6):  # more than are kept as they are
        made.add([value for value in values for _ in range(80)])
    exact.add(values)
    lower, upper = made.quantile(share)
    true = sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
    assert lower - abs(lower) * (NEAR - 1) - 1e-12 <= true <= upper + abs(upper) * (NEAR - 1) + 1e-12
    if 1e-12 < abs(true) < 1e12:
        assert upper - lower <= abs(true) * WIDTH * NEAR * 1.01
    assert exact.quantile(share) == (true, true)


def test_a_sketch_is_no_larger_for_more_numbers_and_leaves_out_what_is_not_finite() -> None:
    made, rng = Sketch(), np.random.default_rng(2)
    for _ in range(20):
        made.add(rng.normal(0, 1, 10_000) * 10.0 ** rng.integers(-20, 20, 10_000))
    made.add([math.nan, math.inf, -math.inf])
    assert made.count == 200_000 and made.keys.size < 12_300
    assert math.isnan(Sketch().quantile(0.5)[0])
