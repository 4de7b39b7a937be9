"""Corpus, the tokens that a language model trains on, of whatever kind the recipe's [data] table names."""

from __future__ import annotations

import hashlib
from pathlib import Path

from learners.config import DataConfig
from learners.training.data import byte_corpus, manifest, token_corpus
from learners.training.data.byte_corpus import ByteCorpus
from learners.training.data.mixture import Corpus, MixedCorpus
from learners.training.data.shard_folder import ShardFolder
from learners.training.data.token_corpus import TokenCorpus


def corpus(data: DataConfig, seed: int) -> Corpus:
    """Open what `data` names. Raises ValueError, with the field and the fix, where it cannot be used."""
    if data.mixture is None:
        return _open(data, seed)
    check(data)
    used = [(each.weight, of) for each, of in zip(data.mixture, sources(data), strict=True) if each.weight]
    opened, weights = [_open(of, seed) for _, of in used], [weight for weight, _ in used]
    return MixedCorpus(opened, weights, seed, str(digest(data)))


def check(data: DataConfig) -> None:
    """Check what `data` names without reading it whole. Raises ValueError as `corpus` does."""
    found = []
    for each in sources(data):
        try:
            (token_corpus if each.kind == "tokens" else byte_corpus).check(each)
        except ValueError as error:
            found.append(error)
    if found:
        raise found[0] if data.mixture is None else ValueError(f"data.mixture: {'; '.join(map(str, found))}")
    if data.mixture is not None:
        _check_alike(data)


def _check_alike(data: DataConfig) -> None:
    """Raises ValueError where the sources' tokens do not mean the same, or are not those of data.digest."""
    assert data.mixture is not None
    coded = {each.name: coding(of) for each, of in zip(data.mixture, sources(data), strict=True)}
    first, *others = coded
    if odd := [name for name in others if coded[name] != coded[first]]:
        raise ValueError(
            f"data.mixture: tokens of {', '.join(odd)} do not mean what those of {first} do (another vocabulary, "
            "tokenizer or end of documents); prepare them with the same tokenizer.json"
        )
    if data.digest not in (None, (found := digest(data))):
        raise ValueError(
            f"data.mixture: its shards have digest {found}, and data.digest is {data.digest}; give the folders that "
            "the run began with, or start a new run under another name"
        )


def check_beside(data: DataConfig, other: DataConfig) -> None:
    """Raises ValueError where `other` cannot be used, or its tokens do not mean what those of `data` do."""
    check(other)
    if coding(other) != coding(data):
        raise ValueError("its tokens do not mean what the run's do; prepare it with the run's tokenizer.json")


def coding(source: DataConfig) -> tuple[int, int | None, str | None]:
    """(vocabulary, end of documents, digest of the tokenizer) of a corpus, of a mixture its first's: what tokens mean.

    Raises ValueError where a manifest cannot be read.
    """
    source = sources(source)[0]
    if source.kind == "bytes":
        return ByteCorpus.vocabulary, None, None
    made = manifest.read(source.path)[0]
    return made.vocabulary, made.end_of_document, made.tokenizer.sha256 if made.tokenizer else None


def sources(data: DataConfig) -> list[DataConfig]:
    """One for each corpus that `data` names; of a single one, itself."""
    return [data] if data.mixture is None else [data.of(each) for each in data.mixture]


def _open(data: DataConfig, seed: int) -> ByteCorpus | TokenCorpus:
    return TokenCorpus(data, seed) if data.kind == "tokens" else ByteCorpus(data, seed)


def digest(data: DataConfig) -> str | None:
    """The digest that a run's recipe keeps, of manifests; None without shards. Raises ValueError as `vocabulary`."""
    found = [manifest.read(each.path)[1] if each.kind == "tokens" else "" for each in sources(data)]
    if data.mixture is None or not any(found):
        return found[0] or None
    return hashlib.sha256(" ".join(found).encode()).hexdigest()


def vocabulary(data: DataConfig) -> int:
    """The corpus's `vocabulary`, without opening it. Raises ValueError where a manifest cannot be read."""
    return coding(data)[0]


def tokenizer(data: DataConfig) -> Path | None:
    """The file of the tokenizer that made the tokens, tokenizer.json; None where tokens are bytes."""
    first = sources(data)[0]
    if first.kind == "bytes" or (made := manifest.read(first.path)[0].tokenizer) is None:
        return None
    return ShardFolder(first.path).file(made.file)


def end_of_document(data: DataConfig) -> int | None:
    """The token behind each document; None for bytes, which have none."""
    return coding(data)[1]
