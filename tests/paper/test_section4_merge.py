"""The paper's section 4: averaging, radial-directional averaging, and the outer optimizer."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from outer.config import OuterConfig
from outer.numeric.optimizer import OuterOptimizer
from outer.numeric.rules import rules
from outer.protocol.fragments import Fragment, Tensor
from tests.outer.numeric.merging import merge

Vector = NDArray[np.float64]
SHAPE = (4, 4)
MATRIX = Fragment(0, (Tensor("w", SHAPE, "float32"),))


def vectors(count: int, seed: int = 0) -> list[Vector]:
    return list(np.random.default_rng(seed).normal(size=(count, math.prod(SHAPE))))


def orthogonal(count: int, norm: float) -> list[Vector]:
    basis, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(math.prod(SHAPE), count)))
    return [norm * basis[:, column] for column in range(count)]


def merged(rule: str, given: list[Vector], weights: list[float] | None = None, granularity: str = "tensor") -> Vector:
    return merge(MATRIX, given, weights or [1 / len(given)] * len(given), {"w": rule}, granularity)


def test_avg_is_the_weighted_mean() -> None:
    """Section 4, Avg."""
    one, two, three = vectors(3)
    assert merged("avg", [one, two, three], [0.5, 0.3, 0.2]) == pytest.approx(0.5 * one + 0.3 * two + 0.2 * three)


def test_rda_is_the_mean_of_the_lengths_along_the_mean_of_the_directions() -> None:
    """Section 4, RDA. The radius is the mean of the norms; printed is the mean of the vectors, a misprint."""
    one, two = vectors(2)
    two = 5.0 * two + one
    lengths = [np.linalg.norm(one), np.linalg.norm(two)]
    direction = 0.75 * one / lengths[0] + 0.25 * two / lengths[1]
    expected = (0.75 * lengths[0] + 0.25 * lengths[1]) * direction / np.linalg.norm(direction)
    assert merged("rda", [one, two], [0.75, 0.25]) == pytest.approx(expected)


@pytest.mark.parametrize("learners", [2, 4, 8])
def test_rda_keeps_the_length_of_unrelated_gradients_and_avg_shrinks_it_by_the_root_of_their_number(
    learners: int,
) -> None:
    """Section 4, RDA: so the outer learning rate need not follow M."""
    given = orthogonal(learners, 3.0)
    assert np.linalg.norm(merged("rda", given)) == pytest.approx(3.0)
    assert np.linalg.norm(merged("avg", given)) == pytest.approx(3.0 / math.sqrt(learners))


def test_where_learners_agree_rda_and_avg_are_the_same() -> None:
    """Section 4, RDA: of parallel gradients the mean length is the length of the mean."""
    [one] = vectors(1)
    assert merged("rda", [one, 3.0 * one]) == pytest.approx(2.0 * one)
    assert merged("avg", [one, 3.0 * one]) == pytest.approx(2.0 * one)


def test_a_zero_gradient_has_no_direction_and_shortens_the_radius_only() -> None:
    """Section 4, RDA: phi(0) = 0."""
    [one] = vectors(1)
    assert merged("rda", [one, np.zeros_like(one)]) == pytest.approx(0.5 * one)


def test_directions_that_cancel_are_averaged_instead() -> None:
    """Section 4, RDA. Departure 0003: also where they nearly cancel, so that noise is not blown up to full length."""
    [one] = vectors(1)
    nearly = merged("rda", [one, -1.001 * one])
    assert np.linalg.norm(nearly) < 0.001 * np.linalg.norm(one)
    assert nearly == pytest.approx(merged("avg", [one, -1.001 * one]))


def test_what_counts_as_one_vector_can_be_chosen() -> None:
    """Section 4, granularity: not stated in the paper; by default a tensor."""
    assert OuterConfig.model_validate({}).granularity == "tensor"
    one, two = (vector.reshape(SHAPE) for vector in vectors(2, seed=3))
    by_row = merged("rda", [one.ravel(), two.ravel()], granularity="row").reshape(SHAPE)
    for row in range(SHAPE[0]):
        lengths = [np.linalg.norm(each[row]) for each in (one, two)]
        direction = one[row] / lengths[0] + two[row] / lengths[1]
        assert by_row[row] == pytest.approx(np.mean(lengths) * direction / np.linalg.norm(direction))


def test_the_embedding_is_averaged_and_matrices_get_rda() -> None:
    """Section 4, model and embedding: outer gradients of embeddings are not near-orthogonal."""
    tensors = [Tensor("embed/tokens", (8, 4), "float32"), Tensor("blocks/0/up", (4, 4), "float32")]
    assert rules(tensors, OuterConfig.model_validate({}).merge) == {"embed/tokens": "avg", "blocks/0/up": "rda"}


def test_the_outer_optimizer_is_sgd_with_nesterov_momentum_and_a_state_for_each_fragment() -> None:
    """Section 4, outer optimizer. Departure 0004: in float64, kept in float32. Its settings are not published."""
    lr, momentum = 0.7, 0.9
    optimizer = OuterOptimizer(OuterConfig.model_validate({"lr": lr, "momentum": momentum}))
    theta = np.linspace(-1, 1, 6).astype(np.float32)
    state, velocity, expected = optimizer.init(theta), np.zeros(6), theta.astype(np.float64)
    untouched = optimizer.init(theta)
    for gradient in np.random.default_rng(5).normal(size=(4, 6)):
        theta, state = optimizer.step(theta, gradient, state)
        velocity = momentum * velocity + gradient
        expected = expected - lr * (gradient + momentum * velocity)
    assert theta == pytest.approx(expected, rel=1e-5, abs=1e-6) and theta.dtype == np.float32
    fresh, _ = optimizer.step(np.zeros(6, np.float32), np.ones(6), untouched)
    assert fresh == pytest.approx(-lr * (1.0 + momentum)), "another fragment's steps left its state alone"
