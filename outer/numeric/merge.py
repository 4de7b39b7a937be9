"""Many learners' outer gradients of one fragment become one (paper section 4).

Knows tensors and their rules, Avg or RDA; not who contributed, nor where the weights come from. Computed in
float64 under a local switch: learners of the lock-step shell share this process and train in float32.
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
    """The rule, "rda" or "avg", of each tensor by name.

    The first of the task's `patterns` (fnmatch pattern -> rule) that matches the name decides. Else
    embeddings get Avg, for learners move them along common directions (paper section 4), and so do vectors
    and scalars, whose few numbers have no direction to speak of; the rest get `default`.
    """

    def rule(tensor: Tensor) -> str:
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
    """The merged outer gradient, float64[n], of M outer gradients float64[n], n = fragment.size.

    `weights`: M numbers >= 0 with sum 1. `rules`: as from `rules`. `granularity`, what RDA takes for a
    vector: "tensor"; "row" or "column" (the first or the last axis counts the vectors; a tensor of one axis
    or none is one vector); "fragment" (all its RDA tensors together). One contributor gets its own gradient
    back exactly.
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
            result = _average(stack, shares) if rule == "avg" else _radial_directional(stack, shares, axis)
            merged[elements] = np.asarray(result).reshape(-1)
    return merged


def _groups(
    fragment: Fragment, rules: Mapping[str, str], granularity: str
) -> Iterator[tuple[str, slice | NDArray[np.intp], tuple[int, int], int]]:
    """(rule, elements of the flat array, a matrix shape for them, the axis along which a vector runs)."""
    together: list[NDArray[np.intp]] = []
    for tensor, place in fragment.slices():
        rule, size = rules[tensor.name], tensor.size
        if rule == "rda" and granularity == "fragment":
            together.append(np.arange(place.start, place.stop))
        elif size == 0 or rule == "avg" or granularity == "tensor" or len(tensor.shape) <= 1:
            yield rule, place, (1, size), 1
        elif granularity == "row":
            yield rule, place, (tensor.shape[0], size // tensor.shape[0]), 1
        else:
            yield rule, place, (size // tensor.shape[-1], tensor.shape[-1]), 0
    if together:
        elements = np.concatenate(together)
        yield "rda", elements, (1, len(elements)), 1


# Compiled once per matrix shape and number of contributors: tensors of one shape, in any fragment, share it.


@jax.jit
def _average(stack: jax.Array, weights: jax.Array) -> jax.Array:
    """sum w v: float64[M, a, b], float64[M] -> float64[a, b]."""
    return jnp.sum(weights[:, None, None] * stack, axis=0)


@partial(jax.jit, static_argnums=2)
def _radial_directional(stack: jax.Array, weights: jax.Array, axis: int) -> jax.Array:
    """(sum w |v|) phi(sum w phi(v)), phi(x) = x / |x|, phi(0) = 0: float64[M, a, b] -> float64[a, b].

    A vector v runs along `axis` of the matrix; weights float64[M] have sum 1. The radius is the mean of the
    norms; the paper's weighted form prints the vectors' mean there, which would be plain averaging.

    Departure from the paper (section 4): M_eff = (sum w)^2 / sum w^2 orthogonal directions leave a sum of
    length 1 / sqrt(M_eff). Where less than half of that is left, |sum w phi(v)| < 1 / (2 sqrt(M_eff)), they
    cancel, and the paper's rule would blow the rest, mostly noise, up to full length. Such a vector gets Avg,
    so that RDA's result is never longer than 2 sqrt(M_eff) times the radius times |sum w phi(v)|.
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
