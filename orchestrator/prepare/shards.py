"""Parts joined to shards of equal size, and every shard of a folder checked against its manifest."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from learners.training.data.manifest import BLOCK_BYTES, Manifest, Shard, changed
from learners.training.data.shard_folder import ShardFolder
from orchestrator.prepare.parts import Made

COPY_BYTES = 64 * BLOCK_BYTES


@dataclass(frozen=True)
class Span:
    """Tokens [begin, end) of a file."""

    path: Path
    begin: int
    end: int


def spans(stems: Sequence[Path], made: Sequence[Made], share: float) -> tuple[list[Span], list[Span]]:
    """(training, held-out) tokens in the order of the parts.

    Where the hashes chose no document, the one of the smallest hash is held out; of a single document, its end.
    """
    train = [Span(stem.with_suffix(".train"), 0, one.train) for stem, one in zip(stems, made, strict=True)]
    held_out = [Span(stem.with_suffix(".held_out"), 0, one.held_out) for stem, one in zip(stems, made, strict=True)]
    if not any(one.held_out for one in made):
        index = min((one.smallest[0], place) for place, one in enumerate(made) if one.documents)[1]
        _, begin, end = made[index].smallest
        if sum(one.documents for one in made) == 1:
            begin = end - max(1, round(share * (end - begin)))
        path = train[index].path
        held_out = [Span(path, begin, end)]
        train[index : index + 1] = [Span(path, 0, begin), Span(path, end, made[index].train)]
    elif not any(one.train for one in made):
        train, held_out = held_out, []
    return [one for one in train if one.end > one.begin], [one for one in held_out if one.end > one.begin]


def write(
    folder: Path, name: str, parts: Iterable[Span], dtype: str, shard_tokens: int, show: Callable[[int], None]
) -> tuple[Shard, ...]:
    """Write shards of `shard_tokens` each, the last with the rest. `show` gets the bytes of each block written."""
    itemsize = np.dtype(dtype).itemsize
    shards: list[Shard] = []
    draft: _Draft | None = None
    for block in _blocks(parts, itemsize):
        at = 0
        while at < len(block):
            if draft is None:
                draft = _Draft(folder / f"{name}-{len(shards):05}.tokens")
            taken = block[at : at + shard_tokens * itemsize - draft.size]
            draft.add(taken)
            show(len(taken))
            at += len(taken)
            if draft.size == shard_tokens * itemsize:
                shards.append(draft.finish(itemsize))
                draft = None
    return (*shards, draft.finish(itemsize)) if draft is not None else tuple(shards)


def _blocks(parts: Iterable[Span], itemsize: int) -> Iterator[memoryview]:
    for part in parts:
        with part.path.open("rb") as file:
            file.seek(part.begin * itemsize)
            left = (part.end - part.begin) * itemsize
            while left:
                block = file.read(min(left, COPY_BYTES))
                if not block:
                    raise OSError(f"{part.path} is shorter than its record says")
                left -= len(block)
                yield memoryview(block)


class _Draft:
    """A shard that is being written."""

    def __init__(self, path: Path) -> None:
        self._path, self._draft = path, path.with_suffix(".draft")
        self._file = self._draft.open("wb")
        self._sums: list[int] = []
        self._running, self._block, self._in_block = hashlib.sha256(), xxhash.xxh3_64(), 0
        self.size = 0

    def add(self, content: memoryview) -> None:
        self._file.write(content)
        self._running.update(content)
        self.size += len(content)
        while len(content):
            taken = content[: BLOCK_BYTES - self._in_block]
            self._block.update(taken)
            self._in_block += len(taken)
            content = content[len(taken) :]
            if self._in_block == BLOCK_BYTES:
                self._close_block()

    def _close_block(self) -> None:
        self._sums.append(self._block.intdigest())
        self._block, self._in_block = xxhash.xxh3_64(), 0

    def finish(self, itemsize: int) -> Shard:
        if self._in_block:
            self._close_block()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        sums = np.asarray(self._sums, dtype="<u8").tobytes()
        shard = Shard(
            self._path.name, self.size // itemsize, self._running.hexdigest(), hashlib.sha256(sums).hexdigest()
        )
        self._path.with_name(shard.sums).write_bytes(sums)
        os.replace(self._draft, self._path)
        return shard


# ------------------------------------------------------------------ check


def damages(folder: ShardFolder, workers: int, show: Callable[[int], None]) -> list[str]:
    """Read every shard whole: one line for each that is missing, changed or has a token outside the vocabulary.

    `show` gets the bytes of each shard that was read.
    """
    manifest, found = folder.manifest, folder.problems()
    missing = {line.split()[0] for line in found}
    shards = [shard for shard in (*manifest.train, *manifest.held_out) if shard.name not in missing]

    def one(shard: Shard) -> list[str]:
        try:
            lines = changed(folder.file(shard.name), shard.sha256)
            if shard.sums not in missing:
                lines += changed(folder.file(shard.sums), shard.sums_sha256)
            return lines or _outside(folder.file(shard.name), manifest)
        except OSError as error:
            return [f"{shard.name} cannot be copied: {error}"]

    with ThreadPoolExecutor(workers) as pool:
        for shard, lines in zip(shards, pool.map(one, shards), strict=True):
            found += lines
            show(shard.tokens * manifest.itemsize)
    return found


def _outside(path: Path, manifest: Manifest) -> list[str]:
    if np.iinfo(manifest.dtype).max < manifest.vocabulary:
        return []
    tokens: Any = np.memmap(path, dtype=np.dtype(manifest.dtype).newbyteorder("<"), mode="r")
    step = COPY_BYTES // manifest.itemsize
    most = max(int(tokens[at : at + step].max()) for at in range(0, len(tokens), step))
    return [f"{path.name} has a token {most:,} outside the vocabulary of {manifest.vocabulary:,}"] * (
        most >= manifest.vocabulary
    )
