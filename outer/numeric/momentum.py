"""Outer optimizers beside optax's: SGD whose momentum waits, or starts again. Each is one optax transformation.

They see one fragment at a time, so what they count and compare is the fragment's own. With the state at zero and no
momentum both are plain SGD.
"""

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


def restarted_sgd(learning_rate: float, momentum: float = 0.9, nesterov: bool = True) -> optax.GradientTransformation:
    """SGD with momentum that starts again from zero where gradient and velocity oppose: their inner product is below 0.

    (O'Donoghue and Candes, 2015: the gradient scheme of adaptive restart.)
    """
    sgd = optax.sgd(1.0, momentum, nesterov)

    def update(gradient: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        products = jax.tree.map(lambda g, m: jnp.sum(g * m), gradient, state[0].trace)
        oppose = sum(jax.tree.leaves(products)) < 0.0
        state = jax.tree.map(lambda leaf: jnp.where(oppose, 0.0, leaf), state)
        step, state = sgd.update(gradient, state, params)
        return jax.tree.map(lambda each: learning_rate * each, step), state

    return optax.GradientTransformation(sgd.init, update)
