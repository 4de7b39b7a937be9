"""A decoder of today's architecture as a task, on any corpus."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec

from learners.config import DataConfig
from learners.training.data import corpus
from learners.training.models import corpus_task, decoder
from learners.training.models.corpus_task import CorpusTask
from learners.training.models.decoder_config import DecoderConfig
from learners.training.models.layers import Params


class CausalLM(CorpusTask):
    """A decoder on the recipe's corpus; implements learners/training/task.py's Task.

    `model`: the fields of `kind`; raises ValueError, naming the field, for any other, and for a vocabulary smaller than
    the data's.
    """

    kind = DecoderConfig

    def __init__(self, data: DataConfig, seed: int, **model: Any) -> None:
        super().__init__(data, seed)
        self.config = corpus_task.read(self.kind, model)
        needed = corpus.vocabulary(data)
        self.vocabulary = self.config.vocabulary or needed
        if self.vocabulary < needed:
            raise ValueError(
                f"model.vocabulary = {self.vocabulary}: the data has {needed} tokens; give at least as many, "
                "or 0 for as many"
            )

    def init(self, rng: jax.Array) -> Params:
        return decoder.init(rng, self.config, self.vocabulary)

    def loss(self, params: Params, batch: jax.Array, rng: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Mean nats per token of batch int[count, L + 1]; there is no dropout, so `rng` is not used."""
        return decoder.loss(params, batch, self.config), {}

    def sharding(self, mesh: Mesh) -> dict[str, PartitionSpec]:
        return decoder.sharding(jax.eval_shape(self.init, jax.random.key(0)), mesh)
