"""A seeded order of n things, each place computed alone: a Feistel network on a power of four, walked into [0, n).

Costs no memory and a few vector operations a batch, however large n is (Black and Rogaway, 2002, "Ciphers with
arbitrary finite domains", their cycle-walking cipher). The round function is the finalizer of SplitMix64.
"""

from __future__ import annotations

import hashlib

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
