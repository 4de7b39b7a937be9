"""Merge rules: from the lengths of gradients to the shares with which they are added up (paper section 4).

A rule is a function of `Lengths` that returns shares, float64[V, M], or [M] for all vectors alike: vector v of the
merged outer gradient is the sum of shares[v, m] times that vector of gradient m. It must depend on nothing else, for
replay to find the same bits. A user's own goes by its import path, `package.module:function`, wherever a name goes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from outer.imports import function_at
from outer.protocol.fragments import Tensor

Floats = NDArray[np.float64]


class Lengths(Protocol):
    """The lengths that a rule sees, of V vectors with M gradients each."""

    @property
    def weights(self) -> Floats:
        """float64[M], positive, sum 1."""

    @property
    def norms(self) -> Floats:
        """float64[V, M]: L2 norms of the gradients."""

    def of_sums(self, shares: Floats) -> Floats:
        """float64[V]: L2 norms of the sums of share times gradient, for shares float64[V, M].

        Of up to 8 gradients to about 1e-7 of the summands: what nearly cancels is not known well.
        """


Rule = Callable[[Lengths], Floats]


class GradientStack:
    """Lengths of gradients that are held whole, float64[M, n, V]: a rule is tried on them."""

    def __init__(self, stack: Floats, weights: Floats) -> None:
        self.weights, self._stack = weights, stack

    @cached_property
    def norms(self) -> Floats:
        norms: Floats = np.linalg.norm(self._stack, axis=1).T
        return norms

    def of_sums(self, shares: Floats) -> Floats:
        norms: Floats = np.linalg.norm(np.einsum("mrc,cm->rc", self._stack, shares), axis=0)
        return norms


# ------------------------------------------------------------------ the rules


def average(lengths: Lengths) -> Floats:
    """Avg, sum w v: the weights as they are."""
    return lengths.weights


def radial_directional(lengths: Lengths) -> Floats:
    """RDA: (sum w |v|) phi(sum w phi(v)) with phi(x) = x / |x|, phi(0) = 0.

    The radius is the weighted mean of the norms. (The paper's weighted form prints the mean of the vectors there, which
    would be plain averaging.)

    Departure from the paper (section 4): M_eff = (sum w)^2 / sum w^2 orthogonal directions have a mean of length
    1 / sqrt(M_eff). If the mean direction is shorter than half of that, the directions cancel, and the paper's rule
    would scale the remainder, mostly noise, to full length. Such a vector gets Avg instead, so the result is never
    longer than 2 sqrt(M_eff) times the radius times |sum w phi(v)|.
    """
    weights, norms = lengths.weights, lengths.norms
    directions = np.divide(weights, norms, out=np.zeros_like(norms), where=norms > 0.0)
    length = lengths.of_sums(directions)
    agree = length >= 0.5 * np.sqrt(np.sum(weights**2)) / np.sum(weights)
    stretch = norms @ weights / np.where(agree, length, 1.0)
    return np.where(agree[:, None], directions * stretch[:, None], weights)


RULES: Mapping[str, Rule] = {"avg": average, "rda": radial_directional}

# ------------------------------------------------------------------ which, and where


def named(name: str) -> Rule:
    """The rule of this name or import path. Raises ValueError, with what is wrong and the fix."""
    rule: Rule = function_at(name, RULES, "merge rule")
    return rule


def check(name: str) -> None:
    """Try a rule on gradients of several kinds. Raises ValueError, with what is wrong, for one that cannot be used."""
    rule, drawn = named(name), np.random.default_rng(0)
    for count in (2, 5):
        stack = drawn.normal(size=(count, 8, 3)) * [1.0, 1e-6, 0.0]  # the last vector has no length
        weights = drawn.uniform(0.1, 1.0, count)
        weights /= weights.sum()
        try:
            shares = _shares(rule, stack, weights)
        except Exception as error:  # whatever a user's function raises
            raise ValueError(f"{name!r} fails for {count} gradients: {type(error).__name__}: {error}") from error
        if not np.isfinite(shares).all():
            raise ValueError(f"{name!r} returns shares that are not finite, perhaps for gradients without length")
        if _shares(rule, stack, weights).tobytes() != shares.tobytes():
            raise ValueError(f"{name!r} returns other shares for the same gradients: replay would not find its merges")
        turned = _shares(rule, stack[::-1], weights[::-1])[:, ::-1]
        if not np.allclose(turned, shares, rtol=1e-6, atol=1e-9):
            raise ValueError(f"{name!r} depends on the order of the learners")


def _shares(rule: Rule, stack: Floats, weights: Floats) -> Floats:
    return np.array(np.broadcast_to(rule(GradientStack(stack, weights)), (stack.shape[2], len(stack))), np.float64)


def rules(tensors: Sequence[Tensor], default: str, patterns: Mapping[str, str] | None = None) -> dict[str, str]:
    """The rule of each tensor by name: as in `named`, or "mean".

    Tensors of the kind mean have the rule of that name: averaged, and not stepped by the outer optimizer. For others
    the first of the task's `patterns` (fnmatch pattern -> rule) that matches the path of the leaf decides. Else
    embeddings get Avg, because learners move them along common directions (paper section 4); vectors and scalars get
    Avg, because they have too few elements for a direction; all others get `default`.
    """

    def rule(tensor: Tensor) -> str:
        if tensor.kind == "mean":
            return "mean"
        for pattern, chosen in (patterns or {}).items():
            if fnmatchcase(tensor.path, pattern):
                return chosen
        return "avg" if "embed" in tensor.path or len(tensor.shape) <= 1 else default

    return {tensor.name: rule(tensor) for tensor in tensors}
