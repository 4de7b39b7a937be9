"""The outer optimizer beside those of optax: SGD whose momentum waits. It counts the steps of one fragment."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax


class Delayed(NamedTuple):
    """The state of `delayed_nesterov`."""

    gathering: jax.Array  # int32, gradients since the momentum was applied
    gathered: Any  # their sum
    velocity: Any


def delayed_nesterov(learning_rate: float, momentum: float = 0.9, every: int = 4) -> optax.GradientTransformation:
    """Delayed Nesterov: each gradient is applied at once, momentum only with each `every`-th, for all of them.

    With N = `every`, m the velocity and G the sum of N gradients: m' = momentum m + G / N, and the N-th step is
    lr (g + N momentum m'), the others lr g. With N = 1 it is Nesterov SGD. (Liu et al., arXiv 2401.09135, algorithm 3,
    with c = 0; its gradients are single workers', so its learning rate is N times this one.) Raises ValueError for an
    `every` below 1.
    """
    if every < 1:
        raise ValueError(f"every = {every} must be at least 1")

    def init(params: Any) -> Delayed:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return Delayed(jnp.zeros((), jnp.int32), zeros, zeros)

    def update(gradient: Any, state: Delayed, params: Any = None) -> tuple[Any, Delayed]:
        last = state.gathering == every - 1
        gathered = jax.tree.map(jnp.add, state.gathered, gradient)
        moved = jax.tree.map(lambda m, g: jnp.where(last, momentum * m + g / every, m), state.velocity, gathered)
        kept = jax.tree.map(lambda g: jnp.where(last, 0.0, g), gathered)
        pull = jnp.where(last, every * momentum, 0.0)
        step = jax.tree.map(lambda g, m: -learning_rate * (g + pull * m), gradient, moved)
        return step, Delayed(jnp.where(last, 0, state.gathering + 1), kept, moved)

    return optax.GradientTransformation(init, update)
