"""A learner's whole state, parameters and inner optimizer, as plain NumPy arrays for other processes.

One array per leaf, in tree order. Leaves of types that NumPy or Ray's zero-copy transfer lack (bfloat16, PRNG keys)
travel as their bits. `defect` checks arrays from a peer before `restored` uses them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xxhash
from numpy.typing import NDArray

from learners.training.devices.placement import own

Arrays = list[NDArray[Any]]
PLAIN = "biuf"  # the dtype kinds of NumPy itself


@dataclass(frozen=True)
class LeafPieces:
    """This process's parts of a leaf that is spread over the devices of several: (where, values), each place once."""

    shape: tuple[int, ...]
    parts: list[tuple[tuple[slice, ...], NDArray[Any]]]

    def joined(self, others: Iterable[LeafPieces | None]) -> NDArray[Any]:
        """The whole leaf, with what the other processes have of it. Raises ValueError if a part is missing."""
        whole = np.empty(self.shape, self.parts[0][1].dtype)
        places = {str(part[0]): part for pieces in (self, *others) if pieces is not None for part in pieces.parts}
        if (found := sum(values.size for _, values in places.values())) != whole.size:
            raise ValueError(f"only {found} of the {whole.size} numbers of a leaf came from the ranks")
        for where, values in places.values():
            whole[where] = values
        return whole


def here(leaf: Any) -> NDArray[Any] | LeafPieces:
    """A leaf on the host, as `pack` has it, or what this process has of it."""
    if isinstance(leaf, LeafPieces):
        return leaf
    data = _data(leaf)
    if not isinstance(data, jax.Array) or data.is_fully_addressable or data.is_fully_replicated:
        return _bits(np.asarray(data))
    first = {str(shard.index): shard for shard in reversed(data.addressable_shards)}
    return LeafPieces(data.shape, [(shard.index, _bits(np.array(shard.data))) for shard in first.values()])


def pack(leaves: Sequence[Any]) -> Arrays:
    """Copy the leaves to the host, in NumPy's own dtypes."""
    return [_bits(np.asarray(_data(leaf))) for leaf in leaves]


def digest(arrays: Arrays) -> str:
    """XXH3, 128 bits, of shapes, dtypes and bytes, hexadecimal."""
    running = xxhash.xxh3_128()
    for array in arrays:
        running.update(f"{array.dtype.str}{array.shape}".encode())
        running.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return running.hexdigest()


def size(arrays: Arrays) -> int:
    """Total size in bytes."""
    return sum(array.nbytes for array in arrays)


def defect(arrays: Any, like: Sequence[Any]) -> str:
    """Why the arrays cannot be the leaves of `like`: wrong_shape or non_finite; empty when they can."""
    wanted = [_bits(np.empty(0, np.dtype(_data(leaf).dtype))).dtype for leaf in like]
    if not isinstance(arrays, list) or len(arrays) != len(like):
        return "wrong_shape"
    for array, leaf, dtype in zip(arrays, like, wanted, strict=True):
        if not isinstance(array, np.ndarray) or array.shape != _data(leaf).shape or array.dtype != dtype:
            return "wrong_shape"
    for array, leaf in zip(arrays, like, strict=True):
        values = array.view(np.dtype(_data(leaf).dtype))
        if jnp.issubdtype(values.dtype, jnp.floating) and not np.isfinite(values.astype(np.float32, copy=False)).all():
            return "non_finite"
    return ""


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _data(leaf: Any) -> Any:
    """The leaf as an array of numbers."""
    array = leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf)
    return jax.random.key_data(array) if _is_key(array) else array


def _bits(array: NDArray[Any]) -> NDArray[Any]:
    """The array, viewed as unsigned integers of the same width if its dtype is not NumPy's own."""
    return array if array.dtype.kind in PLAIN else array.view(f"u{array.dtype.itemsize}")


def restored(array: NDArray[Any], leaf: Any) -> Any:
    """The leaf of an array, with the dtype and on the devices of `leaf`. Requires that `defect` found nothing."""
    values, like = array.view(np.dtype(_data(leaf).dtype)), isinstance(leaf, jax.Array)
    sharding = _data(leaf).sharding if like and leaf.committed else None
    value = own(values, sharding)
    return jax.random.wrap_key_data(value, impl=jax.random.key_impl(leaf)) if like and _is_key(leaf) else value
