"""Example: rules of your own, each a function that the recipe names by its import path."""

from __future__ import annotations

import numpy as np
import optax

from outer.numeric.rules import Floats, Lengths

STEPS = 8


def geometric_median(lengths: Lengths) -> Floats:
    """The point with the least sum of weighted distances to the gradients, by Weiszfeld's iteration."""
    norms, weights = lengths.norms, lengths.weights
    each, near = np.eye(len(weights)), 1e-6 * norms.max(axis=1, keepdims=True) + 1e-30
    shares = np.broadcast_to(weights, norms.shape)
    for _ in range(STEPS):
        distances = np.stack([lengths.of_sums(one - shares) for one in each], axis=1)
        pull = weights / np.maximum(distances, near)
        shares = pull / pull.sum(axis=1, keepdims=True)
    return shares


def heavy_ball(learning_rate: float, momentum: float) -> optax.GradientTransformation:
    """Momentum without Nesterov's look ahead. `momentum` is outer.momentum; others come from outer.options."""
    return optax.chain(optax.trace(momentum), optax.scale(-learning_rate))
