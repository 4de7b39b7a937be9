"""Language models of today's architecture as a task: dense decoders, and mixtures of experts, on any corpus."""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, PartitionSpec

from learners.config import DataConfig, InnerConfig
from learners.training.data import corpus
from learners.training.data.corpus import Corpus, Tokens
from learners.training.models import cross_entropy, decoder, fields, sampling
from learners.training.models.decoder_config import DecoderConfig
from learners.training.models.layers import Params
from outer.numeric.optimizer import resolve


class CausalLM:
    """A decoder on the recipe's corpus; implements learners/training/task.py's Task.

    `model`: the fields of DecoderConfig; raises ValueError, naming the field, for any other, and for a vocabulary
    smaller than the data's. The corpus is opened when the first batch is requested.
    """

    loss_unit = "nats/token"

    def __init__(self, data: DataConfig, seed: int, **model: Any) -> None:
        self.config = fields.read(DecoderConfig, model)
        needed = corpus.vocabulary(data)
        self.vocabulary = self.config.vocabulary or needed
        if self.vocabulary < needed:
            raise ValueError(
                f"model.vocabulary = {self.vocabulary}: the data has {needed} tokens; give at least as many, "
                "or 0 for as many"
            )
        self._data, self._seed = data, seed
        self._next_scores = partial(_next_scores, config=self.config)

    @cached_property
    def corpus(self) -> Corpus:
        return corpus.corpus(self._data, self._seed)

    def init(self, rng: jax.Array) -> Params:
        return decoder.init(rng, self.config, self.vocabulary)

    def loss(self, params: Params, batch: jax.Array, rng: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Mean nats per token of batch int[count, L + 1]; there is no dropout, so `rng` is not used.

        With experts, the weighed balancing losses are added, and the auxiliary scalars are the parts of the sum, and
        the loads of the busiest and the least busy expert of any layer, relative to an even load.
        """
        nats, routings = decoder.losses(params, batch, self.config)
        if not routings:
            return nats, {}
        balance = jnp.mean(jnp.stack([each.balance for each in routings]))
        z = jnp.mean(jnp.stack([each.z for each in routings]))
        aux = {
            "cross_entropy": nats,
            "balance": balance,
            "router_z": z,
            "expert_load_max": jnp.max(jnp.stack([each.load_max for each in routings])),
            "expert_load_min": jnp.min(jnp.stack([each.load_min for each in routings])),
        }
        return nats + self.config.balance * balance + self.config.router_z * z, aux

    def held_out_loss(self, params: Params, batch: jax.Array) -> jax.Array:
        """Mean nats per token alone, which compares with that of any other model."""
        return decoder.losses(params, batch, self.config)[0]

    def optimizer(self, inner: InnerConfig) -> optax.GradientTransformation:
        return resolve("inner", inner.optimizer, inner.lr, inner.options)

    def batch(self, start: int, count: int) -> Tokens:
        return self.corpus.batch(start, count)

    def tokens(self, count: int) -> int:
        return count * self._data.sequence_length

    def held_out(self, start: int, count: int) -> Tokens:
        return self.corpus.held_out_batch(start, count)

    def sharding(self, mesh: Mesh) -> dict[str, PartitionSpec]:
        return decoder.sharding(self.config, self.vocabulary, mesh)

    def sample(
        self, params: Params, prompt: bytes, length: int, temperature: float, top_k: int, rng: jax.Array
    ) -> bytes:
        """Continue a prompt by `length` tokens, cut to `length` bytes, see sampling.generate.

        The model sees the last sequence_length tokens of the prompt; an empty prompt stands for a newline.
        """
        seen, window = self.corpus.encode(prompt or b"\n"), self._data.sequence_length
        known = corpus.vocabulary(self._data)  # tokens beyond it have no bytes
        tokens = sampling.continued(self._next_scores, params, seen, window, length, temperature, top_k, known, rng)
        return self.corpus.decode(tokens)[:length]


def _next_scores(params: Params, window: jax.Array, position: jax.Array, config: DecoderConfig) -> jax.Array:
    """Logits float32[vocabulary] after the tokens 0 to `position` of window int[L]."""
    x, _ = decoder.features(params, window[None], config)
    return cross_entropy.logits(x[0, position], decoder.head(params))
