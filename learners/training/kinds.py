"""The kinds of a task's parameters: which leaves the inner optimizer steps, and which the syncer merges.

kind     inner optimizer   sent     what the syncer does              set by
merged   steps it          yes      merge rule and outer optimizer    gradients; the default
mean     never sees it     yes      plain weighted average            the loss, aux["state"]
local    never sees it     no       nothing                           the loss, aux["state"]
frozen   never sees it     no       nothing                           nobody: it keeps its initial value

A joiner takes all leaves from a peer; without one, local leaves have their initial values, as in evaluation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import jax
import jax.numpy as jnp

from learners.training.task import Params, Task
from outer.protocol.fragments import KINDS, Tensor

STATE = "state"  # in a loss's auxiliary values: new values of `mean` and `local` leaves by path
WRITTEN = ("mean", "local")  # the kinds that a loss may give new values


@dataclass(frozen=True)
class Leaves:
    """Every leaf of a task's parameters, and the part of them that the inner optimizer sees."""

    structure: Any  # the pytree without its leaves
    tensors: tuple[Tensor, ...]  # one per leaf, in tree order

    @staticmethod
    def of(task: Task) -> Leaves:
        """Uses shapes alone. Raises ValueError for two leaves of one path, for kinds that do not fit the parameters,
        and for a leaf that is sent and not floating-point.
        """
        paths, structure = jax.tree_util.tree_flatten_with_path(jax.eval_shape(task.init, jax.random.key(0)))
        named = [(jax.tree_util.keystr(path, simple=True, separator="/"), leaf) for path, leaf in paths]
        names = [name for name, _ in named]
        check_paths(names)
        patterns = _patterns(task, names)
        tensors = []
        for name, leaf in named:
            kind = next((kind for pattern, kind in patterns.items() if fnmatchcase(name, pattern)), "merged")
            tensors.append(Tensor(name, tuple(leaf.shape), str(leaf.dtype), kind))
            if tensors[-1].sent and not jnp.issubdtype(leaf.dtype, jnp.floating):
                raise ValueError(
                    f"parameter {name!r} is {leaf.dtype}, and only floating-point tensors can be averaged; "
                    "keep what is not trained out of the parameters, or make its kind local or frozen"
                )
        if tensors and not any(tensor.kind == "merged" for tensor in tensors):
            raise ValueError("the task's kinds leave no parameter to train; leave at least one of the kind merged")
        return Leaves(structure, tuple(tensors))

    def merged(self, params: Params) -> Params:
        """The tree that the inner optimizer sees: None, an empty subtree, in place of every leaf that is not merged."""
        if all(tensor.kind == "merged" for tensor in self.tensors):
            return params
        leaves = zip(jax.tree.leaves(params), self.tensors, strict=True)
        return jax.tree.unflatten(self.structure, [leaf if each.kind == "merged" else None for leaf, each in leaves])

    def joined(self, params: Params, merged: Params) -> Params:
        """params with its merged leaves taken from `merged`, as the method of this name makes it."""
        new = iter(jax.tree.leaves(merged))
        leaves = zip(jax.tree.leaves(params), self.tensors, strict=True)
        return jax.tree.unflatten(
            self.structure, [next(new) if each.kind == "merged" else leaf for leaf, each in leaves]
        )

    def updated(self, params: Params, state: Mapping[str, Any]) -> Params:
        """params with the loss's new values of mean and local leaves, by path.

        Raises ValueError for another path, and for another shape or dtype than the leaf's.
        """
        if not state:
            return params
        allowed = {tensor.name: tensor for tensor in self.tensors if tensor.kind in WRITTEN}
        for name, value in state.items():
            if name not in allowed:
                raise ValueError(
                    f"aux[{STATE!r}] has {name!r}, which is no leaf of the kind mean or local; "
                    f"such leaves are {', '.join(allowed) or 'none: give the task kinds'}"
                )
            tensor = allowed[name]
            if (found := (tuple(jnp.shape(value)), str(jnp.result_type(value)))) != (tensor.shape, tensor.dtype):
                raise ValueError(
                    f"aux[{STATE!r}][{name!r}] is {found[1]}{list(found[0])}; "
                    f"give it the leaf's own dtype and shape, {tensor.dtype}{list(tensor.shape)}"
                )
        leaves = zip(jax.tree.leaves(params), self.tensors, strict=True)
        return jax.tree.unflatten(self.structure, [state.get(each.name, leaf) for leaf, each in leaves])


def check_paths(names: Sequence[str]) -> None:
    """Raises ValueError where a path names two parameters, or a parameter and what is inside it."""
    inner = {"/".join(parts[:depth]) for name in names for parts in [name.split("/")] for depth in range(1, len(parts))}
    if doubled := sorted(name for name, count in Counter(names).items() if count > 1 or name in inner):
        raise ValueError(
            f"the path {doubled[0]!r} names more than one parameter, because a key has a `/` or looks like an index; "
            "rename keys, so that every parameter has a path of its own"
        )


def state_of(aux: Any) -> tuple[Any, Mapping[str, Any]]:
    """A loss's auxiliary values without the new values of leaves, and these values by path."""
    if not isinstance(aux, Mapping) or not isinstance(aux.get(STATE), Mapping):
        return aux, {}
    return {name: value for name, value in aux.items() if name != STATE}, aux[STATE]


def _patterns(task: Task, names: list[str]) -> Mapping[str, str]:
    """The task's kinds by path pattern. Raises ValueError for an unknown kind and a pattern that matches nothing."""
    patterns = getattr(task, "kinds", {})
    if not isinstance(patterns, Mapping):
        raise ValueError(f"the task's kinds are a {type(patterns).__name__}; give a mapping of path patterns to kinds")
    for pattern, kind in patterns.items():
        if kind not in KINDS:
            raise ValueError(f"kinds: {pattern!r} is {kind!r}; the kinds are {', '.join(KINDS)}")
        if not any(fnmatchcase(name, pattern) for name in names):
            shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
            raise ValueError(f"kinds: {pattern!r} matches no parameter; the parameters are {shown}")
    return patterns
