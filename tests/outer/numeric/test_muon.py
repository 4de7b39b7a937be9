"""Muon as an inner optimizer."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
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


def test_a_stack_of_matrices_is_stepped_as_each_would_be() -> None:
    params, gradients = _tree(0)["experts"], _tree(1)["experts"]
    optimizer = resolve("inner", "muon", LR, {})
    update = jax.jit(optimizer.update)
    alone = [
        update({"x": gradient}, optimizer.init({"x": one}), {"x": one})[0]["x"]
        for one, gradient in zip(params, gradients, strict=True)
    ]
    np.testing.assert_allclose(_update("muon")["experts"], jnp.stack(alone), rtol=1e-4, atol=1e-6)


def test_it_learns_where_a_matrix_is_to_be_found() -> None:
    wanted = jax.random.normal(jax.random.key(2), (8, 8))
    params, optimizer = {"out": jnp.zeros((8, 8))}, resolve("inner", "muon", 0.2, {})
    state = optimizer.init(params)
    gradient = jax.grad(lambda params: jnp.sum((params["out"] - wanted) ** 2))
    update = jax.jit(lambda params, state: optimizer.update(gradient(params), state, params))
    for _ in range(60):
        updates, state = update(params, state)
        params = dict(optax.apply_updates(params, updates))
    assert float(jnp.mean((params["out"] - wanted) ** 2)) < 0.05 * float(jnp.mean(wanted**2))


def test_it_is_no_outer_optimizer_and_takes_a_list_of_patterns() -> None:
    with pytest.raises(ValueError, match="muon"):
        OuterOptimizer(OuterConfig(optimizer="muon"))
    with pytest.raises(ValueError, match="a list"):
        resolve("inner", "muon", LR, {"adam": "embed"})
