"""Parts joined to shards of equal size."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from learners.training.data.manifest import BLOCK_BYTES, Shard

COPY_BYTES = 64 * BLOCK_BYTES


@dataclass(frozen=True)
class TokenSpan:
    """Tokens [begin, end) of a file."""

    path: Path
    begin: int
    end: int


def write(
    folder: Path, name: str, parts: Iterable[TokenSpan], dtype: str, shard_tokens: int, show: Callable[[int], None]
) -> tuple[Shard, ...]:
    """Write shards of `shard_tokens` each, the last with the rest. `show` gets the bytes of each block written."""
    itemsize = np.dtype(dtype).itemsize
    shards: list[Shard] = []
    for spans in _dealt(parts, shard_tokens):
        path = folder / f"{name}-{len(shards):05}.tokens"
        with path.open("wb") as file:
            for block in (block for span in spans for block in _blocks(span, itemsize)):
                file.write(block)
                show(len(block))
            file.flush()
            os.fsync(file.fileno())
        content = np.memmap(path, np.uint8, "r")
        blocks = (content[at : at + BLOCK_BYTES] for at in range(0, len(content), BLOCK_BYTES))
        sums = np.array([xxhash.xxh3_64_intdigest(block.data) for block in blocks], "<u8").tobytes()
        digests = (hashlib.sha256(each).hexdigest() for each in (content.data, sums))
        shards.append(Shard(path.name, len(content) // itemsize, *digests))
        path.with_name(shards[-1].sums).write_bytes(sums)
    return tuple(shards)


def _dealt(parts: Iterable[TokenSpan], shard_tokens: int) -> Iterator[list[TokenSpan]]:
    """Deal the parts into lists of `shard_tokens` each."""
    shard, left = list[TokenSpan](), shard_tokens
    for part in parts:
        begin = part.begin
        while begin < part.end:
            end = min(part.end, begin + left)
            shard.append(TokenSpan(part.path, begin, end))
            begin, left = end, left - (end - begin)
            if not left:
                yield shard
                shard, left = [], shard_tokens
    if shard:
        yield shard


def _blocks(span: TokenSpan, itemsize: int) -> Iterator[bytes]:
    with span.path.open("rb") as file:
        file.seek(span.begin * itemsize)
        left = (span.end - span.begin) * itemsize
        while left:
            block = file.read(min(left, COPY_BYTES))
            if not block:
                raise OSError(f"{span.path} is shorter than its record says")
            left -= len(block)
            yield block
