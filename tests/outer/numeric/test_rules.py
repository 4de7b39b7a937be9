"""Merge rules: those in the box, a user's own, and what is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from outer.numeric.rules import RULES, GradientStack, Lengths, check, named
from outer.protocol.fragments import Fragment, Tensor
from tests.outer.numeric.merging import merge

Floats = NDArray[np.float64]
HERE = "tests.outer.numeric.test_rules"


def damped(lengths: Lengths) -> Floats:
    limit = 2 * (lengths.norms @ lengths.weights)[:, None]
    return lengths.weights * np.minimum(1, limit / np.maximum(lengths.norms, 1e-30))


def by_the_order(lengths: Lengths) -> Floats:
    return np.eye(len(lengths.weights))[0]


def of_no_length(lengths: Lengths) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return lengths.weights / lengths.norms


def of_other_shape(lengths: Lengths) -> Floats:
    return np.ones((7, 7))


CALLS = itertools.count()


def of_its_own_mind(lengths: Lengths) -> Floats:
    return lengths.weights * next(CALLS)


NO_FUNCTION = 3


def lengths(*norms: float, weights: list[float] | None = None) -> GradientStack:
    """One vector's; the gradients are orthogonal."""
    stack = np.zeros((len(norms), len(norms), 1))
    for place, norm in enumerate(norms):
        stack[place, place, 0] = norm
    return GradientStack(stack, np.array(weights or [1 / len(norms)] * len(norms)))


@pytest.mark.parametrize("name", [*RULES, f"{HERE}:damped"])
def test_a_sound_rule_passes(name: str) -> None:
    check(name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("rad", "known are avg, rda"),
        ("mean", "is no merge rule"),
        (f"{HERE}:nobody", "does not import"),
        ("nowhere.at_all:rule", "does not import"),
        (f"{HERE}:NO_FUNCTION", "not callable"),
        (f"{HERE}:by_the_order", "order of the learners"),
        (f"{HERE}:of_no_length", "not finite"),
        (f"{HERE}:of_other_shape", "fails for 2 gradients: ValueError"),
        (f"{HERE}:of_its_own_mind", "other shares for the same gradients"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(name: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check(name)


@pytest.mark.parametrize("rule", ["rda", f"{HERE}:damped"])
@pytest.mark.parametrize("count", [3, 12])
def test_a_merge_adds_up_by_the_rules_shares(rule: str, count: int) -> None:
    """With so many that inner products are formed, and with more."""
    fragment = Fragment(0, (Tensor("w", (40, 30), "float32"),))
    drawn = np.random.default_rng(4)
    gradients = [drawn.normal(size=1200).astype(np.float32) * 10.0 ** drawn.integers(-2, 2) for _ in range(count)]
    weights = (np.arange(1.0, count + 1) / sum(range(count + 1))).tolist()
    found = merge(fragment, gradients, weights, {"w": rule}, "tensor")
    function: Callable[[Any], Floats] = named(rule)
    stack = np.array(gradients, np.float64)[:, :, None]
    shares = np.broadcast_to(function(GradientStack(stack, np.array(weights))), (1, count))[0]
    scale = max(np.abs(gradient).max() for gradient in gradients)
    np.testing.assert_allclose(found, shares @ stack[:, :, 0], rtol=0, atol=2e-6 * scale)
