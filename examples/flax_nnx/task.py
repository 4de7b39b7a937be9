"""Example task: the spirals, told apart by a Flax NNX module.

`nnx.split` gives the parameters as a pytree, and a graph definition that `nnx.merge` makes a module of again.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from examples.spirals.task import Spirals
from learners.config import DataConfig


class Perceptron(nnx.Module):
    def __init__(self, width: int, depth: int, rngs: nnx.Rngs) -> None:
        sizes = [2, *[width] * depth]
        self.layers = nnx.List([nnx.Linear(into, out, rngs=rngs) for into, out in pairwise(sizes)])
        self.head = nnx.Linear(width, 2, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = nnx.silu(layer(x))
        return self.head(x)


class NnxSpirals(Spirals):
    def __init__(self, data: DataConfig, seed: int, width: int = 48, depth: int = 3, turns: float = 1.75) -> None:
        self.seed, self.turns, self._sizes = seed, turns, (width, depth)
        self._graph = nnx.graphdef(nnx.eval_shape(self._module, jax.random.key(0)))

    def _module(self, rng: jax.Array) -> Perceptron:
        return Perceptron(*self._sizes, nnx.Rngs(rng))

    def init(self, rng: jax.Array) -> Any:
        return nnx.to_pure_dict(nnx.state(self._module(rng), nnx.Param))

    def loss(self, params: Any, batch: Any, rng: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        points, arms = batch
        scores = nnx.merge(self._graph, params)(points)
        losses = optax.softmax_cross_entropy_with_integer_labels(scores, arms)
        return jnp.mean(losses), {"accuracy": jnp.mean(jnp.argmax(scores, axis=-1) == arms)}
