"""The chain of published versions: what the syncer publishes follows its exact parameters by encoded differences.

B_v = B_(v-1) + Q(Theta_v - B_(v-1)), and B_0 = Theta_0. What rounding leaves out of one version is in the next
difference: B stays within one rounding of Theta, however long the chain is. Rounding is seeded by run, fragment and
version, so every process that computes a version gets the same bits. Elements of tensors of the kind mean are published
exactly: rounding could make a variance negative.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from outer.numeric import formats
from outer.protocol.fragments import Fragment

Flat = NDArray[np.float32]
Delta = NDArray[np.uint8]  # an encoded difference between two successive versions, [bytes]
EXACT = "fp32"  # the codec without a chain: B is Theta


class VersionChain:
    """How a run's versions follow each other. `codec`: a name of formats.named that takes differences."""

    def __init__(self, codec: str, fragments: Sequence[Fragment], seed: int) -> None:
        self.codec, self._seed = formats.named(codec), seed
        self._sizes = [fragment.size for fragment in fragments]
        self._exact = [_of_mean(fragment) for fragment in fragments]

    @staticmethod
    def of(downlink: str, fragments: Sequence[Fragment], seed: int = 0) -> VersionChain | None:
        """None where versions are published as they are. `seed`: the run's; only `delta` needs it."""
        return None if downlink == EXACT else VersionChain(downlink, fragments, seed)

    def delta(self, fragment: int, version: int, theta: Flat, before: Flat) -> Delta:
        """Encode the step from the published version `before` to the next, for the exact theta float32[n].

        What is not finite stays so in the version that it leads to.
        """
        exact = self._exact[fragment]
        with np.errstate(over="ignore", invalid="ignore"):  # the syncer discards what is not finite
            moved = theta - before
        if exact is not None:
            moved = moved[~exact]
        seed = xxhash.xxh3_64_intdigest(f"{self._seed}/{fragment}/{version}".encode())
        payload = self.codec.encode(moved, seed).view(np.uint8)
        return payload if exact is None else np.concatenate([payload, theta[exact].view(np.uint8)])

    def extend(self, fragment: int, before: Flat, deltas: Sequence[Any]) -> Flat:
        """The version that successive deltas lead to from `before`, float32[n]; read-only.

        Raises ValueError for what is no delta of this fragment.
        """
        exact, held = self._exact[fragment], np.array(before)
        for delta in deltas:
            if not isinstance(delta, np.ndarray) or delta.dtype != np.uint8 or delta.shape != (self.bytes(fragment),):
                raise ValueError(f"no delta of fragment {fragment}")
            size = held.size if exact is None else held.size - int(exact.sum())
            end = self.codec.bytes(size)
            moved = self.codec.decode(delta[:end].view(self.codec.dtype), size)
            with np.errstate(over="ignore", invalid="ignore"):
                if exact is None:
                    held += moved
                else:
                    held[~exact] += moved
                    held[exact] = delta[end:].view(np.float32)
        held.setflags(write=False)
        return held

    def bytes(self, fragment: int) -> int:
        """Return the bytes of a fragment's delta."""
        exact = self._exact[fragment]
        apart = 0 if exact is None else int(exact.sum())
        return self.codec.bytes(self._sizes[fragment] - apart) + 4 * apart


def _of_mean(fragment: Fragment) -> NDArray[np.bool_] | None:
    """Which elements are published exactly, bool[n]; None where none is."""
    exact = np.zeros(fragment.size, np.bool_)
    for tensor, place in fragment.slices():
        exact[place] = tensor.kind == "mean"
    return exact if exact.any() else None


class _Link(NamedTuple):
    before: int  # the version that it leads from
    delta: Delta


class Recent:
    """The newest deltas of one fragment, as many as are smaller than `bytes`, the size of a whole version."""

    def __init__(self, size: int) -> None:
        self._most = size
        self._links: deque[_Link] = deque()
        self._bytes = 0

    def add(self, before: int, delta: Delta) -> None:
        """Return the deltas from version `before` to the newest."""
        self._links.append(_Link(before, delta))
        self._bytes += delta.nbytes
        while self._links and self._bytes >= self._most:
            self._bytes -= self._links.popleft().delta.nbytes

    def since(self, version: int) -> list[Delta] | None:
        """The deltas that lead from `version` to the newest; None where they are not all here."""
        at = next((place for place, link in enumerate(self._links) if link.before == version), None)
        return None if at is None else [link.delta for link in list(self._links)[at:]]
