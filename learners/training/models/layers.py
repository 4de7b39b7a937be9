"""Layers of the decoder and of examples/digits: RMSNorm, attention, rotary positions, the gated MLP.

Matrices are [in, out]. Norms, rotary angles and softmax are computed in float32, whatever the dtype of the parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from learners.training.models.decoder_config import Architecture

Params = dict[str, Any]
Draw = Callable[..., jax.Array]  # (rows, columns, scale) -> a matrix


def matrices(rng: jax.Array, count: int) -> Draw:
    """Draws up to `count` float32 matrices [rows, columns] of variance scale^2 / rows, each with a key of its own."""
    keys = iter(jax.random.split(rng, count))

    def matrix(rows: int, columns: int, scale: float = 1.0) -> jax.Array:
        drawn: jax.Array = jax.random.normal(next(keys), (rows, columns)) * (scale * rows**-0.5)
        return drawn

    return matrix


def attention_init(
    draw: Draw, width: int, heads: int, kv_heads: int, head_width: int, residual: float, like: Architecture
) -> Params:
    """Parameters of `attention`; draws four matrices. `residual` scales the output's."""
    count = {"query": heads, "key": kv_heads, "value": kv_heads}
    gains = {name: {"head": 1, "all": count[name]}[like.qk_norm] for name in ("query", "key") if like.qk_norm}
    return {
        **norms_init(width, like),
        "query": draw(width, heads * head_width),
        "key": draw(width, kv_heads * head_width),
        "value": draw(width, kv_heads * head_width),
        "out": draw(heads * head_width, width, residual),
        **{f"{name}_norm": jnp.ones(each * head_width) for name, each in gains.items()},
        **{f"{name}_bias": jnp.zeros(each * head_width) for name, each in count.items() if like.qkv_bias},
    }


def norms_init(width: int, like: Architecture) -> Params:
    """Gains of a branch's norms."""
    names = {"before": ["norm"], "after": ["after"], "both": ["norm", "after"]}[like.norms]
    return {name: jnp.ones(width) for name in names}


def attention(
    params: Params, x: jax.Array, heads: int, eps: float, angles: jax.Array | None = None, cap: float | None = None
) -> jax.Array:
    """Self-attention with grouped queries (arXiv 2305.13245): [batch, length, width] in and out.

    With `angles`, of `rotary`, it is causal, and queries and keys are rotated; without, all positions see each other.
    Of parameters, those that are there are applied: `norm` to x; `query_bias`, `key_bias`, `value_bias`; `query_norm`
    and `key_norm`, of one head or of all, to queries and keys (arXiv 2302.05442); `after` to what comes out. `cap`,
    with angles: what the logits approach at most, by a hyperbolic tangent (arXiv 2408.00118, section 2).
    """
    batch, length, _ = x.shape
    head_width = params["query"].shape[1] // heads
    x = rms_norm(x, params["norm"], eps) if "norm" in params else x

    def of(name: str) -> jax.Array:
        made: jax.Array = jnp.matmul(x, params[name]) + params.get(f"{name}_bias", 0.0)
        if (gain := params.get(f"{name}_norm")) is not None:
            made = rms_norm(made.reshape(batch, length, -1, gain.size), gain, eps)
        return made.reshape(batch, length, -1, head_width)

    query, key, value = of("query"), of("key"), of("value")
    if angles is not None:
        query, key = _rotated(query, angles), _rotated(key, angles)
    if cap is None:
        mixed = jax.nn.dot_product_attention(query, key, value, is_causal=angles is not None)
    else:
        mixed = _capped(query, key, value, cap)
    out = jnp.matmul(mixed.reshape(batch, length, -1), params["out"])
    return rms_norm(out, params["after"], eps) if "after" in params else out


def _capped(query: jax.Array, key: jax.Array, value: jax.Array, cap: float) -> jax.Array:
    """Causal attention of [batch, length, heads, features], its logits in float32 below `cap`."""
    batch, length, _, features = query.shape
    groups = query.reshape(batch, length, key.shape[2], -1, features)
    scores = jnp.einsum("btkgf,bskf->bkgts", groups, key, preferred_element_type=jnp.float32) * features**-0.5
    scores = jnp.where(jnp.tri(length, dtype=bool), cap * jnp.tanh(scores / cap), -jnp.inf)
    shares = jax.nn.softmax(scores).astype(value.dtype)
    return jnp.einsum("bkgts,bskf->btkgf", shares, value).reshape(query.shape)


def mlp_init(draw: Draw, width: int, hidden: int, residual: float, like: Architecture) -> Params:
    """Parameters of `gated_mlp`; draws three matrices."""
    return {
        **norms_init(width, like),
        "gate": draw(width, hidden),
        "up": draw(width, hidden),
        "down": draw(hidden, width, residual),
    }


def gated_mlp(params: Params, x: jax.Array, eps: float, gelu: bool = False) -> jax.Array:
    """SwiGLU or GeGLU (arXiv 2002.05202), with the norms that are there: [batch, length, width] in and out."""
    x = rms_norm(x, params["norm"], eps) if "norm" in params else x
    gate = jnp.matmul(x, params["gate"])
    out = jnp.matmul((jax.nn.gelu(gate) if gelu else jax.nn.silu(gate)) * (x @ params["up"]), params["down"])
    return rms_norm(out, params["after"], eps) if "after" in params else out


def rms_norm(x: jax.Array, gain: jax.Array, eps: float) -> jax.Array:
    """RMSNorm over the last axis (arXiv 1910.07467), in the dtype of x."""
    wide = x.astype(jnp.float32)
    mean_square = jnp.mean(wide * wide, axis=-1, keepdims=True)
    return jnp.multiply((wide * jax.lax.rsqrt(mean_square + eps)).astype(x.dtype), gain)


def rotary(
    length: int, features: int, theta: float, scaling: tuple[()] | tuple[float, float, float, int] = ()
) -> jax.Array:
    """Angles float32[length, features / 2]: position times theta ** (-2 i / features) (arXiv 2104.09864).

    `scaling`: (factor, low, high, positions), as Llama 3: rates that turn less than `low` times in so many positions
    are divided by `factor`, those that turn more than `high` times stay, and the others are between.
    """
    rates = theta ** (-jnp.arange(0, features, 2, dtype=jnp.float32) / features)
    if scaling:
        factor, low, high, positions = scaling
        kept = jnp.clip((positions * rates / (2.0 * jnp.pi) - low) / (high - low), 0.0, 1.0)
        rates *= kept + (1.0 - kept) / factor
    return jnp.outer(jnp.arange(length, dtype=jnp.float32), rates)


def _rotated(x: jax.Array, angles: jax.Array) -> jax.Array:
    """Rotate the pairs (x_i, x_{i + features / 2}) of [batch, length, heads, features] by their angles."""
    first, second = jnp.split(x, 2, axis=-1)
    cosine, sine = (part.astype(x.dtype)[:, None, :] for part in (jnp.cos(angles), jnp.sin(angles)))
    return jnp.concatenate([first * cosine - second * sine, first * sine + second * cosine], axis=-1)
