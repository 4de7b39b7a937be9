"""A dense decoder as language models have it today, in plain JAX.

RMSNorm before each branch, rotary positions, grouped queries, SwiGLU, no biases: it computes what transformers'
LlamaForCausalLM does, and with `qk_norm` Qwen3ForCausalLM (huggingface.py). One leaf per matrix and layer, so that the
tensors can be dealt into fragments.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from learners.training.models import layers
from learners.training.models.cross_entropy import cross_entropy
from learners.training.models.decoder_config import DecoderConfig
from learners.training.models.layers import Params


def init(rng: jax.Array, config: DecoderConfig, vocabulary: int) -> Params:
    """Fresh float32 parameters. Matrices are [in, out] with variance 1 / in; less for the outputs of branches."""
    width, residual = config.width, (2 * config.layers) ** -0.5  # keeps the sum of all branches at scale one
    draw = layers.matrices(rng, 2 + 8 * config.layers)

    def block() -> Params:
        mlp = layers.mlp_init(draw, width, config.inside, residual)
        attention = layers.attention_init(
            draw, width, config.heads, config.key_heads, config.features, residual, config.qk_norm
        )
        return {"attention": attention, "mlp": mlp}

    # A tied matrix is the output too, whose rows need norm 1.
    embed = draw(vocabulary, width, (vocabulary / width) ** 0.5 if config.tied else vocabulary**0.5)
    head = {} if config.tied else {"head": draw(width, vocabulary)}
    return {"embed": embed, "blocks": [block() for _ in range(config.layers)], "norm": jnp.ones(width), **head}


def features(params: Params, tokens: jax.Array, config: DecoderConfig) -> jax.Array:
    """[batch, length, width] before the output, in the parameters' dtype, for tokens int[batch, length]."""
    angles = layers.rotary(tokens.shape[1], config.features, config.rope_theta)
    plain = partial(_layer, config=config)
    layer = jax.checkpoint(plain) if config.remat else plain
    x = params["embed"][tokens]
    for block in params["blocks"]:
        x = layer(block, x, angles)
    return layers.rms_norm(x, params["norm"], config.norm_eps)


def head(params: Params) -> jax.Array:
    """The output matrix [width, vocabulary]."""
    matrix: jax.Array = params["head"] if "head" in params else params["embed"].T
    return matrix


def loss(params: Params, tokens: jax.Array, features: Callable[[Params, jax.Array], jax.Array]) -> jax.Array:
    """Mean cross-entropy in nats per token, float32 scalar, of int[batch, length + 1] by these features."""
    tokens = tokens.astype(jnp.int32)
    return cross_entropy(features(params, tokens[:, :-1]), head(params), tokens[:, 1:])


def sharding(
    shapes: Params, mesh: Mesh, down: tuple[str | None, str | None] = ("model", "batch")
) -> dict[str, PartitionSpec]:
    """Each matrix over both axes of the mesh where they divide it: "model" cuts heads and hidden features.

    Over "batch" it is FSDP: XLA gathers a matrix for its use. `down`: the axes of an MLP's output. Pattern of tensor
    paths to specification.
    """
    leaves: dict[str, Any] = {name: shapes[name] for name in ("embed", "head") if name in shapes}
    leaves |= {f"*/{name}": leaf for branch in shapes["blocks"][0].values() for name, leaf in branch.items()}
    axes = {"embed": ("model", "batch"), "*/out": ("model", "batch"), "*/down": down}
    spec: Any = PartitionSpec  # JAX leaves its constructor untyped

    def cut(name: str, shape: tuple[int, ...]) -> PartitionSpec:
        of = zip(axes.get(name, ("batch", "model")), shape, strict=True)
        placed: PartitionSpec = spec(*(axis if size % mesh.shape[axis] == 0 else None for axis, size in of))
        return placed

    return {name: cut(name, leaf.shape) for name, leaf in leaves.items() if len(leaf.shape) == 2}


def _layer(block: Params, x: jax.Array, angles: jax.Array, config: DecoderConfig) -> jax.Array:
    x = x + layers.attention(block["attention"], x, config.heads, config.norm_eps, angles)
    return x + layers.gated_mlp(block["mlp"], x, config.norm_eps)
