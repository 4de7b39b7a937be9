"""Example task: a multilayer perceptron, as an Equinox module, that classifies points of two spirals.

An Equinox module is a pytree of arrays and other leaves. The arrays are the parameters. The task keeps the other
leaves, such as activation functions, and puts them back before it calls the module.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from learners.config import DataConfig, InnerConfig
from outer.numeric.optimizer import resolve

_TRAINING, _HELD_OUT = 0, 1


class Spirals:
    """Classifies points of the plane by spiral. Implements Task of learners/training/task.py; a point is a token."""

    loss_unit = "nats/point"

    def __init__(self, data: DataConfig, seed: int, width: int = 48, depth: int = 3, turns: float = 1.75) -> None:
        self.seed, self.turns = seed, turns
        self._shape = {"in_size": 2, "out_size": 2, "width_size": width, "depth": depth}
        # Shapes only; computes nothing.
        made = eqx.filter_eval_shape(self._module, jax.random.key(0))
        self._rest = eqx.partition(made, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))[1]

    def _module(self, rng: jax.Array) -> eqx.nn.MLP:
        return eqx.nn.MLP(**self._shape, activation=jax.nn.silu, key=rng)

    def init(self, rng: jax.Array) -> Any:
        return eqx.filter(self._module(rng), eqx.is_inexact_array)

    def loss(self, params: Any, batch: Any, rng: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        points, arms = batch
        scores = jax.vmap(eqx.combine(params, self._rest))(points)
        losses = optax.softmax_cross_entropy_with_integer_labels(scores, arms)
        return jnp.mean(losses), {"accuracy": jnp.mean(jnp.argmax(scores, axis=-1) == arms)}

    def optimizer(self, inner: InnerConfig) -> optax.GradientTransformation:
        return resolve("inner", inner.optimizer, inner.lr, inner.options)

    def batch(self, start: int, count: int) -> Any:
        return self._points(_TRAINING, start, count)

    def tokens(self, count: int) -> int:
        return count

    def held_out(self, start: int, count: int) -> Any:
        return self._points(_HELD_OUT, start, count)

    def _points(self, stream: int, start: int, count: int) -> Any:
        """(points float32[count, 2], arms int32[count]): four random numbers per point, from a seekable generator."""
        random = np.random.Philox(key=[self.seed, stream], counter=[start, 0, 0, 0])  # a block is four draws
        raw = random.random_raw(4 * count).reshape(count, 4) / 2.0**64
        arms = (raw[:, 0] < 0.5).astype(np.int32)
        along = np.sqrt(raw[:, 1])  # along the spiral, at uniform density
        angle = 2 * np.pi * self.turns * along + np.pi * arms
        points = along[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1) + 0.06 * (raw[:, 2:] - 0.5)
        return points.astype(np.float32), arms
