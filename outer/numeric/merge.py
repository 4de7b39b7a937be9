"""Merges the learners' outer gradients of one fragment by Avg or RDA (paper section 4).

Computes in float64 under a local switch, because learners in lock-step runs train in float32 in the same process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from outer.protocol.fragments import Fragment, Tensor

Gradient = NDArray[np.float64]


def rules(tensors: Sequence[Tensor], default: str, patterns: Mapping[str, str] | None = None) -> dict[str, str]:
    """The rule, "rda", "avg" or "mean", of each tensor by name.

    Tensors of the kind mean have the rule of that name: averaged, and not stepped by the outer optimizer. For others
    the first of the task's `patterns` (fnmatch pattern -> rule) that matches the name decides. Else embeddings get
    Avg, because learners move them along common directions (paper section 4); vectors and scalars get Avg, because
    they have too few elements for a direction; all others get `default`.
    """

    def rule(tensor: Tensor) -> str:
        if tensor.kind == "mean":
            return "mean"
        for pattern, chosen in (patterns or {}).items():
            if fnmatchcase(tensor.name, pattern):
                return chosen
        return "avg" if "embed" in tensor.name or len(tensor.shape) <= 1 else default

    return {tensor.name: rule(tensor) for tensor in tensors}


def merge(
    fragment: Fragment,
    gradients: Sequence[Gradient],
    weights: Sequence[float],
    rules: Mapping[str, str],
    granularity: str,
) -> Gradient:
    """Merge M outer gradients float64[n] into one float64[n], n = fragment.size (paper section 4).

    `weights`: M numbers >= 0 with sum 1; at least one must be above 0. `rules`: by tensor name, from `rules`.
    `granularity`: what RDA treats as one vector: "tensor"; "row" or "column" (one vector for each index of the first
    or last axis; a tensor with fewer than two axes is one vector); "fragment" (all its RDA tensors together). With a
    single contributor the result is its gradient, exactly.
    """
    contributors = [index for index, weight in enumerate(weights) if weight > 0.0]
    assert contributors, "a merge needs a contributor"
    if len(contributors) == 1:
        return gradients[contributors[0]].copy()
    gradients = [gradients[index] for index in contributors]
    shares = np.array([weights[index] for index in contributors], dtype=np.float64)
    merged = np.empty(fragment.size, dtype=np.float64)
    with jax.enable_x64(True):
        for rule, elements, shape, axis in _groups(fragment, rules, granularity):
            stack = np.stack([gradient[elements].reshape(shape) for gradient in gradients])
            result = _radial_directional(stack, shares, axis) if rule == "rda" else _average(stack, shares)
            merged[elements] = np.asarray(result).reshape(-1)
    return merged


def _groups(
    fragment: Fragment, rules: Mapping[str, str], granularity: str
) -> Iterator[tuple[str, slice | NDArray[np.intp], tuple[int, int], int]]:
    """Yield (rule, elements of the flat array, their matrix shape, the axis along which a vector runs)."""
    together: list[NDArray[np.intp]] = []
    for tensor, elements in fragment.slices():
        rule, size = rules[tensor.name], tensor.size
        if rule == "rda" and granularity == "fragment":
            together.append(np.arange(elements.start, elements.stop))
        elif size == 0 or rule != "rda" or granularity == "tensor" or len(tensor.shape) <= 1:
            yield rule, elements, (1, size), 1
        elif granularity == "row":
            yield rule, elements, (tensor.shape[0], size // tensor.shape[0]), 1
        else:
            yield rule, elements, (size // tensor.shape[-1], tensor.shape[-1]), 0
    if together:
        joined = np.concatenate(together)
        yield "rda", joined, (1, len(joined)), 1


# Compiled once per matrix shape and number of contributors; tensors of the same shape share the program.


@jax.jit
def _average(stack: jax.Array, weights: jax.Array) -> jax.Array:
    """Avg, sum w v: float64[M, a, b], float64[M] -> float64[a, b]."""
    return jnp.sum(weights[:, None, None] * stack, axis=0)


@partial(jax.jit, static_argnums=2)
def _radial_directional(stack: jax.Array, weights: jax.Array, axis: int) -> jax.Array:
    """RDA: (sum w |v|) phi(sum w phi(v)) with phi(x) = x / |x|, phi(0) = 0; float64[M, a, b] -> float64[a, b].

    A vector v runs along `axis` of the matrix; weights float64[M] have sum 1. The radius is the weighted mean of the
    norms. (The paper's weighted form prints the mean of the vectors there, which would be plain averaging.)

    Departure from the paper (section 4): M_eff = (sum w)^2 / sum w^2 orthogonal directions have a mean of length
    1 / sqrt(M_eff). If the mean direction is shorter than half of that, the directions cancel, and the paper's rule
    would scale the remainder, mostly noise, to full length. Such a vector gets Avg instead, so the result is never
    longer than 2 sqrt(M_eff) times the radius times |sum w phi(v)|.
    """
    share = weights[:, None, None]
    norms = jnp.linalg.norm(stack, axis=axis + 1, keepdims=True)
    radius = jnp.sum(share * norms, axis=0)
    direction = jnp.sum(share * stack / jnp.where(norms > 0.0, norms, 1.0), axis=0)
    length = jnp.linalg.norm(direction, axis=axis, keepdims=True)
    contributors = jnp.sum(weights) ** 2 / jnp.sum(weights**2)
    agree = length >= 0.5 / jnp.sqrt(contributors)
    mean = jnp.sum(share * stack, axis=0)
    return jnp.where(agree, radius * direction / jnp.where(agree, length, 1.0), mean)
