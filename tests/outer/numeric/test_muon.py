"""Muon as an inner optimizer."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from outer.config import OuterConfig
from outer.numeric.optimizer import OuterOptimizer, resolve

LR = 0.01


def _tree(seed: int) -> dict[str, jax.Array]:
    keys = jax.random.split(jax.random.key(seed), 4)
    return {
        "embed": jax.random.normal(keys[0], (20, 6)),
        "norm": jax.random.normal(keys[1], (6,)),
        "out": jax.random.normal(keys[2], (6, 10)),
        "experts": jax.random.normal(keys[3], (3, 6, 8)),
    }


def _update(name: str, **options: object) -> dict[str, jax.Array]:
    params, gradients = _tree(0), _tree(1)
    optimizer = resolve("inner", name, LR, options)
    updates, _ = jax.jit(optimizer.update)(gradients, optimizer.init(params), params)
    return dict(updates)


def test_matrices_move_along_orthogonal_ones_of_adams_size() -> None:
    found = _update("muon", weight_decay=0.0)
    for matrix in (found["out"], *found["experts"]):
        values = np.linalg.svd(matrix, compute_uv=False)
        assert values.max() < 2 * values.min(), "five steps of Newton and Schulz bring all singular values near 1"
        size = float(jnp.sqrt(jnp.mean(matrix**2)))
        assert 0.6 * 0.2 * LR < size < 1.4 * 0.2 * LR


def test_what_is_no_hidden_matrix_is_stepped_by_adamw() -> None:
    found, adam = _update("muon", weight_decay=0.0), _update("nadamw", weight_decay=0.0)
    for name in ("embed", "norm"):
        np.testing.assert_array_equal(found[name], adam[name])
    np.testing.assert_array_equal(_update("muon", weight_decay=0.0, adam=["o*"])["out"], adam["out"])


def test_it_is_no_outer_optimizer_and_takes_a_list_of_patterns() -> None:
    with pytest.raises(ValueError, match="muon"):
        OuterOptimizer(OuterConfig(optimizer="muon"))
    with pytest.raises(ValueError, match="a list"):
        resolve("inner", "muon", LR, {"adam": "embed"})
