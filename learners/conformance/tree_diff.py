"""Compares pytrees of arrays, for the conformance checks."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from learners.training.task import Batch


def differing(one: Any, other: Any, tolerance: float = 0.0) -> list[str]:
    """Paths of the leaves that differ by more than the tolerance (0: in any bit), or that only one tree has."""
    left, right = _leaves(one), _leaves(other)
    if left.keys() != right.keys():
        return sorted(left.keys() ^ right.keys())
    return [
        name
        for name, leaf in left.items()
        if not (
            _bits(leaf) == _bits(right[name])
            or (tolerance and _near(np.asarray(leaf), np.asarray(right[name]), tolerance))
        )
    ]


def _near(one: NDArray[Any], other: NDArray[Any], tolerance: float) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape or not jnp.issubdtype(one.dtype, jnp.floating):
        return False
    scale = tolerance * float(np.abs(one).max(initial=0.0))
    return bool(np.allclose(one.astype(np.float64), other.astype(np.float64), rtol=0.0, atol=scale))


def _leaves(tree: Any) -> dict[str, Any]:
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in paths}


def _bits(leaf: Any) -> tuple[Any, ...]:
    array = np.asarray(leaf)
    return str(array.dtype), array.shape, array.tobytes()


def copied(batch: Batch) -> Batch:
    """A copy of the batch."""
    return jax.tree.map(lambda leaf: np.array(leaf), batch)


def kind(batch: Batch) -> str:
    """The tree, dtypes and shapes of one sample, as text."""
    return str(jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape[1:])}", batch))


def samples(batch: Batch) -> set[bytes]:
    """The bytes of each sample."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(batch)]
    return {b"".join(leaf[index].tobytes() for leaf in leaves) for index in range(len(leaves[0]))}
