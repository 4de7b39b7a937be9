"""Corpus, the tokens that a language model trains on, of whatever kind the recipe's [data] table names."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from learners.config import DataConfig
from learners.training.data import byte_corpus, manifest, token_corpus
from learners.training.data.byte_corpus import ByteCorpus
from learners.training.data.token_corpus import TokenCorpus

Tokens = NDArray[Any]  # uint8, uint16 or uint32


class Corpus(Protocol):
    """Training and held-out tokens, cut into samples of L + 1: the last of a sample is only a target.

    `vocabulary`: tokens are below it. `digest`: names everything that samples follow from, but the seed.
    """

    vocabulary: int
    digest: str

    def batch(self, start: int, count: int) -> Tokens:
        """Samples [start, start + count) of the one endless order of training samples, [count, L + 1]."""
        ...

    def held_out_batch(self, start: int, count: int) -> Tokens:
        """Samples [start, start + count) of the held-out tokens, from the first again after the last."""
        ...

    def encode(self, text: bytes) -> Tokens:
        """The tokens [n] of a text."""
        ...

    def decode(self, tokens: Tokens) -> bytes:
        """The text of tokens [n], each below `vocabulary`."""
        ...


def corpus(data: DataConfig, seed: int) -> ByteCorpus | TokenCorpus:
    """Open what `data` names. Raises ValueError, with the field and the fix, where it cannot be used."""
    return TokenCorpus(data, seed) if data.kind == "tokens" else ByteCorpus(data, seed)


def check(data: DataConfig) -> None:
    """Check what `data` names without reading it whole. Raises ValueError as `corpus` does."""
    (token_corpus if data.kind == "tokens" else byte_corpus).check(data)


def digest(data: DataConfig) -> str | None:
    """The digest that a run's recipe keeps, of a manifest; None for bytes. Raises ValueError as `vocabulary` does."""
    return manifest.read(data.path)[1] if data.kind == "tokens" else None


def vocabulary(data: DataConfig) -> int:
    """The corpus's `vocabulary`, without opening it. Raises ValueError where the manifest cannot be read."""
    return manifest.read(data.path)[0].vocabulary if data.kind == "tokens" else ByteCorpus.vocabulary


def tokenizer(data: DataConfig) -> Path | None:
    """The file of the tokenizer that made the tokens, tokenizer.json; None where tokens are bytes."""
    if data.kind == "bytes" or (made := manifest.read(data.path)[0].tokenizer) is None:
        return None
    return Path(str(data.path)).expanduser() / made.file


def end_of_document(data: DataConfig) -> int | None:
    """The token behind each document; None for bytes, which have none."""
    return manifest.read(data.path)[0].end_of_document if data.kind == "tokens" else None
