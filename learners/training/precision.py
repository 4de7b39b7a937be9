"""The dtypes that [inner] asks for: those in which a learner keeps its parameters, and those of loss and gradients.

Parameters in float32 under a loss in bfloat16 are the master parameters of mixed-precision training (arXiv 1710.03740):
fragments, contributions, checkpoints and states of donors carry them, and the moments have their dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from learners.config import InnerConfig
from learners.training.kinds import STATE, Leaves, state_of
from learners.training.task import Batch, Params, Task
from outer.protocol.fragments import Tensor

OWN = "task"  # as the task's init gives them
_FLOATS = ("bfloat16", "float16", "float32", "float64")


def precise(task: Task, inner: InnerConfig) -> Task:
    """The task with parameters of dtype `inner.parameters` and a loss computed in `inner.compute`.

    Statistics, the leaves of the kinds mean and local, keep the task's own dtypes throughout. Returns the task itself
    if it keeps its own dtypes, or if it is the result of an earlier call.
    """
    if (inner.parameters == OWN and inner.compute == OWN) or isinstance(task, _Precise):
        return task
    return _Precise(task, inner)


def loss_dtype(own: Tensor, inner: InnerConfig) -> str:
    """The dtype in which the loss sees a leaf that the task's init gives as `own`."""
    cast = inner.compute != OWN and own.kind in ("merged", "frozen") and own.dtype in _FLOATS
    return inner.compute if cast else own.dtype


class _Precise:
    """A task that casts around `init` and `loss`; everything else is the task's own."""

    def __init__(self, task: Task, inner: InnerConfig) -> None:
        self._task, self._inner = task, inner
        self._leaves = Leaves.of(task)
        self._own = {tensor.name: tensor.dtype for tensor in self._leaves.tensors}
        self._used = [loss_dtype(own, inner) for own in self._leaves.tensors]
        kept = own_dtypes = list(self._own.values())
        if inner.parameters != OWN:
            stepped = [tensor.kind == "merged" for tensor in self._leaves.tensors]
            kept = [inner.parameters if each else own for each, own in zip(stepped, own_dtypes, strict=True)]
        self._kept = kept

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def init(self, rng: jax.Array) -> Params:
        # The barrier keeps the rounding to the task's own dtypes: XLA may remove a cast there and back.
        own = jax.lax.optimization_barrier(self._task.init(rng))  # type: ignore[no-untyped-call]
        return self._cast(own, self._kept)

    def loss(self, params: Params, batch: Batch, rng: jax.Array) -> tuple[jax.Array, dict[str, Any]]:
        if self._inner.compute != OWN:
            batch = jax.tree.map(lambda leaf: _as(leaf, self._inner.compute), batch)
        loss, aux = self._task.loss(self._cast(params, self._used), batch, rng)
        rest, state = state_of(aux)
        if state:  # perhaps in the dtype of the loss
            new: Any = {name: _as(value, self._own.get(name, OWN)) for name, value in state.items()}
            aux = {**rest, STATE: new}
        return loss.astype(jnp.float32), aux

    def _cast(self, params: Params, dtypes: Sequence[str]) -> Params:
        leaves = [_as(leaf, dtype) for leaf, dtype in zip(jax.tree.leaves(params), dtypes, strict=True)]
        return jax.tree.unflatten(self._leaves.structure, leaves)


def _as(leaf: Any, dtype: str) -> Any:
    """A floating-point leaf in that floating-point dtype; any other as it is."""
    return leaf.astype(dtype) if str(leaf.dtype) in _FLOATS and dtype in _FLOATS else leaf
