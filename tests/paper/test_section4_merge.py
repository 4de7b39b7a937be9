"""The paper's section 4: averaging, radial-directional averaging, and the outer optimizer."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from outer.protocol.fragments import Fragment, Tensor
from tests.outer.numeric.merging import merge

SHAPE = (4, 4)
MATRIX = Fragment(0, (Tensor("w", SHAPE, "float32"),))


def orthogonal(count: int, norm: float) -> list[NDArray[np.float64]]:
    basis, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(math.prod(SHAPE), count)))
    return [norm * basis[:, column] for column in range(count)]


@pytest.mark.parametrize("learners", [2, 4, 8])
def test_rda_keeps_the_length_of_unrelated_gradients_and_avg_shrinks_it_by_the_root_of_their_number(
    learners: int,
) -> None:
    """Section 4, RDA: so the outer learning rate need not follow M."""
    given = orthogonal(learners, 3.0)

    def length(rule: str) -> float:
        return float(np.linalg.norm(merge(MATRIX, given, [1 / learners] * learners, {"w": rule}, "tensor")))

    assert length("rda") == pytest.approx(3.0)
    assert length("avg") == pytest.approx(3.0 / math.sqrt(learners))
