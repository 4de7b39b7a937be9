"""Baseline for the shapes task without a network: softmax regression on the pixels of the same images.

python -m examples.shapes.baseline
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import optax

from examples.shapes.task import SHAPES, SIDE, Shapes
from learners.config import DataConfig

IMAGES, HELD_OUT, STEPS = 8192, 1024, 300


def main() -> None:
    task = Shapes(DataConfig(), seed=0)
    train, held_out = task.batch(0, IMAGES), task.held_out(0, HELD_OUT)

    def loss(weights: jax.Array, batch: dict[str, jax.Array]) -> jax.Array:
        scores = batch["image"].reshape(-1, SIDE * SIDE) @ weights[:-1] + weights[-1]
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(scores, batch["shape"]))

    weights = jnp.zeros((SIDE * SIDE + 1, len(SHAPES)))
    optimizer = optax.lbfgs()
    state = optimizer.init(weights)

    @jax.jit
    def step(weights: jax.Array, state: optax.OptState) -> tuple[jax.Array, optax.OptState]:
        def objective(weights: jax.Array) -> jax.Array:
            return loss(weights, train) + 1e-3 * jnp.sum(weights**2)

        value, gradient = jax.value_and_grad(objective)(weights)
        updates, state = optimizer.update(gradient, state, weights, value=value, grad=gradient, value_fn=objective)
        return optax.apply_updates(weights, updates), state

    for _ in range(STEPS):
        weights, state = step(weights, state)
    print(f"guessing            {math.log(len(SHAPES)):.3f} nats per image")
    print(f"softmax regression  {loss(weights, held_out):.3f} nats per image, held out")


if __name__ == "__main__":
    main()
