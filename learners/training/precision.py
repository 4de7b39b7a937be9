"""The dtypes that [inner] asks for: those in which a learner keeps its parameters, and those of loss and gradients.

Parameters in float32 under a loss in bfloat16 are the master parameters of mixed-precision training (arXiv 1710.03740):
fragments, contributions, checkpoints and states of donors carry them, and the moments have their dtype.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from learners.config import InnerConfig
from learners.training.task import Batch, Params, Task

OWN = "task"  # as the task's init gives them


def precise(task: Task, inner: InnerConfig) -> Task:
    """The task with parameters of dtype `inner.parameters` and a loss computed in `inner.compute`.

    The task itself if it keeps its own dtypes, or if it is the result of an earlier call.
    """
    if (inner.parameters == OWN and inner.compute == OWN) or isinstance(task, _Precise):
        return task
    return _Precise(task, inner)


class _Precise:
    """A task that casts around `init` and `loss`; everything else is the task's own."""

    def __init__(self, task: Task, inner: InnerConfig) -> None:
        self._task, self._inner = task, inner
        self._own = jax.tree.map(lambda leaf: leaf.dtype, jax.eval_shape(task.init, jax.random.key(0)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def init(self, rng: jax.Array) -> Params:
        # The barrier keeps the rounding to the task's own dtypes: XLA may remove a cast there and back.
        own = jax.lax.optimization_barrier(self._task.init(rng))  # type: ignore[no-untyped-call]
        return _cast(own, self._inner.parameters)

    def loss(self, params: Params, batch: Batch, rng: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        if self._inner.compute == OWN:
            params = jax.tree.map(lambda leaf, dtype: leaf.astype(dtype), params, self._own)
        loss, aux = self._task.loss(_cast(params, self._inner.compute), _cast(batch, self._inner.compute), rng)
        return loss.astype(jnp.float32), aux


def _cast(tree: Any, dtype: str) -> Any:
    """The tree with its floating-point leaves in that dtype; unchanged for "task"."""
    if dtype == OWN:
        return tree
    return jax.tree.map(lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, tree)
