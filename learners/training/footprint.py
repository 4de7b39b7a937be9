"""What a task's parameters and inner optimizer state take, in bytes: from shapes alone, nothing is allocated."""

from __future__ import annotations

from typing import Any

import jax

from learners.config import InnerConfig
from learners.training.task import Task
from learners.training.trainer import transformation


def parameter_bytes(task: Task) -> int:
    """Of one copy of the parameters, in the model's own dtypes."""
    return _bytes(_parameters(task))


def inner_state_bytes(task: Task, inner: InnerConfig) -> int:
    """Of the inner optimizer's state, gradient clipping's included."""
    return _bytes(jax.eval_shape(transformation(task, inner).init, _parameters(task)))


def _parameters(task: Task) -> Any:
    return jax.eval_shape(task.init, jax.random.key(0))


def _bytes(shapes: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
