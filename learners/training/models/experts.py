"""A mixture of gated MLPs: a router sends each token to its k best experts, and none is dropped.

`dense`: every expert computes every token, and the router's shares, zero for most, weigh the results: the arithmetic of
experts / k MLPs, in three products. `ragged`: the choices are sorted by expert, and jax.lax.ragged_dot multiplies each
expert's rows: the arithmetic of one, where the backend has a kernel for it. docs/models.md has the measurements.

Gates are [width, experts * hidden] and outputs [hidden, experts * width]: a column belongs to one
expert.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from learners.training.models.layers import Draw, Params, rms_norm


class Routing(NamedTuple):
    """Statistics of one layer's router over a batch: float32 scalars."""

    balance: jax.Array  # experts * sum of load times mean probability, at least about 1 (arXiv 2101.03961, section 2.2)
    z: jax.Array  # mean squared log of the sum of the router's exponentials (arXiv 2202.08906, section 2)
    load_max: jax.Array  # the busiest expert's share of the choices, relative to an even share: 1 is even
    load_min: jax.Array  # the least busy expert's


def init(draw: Draw, width: int, hidden: int, experts: int, residual: float) -> Params:
    """Parameters of `mixture`; draws four matrices."""
    return {
        "norm": jnp.ones(width),
        "router": draw(width, experts),
        "gate": draw(width, experts * hidden),
        "up": draw(width, experts * hidden),
        "down": draw(hidden, experts * width, residual),
    }


def mixture(params: Params, x: jax.Array, chosen: int, eps: float, ragged: bool = False) -> tuple[jax.Array, Routing]:
    """The `chosen` best experts of each token, pre-norm: [batch, length, width] in and out; and what was routed.

    With several, their probabilities are scaled to a sum of 1. With one, its probability is its share, since the router
    would have no gradient otherwise. The router is computed in float32.
    """
    width, experts = x.shape[-1], params["router"].shape[1]
    x = rms_norm(x, params["norm"], eps)
    scores = jnp.matmul(x.astype(jnp.float32), params["router"].astype(jnp.float32))
    probabilities = jax.nn.softmax(scores)
    best, which = jax.lax.top_k(probabilities, chosen)
    if chosen > 1:
        best = best / best.sum(axis=-1, keepdims=True)
    picked = jax.nn.one_hot(which, experts)  # [batch, length, chosen, experts]
    if ragged:
        y = _ragged(params, x.reshape(-1, width), best.reshape(-1), which.reshape(-1)).reshape(x.shape)
    else:
        y = _dense(params, x, jnp.einsum("blk,blke->ble", best, picked).astype(x.dtype))
    return y, _routing(scores, probabilities, picked)


def _dense(params: Params, x: jax.Array, shares: jax.Array) -> jax.Array:
    """`shares` [batch, length, experts]."""
    batch, length, width = x.shape
    experts = shares.shape[-1]
    hidden = jax.nn.silu(x @ params["gate"]) * (x @ params["up"])
    weighed = hidden.reshape(batch, length, experts, -1) * shares[..., None]
    return jnp.einsum("bleh,hew->blw", weighed, params["down"].reshape(-1, experts, width))


def _ragged(params: Params, x: jax.Array, shares: jax.Array, which: jax.Array) -> jax.Array:
    """Compute x [tokens, width]: choice i, of token i // chosen, goes to expert which[i] for shares[i]."""
    tokens, experts = len(x), params["router"].shape[1]
    order = jnp.argsort(which)
    token, sizes = order // (len(which) // tokens), jnp.bincount(which, length=experts)
    gate, up, down = (
        jnp.moveaxis(params[name].reshape(len(params[name]), experts, -1), 1, 0) for name in ("gate", "up", "down")
    )
    rows = x[token]
    hidden = jax.nn.silu(jax.lax.ragged_dot(rows, gate, sizes)) * jax.lax.ragged_dot(rows, up, sizes)
    weighed = jax.lax.ragged_dot(hidden, down, sizes) * shares[order, None].astype(x.dtype)
    return jnp.zeros_like(x).at[token].add(weighed)


def _routing(scores: jax.Array, probabilities: jax.Array, picked: jax.Array) -> Routing:
    experts = scores.shape[-1]
    load = experts * jnp.mean(picked, axis=(0, 1, 2))  # of each expert, relative to an even share
    return Routing(
        balance=jnp.sum(load * jnp.mean(probabilities, axis=(0, 1))),
        z=jnp.mean(jax.nn.logsumexp(scores, axis=-1) ** 2),
        load_max=load.max(),
        load_min=load.min(),
    )
