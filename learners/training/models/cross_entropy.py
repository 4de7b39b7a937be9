"""Cross-entropy from features, in pieces, so that the logits of a whole batch are never in memory at once."""

from __future__ import annotations

import jax
import jax.numpy as jnp

PIECE = 1 << 24  # logits of one piece: 64 MiB in float32


def cross_entropy(x: jax.Array, head: jax.Array, targets: jax.Array, most: int = PIECE) -> jax.Array:
    """Mean nats per token, float32 scalar, of features [batch, length, width] and targets int[batch, length].

    `head` [width, vocabulary]. Above `most` logits, the sequence is cut into pieces of positions: the logits of a
    piece are float32[batch, piece, vocabulary], and are computed again for the gradient. A piece has all samples of the
    batch, so that each of several devices keeps its own, and at least one position. The gradient of `head` is summed
    over pieces in float32.
    """
    batch, length, width = x.shape
    pieces = min(length, -(-batch * length * head.shape[1] // most))
    if pieces == 1:
        return jnp.mean(_nats(x, head, targets))
    each = -(-length // pieces)
    pieces = -(-length // each)  # or the last ones would be padding alone
    padding = pieces * each - length
    features = jnp.pad(x, ((0, 0), (0, padding), (0, 0))).reshape(batch, pieces, each, width)
    wanted = jnp.pad(targets, ((0, 0), (0, padding))).reshape(batch, pieces, each)
    counted = (jnp.arange(pieces * each) < length).reshape(pieces, each)
    wide = head.astype(jnp.float32)

    @jax.checkpoint
    def piece(total: jax.Array, given: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        x, targets, counted = given
        return total + jnp.where(counted, _nats(x, wide.astype(x.dtype), targets), 0.0).sum(), None

    over = jnp.moveaxis(features, 1, 0), jnp.moveaxis(wanted, 1, 0), counted
    total: jax.Array = jax.lax.scan(piece, jnp.float32(0.0), over)[0]
    return total / (batch * length)


def logits(x: jax.Array, head: jax.Array) -> jax.Array:
    """float32[..., vocabulary] of features [..., width] and head [width, vocabulary]."""
    return jnp.matmul(x, head, preferred_element_type=jnp.float32)


def _nats(x: jax.Array, head: jax.Array, targets: jax.Array) -> jax.Array:
    """float32[batch, length]."""
    scores = logits(x, head)
    right = jnp.take_along_axis(scores, targets[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(scores, axis=-1) - right
