"""What the language models have in common: their samples are those of the recipe's corpus."""

from __future__ import annotations

from functools import cached_property

import optax

from learners.config import DataConfig, InnerConfig
from learners.training.data import corpus
from learners.training.data.mixture import Corpus, Tokens
from outer.numeric.optimizer import resolve


class CorpusTask:
    """The part of learners/training/task.py's Task that only the corpus decides, which opens with the first batch."""

    loss_unit = "nats/token"

    def __init__(self, data: DataConfig, seed: int) -> None:
        self._data, self._seed = data, seed

    @cached_property
    def corpus(self) -> Corpus:
        return corpus.corpus(self._data, self._seed)

    def optimizer(self, inner: InnerConfig) -> optax.GradientTransformation:
        return resolve("inner", inner.optimizer, inner.lr, inner.options)

    def batch(self, start: int, count: int) -> Tokens:
        return self.corpus.batch(start, count)

    def tokens(self, count: int) -> int:
        return count * self._data.sequence_length

    def held_out(self, start: int, count: int) -> Tokens:
        return self.corpus.held_out_batch(start, count)
