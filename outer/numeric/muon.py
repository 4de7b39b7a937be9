"""Muon as an inner optimizer, for models whose leaves are matrices [in, out] or stacks of them."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import jax
import optax
from optax.contrib import MuonDimensionNumbers

ADAM = ("*embed*", "*head*")  # of tensor paths: looked up by token, or one column for each


def muon(
    learning_rate: float,
    beta: float = 0.95,
    weight_decay: float = 1e-4,
    ns_steps: int = 5,
    rms: float = 0.2,
    adam: Sequence[str] = ADAM,
    adam_b1: float = 0.9,
    adam_b2: float = 0.999,
) -> optax.GradientTransformation:
    """Momentum made orthogonal by Newton and Schulz (optax.contrib.muon), AdamW for what is no hidden matrix.

    Of leaves with more than two axes the last two are the matrix. `adam`: patterns (fnmatch) of the paths of matrices
    that AdamW steps too. `rms`: of a Muon update at learning rate 1; at 0.2, AdamW's learning rates fit (arXiv
    2502.16982). As inner optimizer of DiLoCo: arXiv 2505.23725. Raises ValueError for patterns that are no list.
    """
    if isinstance(adam, str):
        raise ValueError(f"adam = {adam!r} must be a list of patterns")

    def matrices(params: Any) -> Any:
        return jax.tree_util.tree_map_with_path(of_leaf, params)

    def of_leaf(path: Any, leaf: Any) -> MuonDimensionNumbers | None:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        stepped_by_adam = leaf.ndim < 2 or any(fnmatchcase(name, pattern) for pattern in adam)
        return None if stepped_by_adam else MuonDimensionNumbers(leaf.ndim - 2, leaf.ndim - 1)

    return optax.contrib.muon(
        learning_rate,
        beta=beta,
        weight_decay=weight_decay,
        ns_steps=ns_steps,
        consistent_rms=rms,
        adam_b1=adam_b1,
        adam_b2=adam_b2,
        adam_weight_decay=weight_decay,
        muon_weight_dimension_numbers=matrices,
    )
