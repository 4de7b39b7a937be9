"""What the language models have in common: their samples are those of the recipe's corpus."""

from __future__ import annotations

from functools import cached_property
from typing import Any, TypeVar

import optax
from pydantic import ValidationError

from learners.config import DataConfig, InnerConfig
from learners.training.data import corpus
from learners.training.data.mixture import Corpus, Tokens
from outer.config import Section
from outer.numeric.optimizer import resolve

Fields = TypeVar("Fields", bound=Section)


def read(kind: type[Fields], model: dict[str, Any]) -> Fields:
    """The fields of a built-in model. Raises ValueError, naming every field that is wrong."""
    try:
        return kind(**model)
    except ValidationError as error:
        raise ValueError("; ".join(_in_words(problem, kind) for problem in error.errors())) from error


def _in_words(problem: Any, kind: type[Section]) -> str:
    field = ".".join(("model", *map(str, problem["loc"])))
    if problem["type"] == "extra_forbidden":
        known = ", ".join(kind.model_fields)
        return f"{field} = {problem['input']!r}: no such key; known are {known}"
    if not problem["loc"]:
        return f"{field}: {problem['msg']}"
    return f"{field} = {problem['input']!r}: {problem['msg']}"


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
