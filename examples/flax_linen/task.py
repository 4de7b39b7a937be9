"""Example task: the spirals, told apart by a Flax Linen module, whose parameters are a pytree as they come."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from examples.spirals.task import Spirals
from learners.config import DataConfig


class Perceptron(nn.Module):
    width: int
    depth: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(self.depth):
            x = nn.silu(nn.Dense(self.width)(x))
        return nn.Dense(2)(x)


class LinenSpirals(Spirals):
    def __init__(self, data: DataConfig, seed: int, width: int = 48, depth: int = 3, turns: float = 1.75) -> None:
        self.seed, self.turns, self._module = seed, turns, Perceptron(width, depth)

    def init(self, rng: jax.Array) -> Any:
        return self._module.init(rng, jnp.zeros((1, 2)))["params"]

    def loss(self, params: Any, batch: Any, rng: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        points, arms = batch
        scores = self._module.apply({"params": params}, points)
        losses = optax.softmax_cross_entropy_with_integer_labels(scores, arms)
        return jnp.mean(losses), {"accuracy": jnp.mean(jnp.argmax(scores, axis=-1) == arms)}
