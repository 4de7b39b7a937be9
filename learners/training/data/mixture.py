"""What a corpus gives, and samples of several corpora in one endless order, by weight.

Each block of BLOCK samples has of every source its share, to the nearest sample, in a seeded order; a source's own
samples keep their order. So sample i follows from the sources, the weights and the seed alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

ROUNDS = 6


class Permutation:
    """A bijection of [0, n), n below 2^62, that follows from `n` and `key` alone."""

    def __init__(self, n: int, key: bytes) -> None:
        self._n = n
        self._half = max(1, ((n - 1).bit_length() + 1) // 2)
        raw = hashlib.shake_256(key).digest(8 * ROUNDS)
        self._keys = np.frombuffer(raw, dtype="<u8").astype(np.uint64)

    def __call__(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the elements at `places` int64[k], each in [0, n)."""
        found = self._network(places.astype(np.uint64))
        while (outside := found >= self._n).any():  # the network's domain is less than 4n: fewer than 4 rounds expected
            found[outside] = self._network(found[outside])
        return found.astype(np.int64)

    def _network(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        half = np.uint64(self._half)
        mask = np.uint64((1 << self._half) - 1)
        left, right = values >> half, values & mask
        for key in self._keys:
            left, right = right, left ^ (_mixed(right + key) & mask)
        return (left << half) | right


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


BLOCK = 1000
Tokens = NDArray[Any]  # uint8, uint16 or uint32
Read = Callable[["Corpus", int, int], Tokens]


class Corpus(Protocol):
    """Training and held-out tokens, cut into samples of L + 1: the last of a sample is only a target."""

    def batch(self, start: int, count: int) -> Tokens:
        """Samples [start, start + count) of the one endless order of training samples, [count, L + 1]."""
        ...

    def held_out_batch(self, start: int, count: int) -> Tokens:
        """Samples [start, start + count) of the held-out tokens, from the first again after the last."""
        ...


class MixedCorpus:
    """A corpus of sources whose tokens mean the same.

    `digest`: names the sources.
    """

    def __init__(self, sources: Sequence[Corpus], weights: Sequence[float], seed: int, digest: str) -> None:
        self._sources = sources
        self._counts = apportioned(weights)
        self._key = f"{digest} {seed} {list(weights)}"
        self._blocks: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}

    def batch(self, start: int, count: int) -> Tokens:
        """Samples [start, start + count) of the training tokens, [count, L + 1]."""
        return self._read(start, count, lambda source, index, number: source.batch(index, number))

    def held_out_batch(self, start: int, count: int) -> Tokens:
        """Samples [start, start + count) of the sources' held-out tokens by the same weights, [count, L + 1]."""
        return self._read(start, count, lambda source, index, number: source.held_out_batch(index, number))

    def places(self, start: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the source of each of samples [start, start + count), and its number there."""
        blocks = range(start // BLOCK, (start + count - 1) // BLOCK + 1)
        sources, numbers = (np.concatenate(parts) for parts in zip(*map(self._block, blocks), strict=True))
        here = slice(start - blocks[0] * BLOCK, start - blocks[0] * BLOCK + count)
        return sources[here], numbers[here]

    def _block(self, block: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if block not in self._blocks:
            order = Permutation(BLOCK, f"{self._key} {block}".encode())(np.arange(BLOCK))
            sources = np.searchsorted(np.cumsum(self._counts), order, side="right")
            numbers = np.empty(BLOCK, np.int64)
            for source, each in enumerate(self._counts):
                numbers[sources == source] = block * each + np.arange(each)
            self._blocks = dict(list(self._blocks.items())[-3:]) | {block: (sources, numbers)}
        return self._blocks[block]

    def _read(self, start: int, count: int, read: Read) -> Tokens:
        """A source's samples of one call follow each other, so that each source is read once."""
        sources, numbers = self.places(start, count)
        found: Tokens | None = None
        for place, source in enumerate(self._sources):
            rows = np.flatnonzero(sources == place)
            if len(rows):
                part = read(source, int(numbers[rows[0]]), len(rows))
                found = np.empty((count, part.shape[1]), part.dtype) if found is None else found
                found[rows] = part
        assert found is not None, "a batch has at least one sample"
        return found


def apportioned(weights: Sequence[float]) -> NDArray[np.int64]:
    """How many of BLOCK samples each weight gets: its share, by largest remainders, and at least one unless it is 0."""
    shares = np.asarray(weights, np.float64) / sum(weights) * BLOCK
    counts = np.maximum(shares > 0, np.floor(shares)).astype(np.int64)
    while (left := BLOCK - int(counts.sum())) != 0:
        counts[np.argmax(shares - counts) if left > 0 else np.argmax(counts)] += np.sign(left)
    return counts
