"""The built-in task: a byte-level language model on text files, by default Python's own standard library."""

from __future__ import annotations

from typing import Any

import jax

from learners.config import DataConfig
from learners.training.data import corpus
from learners.training.models import fields, transformer
from learners.training.models.corpus_task import CorpusTask
from learners.training.models.layers import Params

VOCABULARY = 256  # every byte


class ByteLanguageModel(CorpusTask):
    """A decoder-only transformer over bytes; implements learners/training/task.py's Task.

    `model`: the fields of TransformerConfig; raises ValueError, naming the field, for any other.
    """

    def __init__(self, data: DataConfig, seed: int, **model: Any) -> None:
        super().__init__(data, seed)
        self.config = fields.read(transformer.TransformerConfig, model)
        if (known := corpus.vocabulary(data)) > VOCABULARY or corpus.tokenizer(data) is not None:
            raise ValueError(
                f"data.path = {data.path!r}: its vocabulary is {known:,} tokens of a tokenizer, this model's the 256 "
                "bytes; name a task of that vocabulary, or prepare the text as bytes, without a tokenizer"
            )

    def init(self, rng: jax.Array) -> Params:
        return transformer.init(rng, self.config, VOCABULARY)

    def loss(self, params: Params, batch: jax.Array, rng: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Mean nats per byte of batch uint8[count, L + 1]; there is no dropout, so `rng` is not used."""
        return transformer.loss(params, batch, self.config), {}
