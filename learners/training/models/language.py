"""The built-in task: a byte-level language model on text files, by default Python's own standard library."""

from __future__ import annotations

from typing import Any, Self

import jax
import jax.numpy as jnp
from pydantic import Field, PositiveInt, model_validator

from learners.config import DataConfig
from learners.training.data import corpus
from learners.training.models import corpus_task
from learners.training.models.corpus_task import CorpusTask
from learners.training.models.layers import Params, rms_norm, rotary
from outer.config import Section

EPS = 1e-6  # of RMSNorm


class TransformerConfig(Section):
    """The recipe's [model] table for the built-in transformers."""

    layers: PositiveInt = Field(3, description="blocks of attention and MLP")
    width: PositiveInt = Field(96, description="features per token; a multiple of 2 * heads")
    heads: PositiveInt = Field(4, description="of attention")
    mlp: PositiveInt = Field(4, description="width of the hidden layer, in multiples of `width`")

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if self.width % (2 * self.heads):
            fitting = -(-self.width // (2 * self.heads)) * 2 * self.heads
            raise ValueError(
                f"width = {self.width} with heads = {self.heads}: width must be a multiple of 2 * heads, because "
                f"rotary positions rotate pairs; try width = {fitting}"
            )
        return self


def init(rng: jax.Array, config: TransformerConfig, vocabulary: int) -> Params:
    """Fresh float32 parameters. Matrices are [in, out] with variance 1 / in; less for the outputs of branches."""
    width, hidden = config.width, config.mlp * config.width
    keys = iter(jax.random.split(rng, 1 + 4 * config.layers))
    residual = (2 * config.layers) ** -0.5  # keeps the sum of all branches at scale one

    def matrix(rows: int, columns: int, scale: float = 1.0) -> jax.Array:
        drawn: jax.Array = jax.random.normal(next(keys), (rows, columns)) * (scale * rows**-0.5)
        return drawn

    return {
        "embed": jax.random.normal(next(keys), (vocabulary, width)) * width**-0.5,
        "blocks": [
            {
                "attention": {
                    "norm": jnp.ones(width),
                    "qkv": matrix(width, 3 * width),
                    "out": matrix(width, width, residual),
                },
                "mlp": {
                    "norm": jnp.ones(width),
                    "up": matrix(width, hidden),
                    "down": matrix(hidden, width, residual),
                },
            }
            for _ in range(config.layers)
        ],
        "norm": jnp.ones(width),
    }


def logits(params: Params, tokens: jax.Array, config: TransformerConfig) -> jax.Array:
    """Next-token logits [batch, length, vocabulary], in the parameters' dtype, for tokens int[batch, length]."""
    # Embedding rows have norm 1, as the output needs; the input needs features of scale 1.
    x: jax.Array = params["embed"][tokens] * config.width**0.5
    angles = rotary(tokens.shape[1], config.width // config.heads, 10_000.0)
    for block in params["blocks"]:
        x = x + _attention(block["attention"], x, angles, config.heads)
        x = x + _mlp(block["mlp"], x)
    return jnp.matmul(rms_norm(x, params["norm"], EPS), params["embed"].T)


def loss(params: Params, tokens: jax.Array, config: TransformerConfig) -> jax.Array:
    """Mean cross-entropy in nats per token, float32 scalar, of tokens int[batch, length + 1]."""
    tokens = tokens.astype(jnp.int32)
    scores = logits(params, tokens[:, :-1], config).astype(jnp.float32)
    right = jnp.take_along_axis(scores, tokens[:, 1:, None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(scores, axis=-1) - right)


def _mlp(params: Params, x: jax.Array) -> jax.Array:
    return jnp.matmul(jax.nn.gelu(rms_norm(x, params["norm"], EPS) @ params["up"]), params["down"])


def _attention(params: Params, x: jax.Array, angles: jax.Array, heads: int) -> jax.Array:
    """Causal self-attention with rotary positions: [batch, length, width] in and out."""
    batch, length, width = x.shape
    qkv = (rms_norm(x, params["norm"], EPS) @ params["qkv"]).reshape(batch, length, 3, heads, width // heads)
    query, key, value = jnp.moveaxis(qkv, (2, 3), (0, 2))  # each [batch, heads, length, features]
    query, key = _rotate(query, angles), _rotate(key, angles)
    scores = jnp.einsum("bhqd,bhkd->bhqk", query, key) * (width // heads) ** -0.5
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e30)
    shares = jax.nn.softmax(scores.astype(jnp.float32)).astype(value.dtype)
    mixed = jnp.einsum("bhqk,bhkd->bhqd", shares, value)
    return jnp.matmul(jnp.moveaxis(mixed, 1, 2).reshape(batch, length, width), params["out"])


def _rotate(x: jax.Array, angles: jax.Array) -> jax.Array:
    """Rotate the pairs (x_i, x_{i + features / 2}) of [batch, heads, length, features] by their angles."""
    first, second = jnp.split(x, 2, axis=-1)
    cosine, sine = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
    return jnp.concatenate([first * cosine - second * sine, first * sine + second * cosine], axis=-1)


VOCABULARY = 256  # every byte


class ByteLanguageModel(CorpusTask):
    """A decoder-only transformer over bytes; implements learners/training/task.py's Task.

    `model`: the fields of TransformerConfig; raises ValueError, naming the field, for any other.
    """

    def __init__(self, data: DataConfig, seed: int, **model: Any) -> None:
        super().__init__(data, seed)
        self.config = corpus_task.read(TransformerConfig, model)
        if (known := corpus.vocabulary(data)) > VOCABULARY or corpus.tokenizer(data) is not None:
            raise ValueError(
                f"data.path = {data.path!r}: its vocabulary is {known:,} tokens of a tokenizer, this model's the 256 "
                "bytes; name a task of that vocabulary, or prepare the text as bytes, without a tokenizer"
            )

    def init(self, rng: jax.Array) -> Params:
        return init(rng, self.config, VOCABULARY)

    def loss(self, params: Params, batch: jax.Array, rng: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Mean nats per byte of batch uint8[count, L + 1]; there is no dropout, so `rng` is not used."""
        return loss(params, batch, self.config), {}
