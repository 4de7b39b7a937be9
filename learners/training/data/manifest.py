"""The manifest of a folder of token shards: what is in it, and the digests by which a change is noticed.

manifest.json        this file; its SHA-256 is the data's digest
train-00000.tokens   tokens of one little-endian dtype, without header; documents end with `end_of_document`
train-00000.sums     uint64 xxh3 of each BLOCK_BYTES of the shard, so that a reader checks only what it reads
held_out-00000.tokens, .sums
tokenizer.json       where tokens are not bytes
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from outer.journal.object_store import objects

FILE = "manifest.json"
FORMAT = 1
BLOCK_BYTES = 65536
DTYPES = ("uint8", "uint16", "uint32")


@dataclass(frozen=True)
class Shard:
    """A file of tokens. `sha256` is that of the file, `sums_sha256` that of its file of block sums."""

    name: str
    tokens: int
    sha256: str
    sums_sha256: str

    @property
    def sums(self) -> str:
        return self.name.removesuffix(".tokens") + ".sums"


@dataclass(frozen=True)
class Tokenizer:
    """A file of the library tokenizers."""

    file: str
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The contents of manifest.json. Every token is below `vocabulary`. `made_from`: how it was made, for people."""

    format: int
    dtype: str
    vocabulary: int
    end_of_document: int
    tokenizer: Tokenizer | None
    train: tuple[Shard, ...]
    held_out: tuple[Shard, ...]
    made_from: dict[str, Any]

    @property
    def itemsize(self) -> int:
        return np.dtype(self.dtype).itemsize

    def text(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"


_ADAPTER = TypeAdapter(Manifest)


def smallest_dtype(vocabulary: int) -> str:
    """The narrowest dtype that holds every token."""
    return next(name for name in DTYPES if vocabulary <= np.iinfo(name).max + 1)


def read(path: str | None) -> tuple[Manifest, str]:
    """(manifest, its SHA-256). Raises ValueError, naming data.path and the fix."""
    if path is None:
        raise ValueError("data.path = None: token shards need a folder; make one with `diloco data prepare`")
    try:
        content = objects(path).read(FILE)
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or error
        raise ValueError(
            f"data.path = {path!r}: {FILE} cannot be read there ({why}); give a folder that "
            "`diloco data prepare` has finished, or the URI of a copy of one"
        ) from error
    try:
        manifest = _ADAPTER.validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise ValueError(
            f"data.path = {path!r}: {FILE} is damaged ({place}: {first['msg']}); prepare the folder again"
        ) from error
    names = [shard.name for shard in (*manifest.train, *manifest.held_out)]
    names += [manifest.tokenizer.file] if manifest.tokenizer else []
    if strange := [name for name in names if name != Path(name).name or name.startswith(".")]:
        raise ValueError(f"data.path = {path!r}: {FILE} names the file {strange[0]!r}; prepare the folder again")
    if manifest.format != FORMAT or manifest.dtype not in DTYPES:
        raise ValueError(
            f"data.path = {path!r}: {FILE} has format {manifest.format} with {manifest.dtype}, this version reads "
            f"format {FORMAT} with {', '.join(DTYPES)}; prepare the folder again"
        )
    return manifest, hashlib.sha256(content).hexdigest()


def changed(path: Path, sha256: str) -> list[str]:
    """Read a file whole: one line if it is missing or has another digest."""
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return [f"{path.name} is missing"]
    return [] if found == sha256 else [f"{path.name} has changed since it was prepared"]
