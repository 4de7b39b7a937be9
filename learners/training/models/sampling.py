"""Draws tokens from any model that scores the next one, within a window that moves along."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learners.training.data.mixture import Tokens

Params = Any
NextScores = Callable[[Params, jax.Array, jax.Array], jax.Array]  # (params, window int[L], position) -> [vocabulary]


def generate(
    params: Params,
    window: jax.Array,
    filled: jax.Array,
    length: int,
    temperature: jax.Array,
    top_k: int,
    rng: jax.Array,
    next_scores: NextScores,
    known: int,
) -> jax.Array:
    """Sample int32[length] tokens that continue the first `filled` (at least 1) tokens of window int32[L].

    `next_scores(params, window, i)`: the logits after the tokens 0 to i of a window. Each token sees the L tokens
    before it: a full window shifts, which rotary positions allow. Tokens below `known` are drawn from
    softmax(logits / temperature) over the `top_k` likeliest (0: all); at temperature 0 the likeliest is taken.
    """

    def step(state: tuple[jax.Array, jax.Array], key: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        window, filled = state
        scores = next_scores(params, window, filled - 1)[:known]
        if top_k:
            scores = jnp.where(scores >= jax.lax.top_k(scores, top_k)[0][-1], scores, -jnp.inf)
        drawn = jax.random.categorical(key, scores / jnp.maximum(temperature, 1e-6))
        token = jnp.where(temperature > 0.0, drawn, jnp.argmax(scores)).astype(window.dtype)
        full = filled == window.shape[0]
        moved = jnp.where(full, jnp.roll(window, -1), window)
        position = jnp.where(full, filled - 1, filled)
        return (moved.at[position].set(token), position + 1), token

    _, tokens = jax.lax.scan(step, (window, filled), jax.random.split(rng, length))
    return tokens


_compiled = jax.jit(generate, static_argnames=("length", "top_k", "next_scores", "known"))


def continued(
    next_scores: NextScores,
    params: Params,
    prompt: Tokens,
    window: int,
    length: int,
    temperature: float,
    top_k: int,
    known: int,
    rng: jax.Array,
) -> Tokens:
    """Continue a prompt, of which the model sees the last `window` (at least one) tokens, as `generate`: int32[length].

    Compiles once for each `next_scores`, length and `top_k`.
    """
    seen = prompt[-window:]
    given = np.zeros(window, dtype=np.int32)
    given[: len(seen)] = seen
    tokens = _compiled(
        params,
        given,
        np.int32(len(seen)),
        length=length,
        temperature=np.float32(temperature),
        top_k=min(top_k, known),
        rng=rng,
        next_scores=next_scores,
        known=known,
    )
    return np.asarray(tokens)
