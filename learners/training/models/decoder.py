"""A dense decoder as language models have it today, in plain JAX.

RMSNorm, rotary positions, grouped queries, a gated MLP: it computes what transformers' LlamaForCausalLM and the others
of decoder_config.py do (huggingface.py). One leaf per matrix and layer, so that tensors can be dealt into fragments.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from learners.training.models import layers
from learners.training.models.decoder_config import LOCAL_LAYERS, DecoderConfig
from learners.training.models.layers import Params

PIECE = 1 << 24  # logits of one piece: 64 MiB in float32


def cross_entropy(
    x: jax.Array, head: jax.Array, targets: jax.Array, most: int = PIECE, cap: float | None = None
) -> jax.Array:
    """Mean nats per token, float32 scalar, of features [batch, length, width] and targets int[batch, length].

    `head` [width, vocabulary]; `cap`: of `logits`. Above `most` logits, the sequence is cut into pieces of positions:
    the logits of a piece are float32[batch, piece, vocabulary], and are computed again for the gradient. A piece has
    all samples of the batch, so that each of several devices keeps its own, and at least one position. The gradient of
    `head` is summed over pieces in float32.
    """
    batch, length, width = x.shape
    pieces = min(length, -(-batch * length * head.shape[1] // most))
    if pieces == 1:
        return jnp.mean(_nats(x, head, targets, cap))
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
        return total + jnp.where(counted, _nats(x, wide.astype(x.dtype), targets, cap), 0.0).sum(), None

    over = jnp.moveaxis(features, 1, 0), jnp.moveaxis(wanted, 1, 0), counted
    total: jax.Array = jax.lax.scan(piece, jnp.float32(0.0), over)[0]
    return total / (batch * length)


def logits(x: jax.Array, head: jax.Array, cap: float | None) -> jax.Array:
    """float32[..., vocabulary] of features [..., width] and head [width, vocabulary], below `cap`."""
    scores = jnp.matmul(x, head, preferred_element_type=jnp.float32)
    return scores if cap is None else cap * jnp.tanh(scores / cap)


def _nats(x: jax.Array, head: jax.Array, targets: jax.Array, cap: float | None) -> jax.Array:
    """float32[batch, length]."""
    scores = logits(x, head, cap)
    right = jnp.take_along_axis(scores, targets[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(scores, axis=-1) - right


def init(rng: jax.Array, config: DecoderConfig, vocabulary: int) -> Params:
    """Fresh float32 parameters. Matrices are [in, out] with variance 1 / in; less for the outputs of branches."""
    width, residual = config.width, (2 * config.layers) ** -0.5  # keeps the sum of all branches at scale one
    draw = layers.matrices(rng, 2 + 8 * config.layers)

    def block() -> Params:
        mlp = layers.mlp_init(draw, width, config.inside, residual, config.family)
        attention = layers.attention_init(
            draw, width, config.heads, config.key_heads, config.features, residual, config.family
        )
        return {"attention": attention, "mlp": mlp}

    # A tied matrix is the output too, whose rows need norm 1, as do those that are scaled.
    narrow = config.tied or config.family.scaled
    embed = draw(vocabulary, width, (vocabulary / width) ** 0.5 if narrow else vocabulary**0.5)
    head = {} if config.tied else {"head": draw(width, vocabulary)}
    return {"embed": embed, "blocks": [block() for _ in range(config.layers)], "norm": jnp.ones(width), **head}


def features(params: Params, tokens: jax.Array, config: DecoderConfig) -> jax.Array:
    """[batch, length, width] before the output, in the parameters' dtype, for tokens int[batch, length]."""
    family = config.family
    rotary = partial(layers.rotary, tokens.shape[1], config.features)
    angles = rotary(config.rope_theta, config.rope_scaling)
    near = rotary(family.local_theta) if family.local_theta else angles
    plain = partial(_layer, config=config)
    layer = jax.checkpoint(plain) if config.remat else plain
    x = params["embed"][tokens]
    x = x * jnp.asarray(config.width**0.5, x.dtype) if family.scaled else x
    for number, block in enumerate(params["blocks"], 1):
        x = layer(block, x, near if number % (LOCAL_LAYERS + 1) else angles)
    return layers.rms_norm(x, params["norm"], config.norm_eps)


def head(params: Params) -> jax.Array:
    """The output matrix [width, vocabulary]."""
    matrix: jax.Array = params["head"] if "head" in params else params["embed"].T
    return matrix


def loss(params: Params, tokens: jax.Array, config: DecoderConfig) -> jax.Array:
    """Mean cross-entropy in nats per token, float32 scalar, of int[batch, length + 1]."""
    tokens = tokens.astype(jnp.int32)
    x = features(params, tokens[:, :-1], config)
    return cross_entropy(x, head(params), tokens[:, 1:], cap=config.family.output_cap)


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
    family = config.family
    x = x + layers.attention(block["attention"], x, config.heads, config.norm_eps, angles, family.cap)
    return x + layers.gated_mlp(block["mlp"], x, config.norm_eps, family.gelu)
