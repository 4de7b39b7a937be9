"""Weights: those in the box, a user's own, and what is refused."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from outer.protocol.messages import FragmentCounters
from outer.protocol.open_step import weigh
from outer.weights import WEIGHTS, BadWeight, Progress, check, named
from outer.weights import weigh as weighed

HERE = "tests.outer.test_weights"


def root(progress: Progress) -> float:
    return float(progress.tokens**0.5)


def fresh_alone(progress: Progress) -> float:
    return 1.0 if progress.age == 0 else 0.0


def of_one_step(progress: Progress) -> float:
    return 1.0 / (progress.steps - 1)


CALLS = itertools.count(1)


def of_its_own_mind(progress: Progress) -> float:
    return float(next(CALLS))


def contributions(*counters: tuple[int, int]) -> Any:
    return [SimpleNamespace(counters=FragmentCounters(0, 0, steps, tokens)) for tokens, steps in counters]


@pytest.mark.parametrize("name", [*WEIGHTS, f"{HERE}:root"])
def test_a_sound_weight_passes(name: str) -> None:
    check(name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("papers", "known are paper, tokens, equal, any `package.module:function`"),
        (f"{HERE}:nobody", "does not import"),
        (f"{HERE}:HERE", "not callable"),
        (f"{HERE}:fresh_alone", "gives 0.0 for Progress.*age=3"),
        (f"{HERE}:of_one_step", "fails for Progress.*ZeroDivisionError"),
        (f"{HERE}:of_its_own_mind", "gives 1.0, then 2.0"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(name: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check(name)


@pytest.mark.parametrize(
    ("name", "shares"),
    [("paper", [0.2, 0.8]), ("tokens", [1 / 3, 2 / 3]), ("equal", [0.5, 0.5]), (f"{HERE}:root", [0.414, 0.586])],
)
def test_a_merge_weighs_by_the_rule(name: str, shares: list[float]) -> None:
    assert weigh(contributions((100, 4), (200, 4)), (0, 0), 24, named(name)) == pytest.approx(shares, abs=1e-3)


@pytest.mark.parametrize("name", WEIGHTS)
def test_late_work_weighs_less_and_counts_for_at_most_a_round(name: str) -> None:
    late = {"paper": 24 * 25.0**2, "tokens": 24 * 25.0, "equal": 1.0}[name] / 3
    now = {"paper": 4 * 25.0**2, "tokens": 4 * 25.0, "equal": 1.0}[name]
    given = weigh(contributions((100, 4), (2500, 100)), (0, 2), 24, named(name))
    assert given == pytest.approx([now / (now + late), late / (now + late)])


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_a_weight_that_is_no_share_stops_the_merge(bad: float) -> None:
    with pytest.raises(ValueError, match=r"sync\.weights: .* gives .* finite number above 0"):
        weigh(contributions((100, 4), (200, 4)), (0, 0), 24, lambda progress: bad)


def half(progress: Progress) -> float:
    return {1.0: 1.0, 2.0: 0.0, 3.0: float("nan")}[progress.steps]


@pytest.mark.parametrize(("steps", "says"), [(2.0, "gives 0.0"), (3.0, "gives nan"), (4.0, "fails: KeyError: 4.0")])
def test_a_rule_that_fails_on_real_progress_is_named_with_the_progress_and_the_fix(steps: float, says: str) -> None:
    assert weighed(half, Progress(8.0, 1.0)) == 1.0
    with pytest.raises(BadWeight) as caught:
        weighed(half, Progress(8.0, steps))
    told = str(caught.value)
    assert told.startswith(f"sync.weights: {__name__}:half {says} for Progress(tokens=8.0, steps={steps}, age=0)")
    assert told.endswith("return a finite number above 0 for any progress, and resume the run")
