"""The held-out loss of the global parameters, and samples from trained ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from learners.training import weights
from learners.training.task import Task
from learners.training.tree import Flat, ParameterTree, parameters
from outer.protocol.fragments import Fragment


class Evaluator:
    """Computes the held-out loss of the global parameters."""

    def __init__(self, task: Task, fragments: Sequence[Fragment], sequences: int, batch_size: int = 32) -> None:
        self.fragments = tuple(fragments)
        self._task, self._sequences, self._batch_size = task, sequences, batch_size
        self._tree = ParameterTree.of(task)
        self._loss = jax.jit(lambda params, batch: task.loss(params, batch, jax.random.key(0))[0])

    def loss(self, thetas: Sequence[Flat]) -> float:
        """Mean loss of thetas, float32[n] per fragment, over the first held-out samples."""
        leaves: list[Any] = [None] * len(self._tree.tensors)
        for fragment, theta in zip(self.fragments, thetas, strict=True):
            leaves = self._tree.written(leaves, fragment, theta)
        params = jax.tree.unflatten(self._tree.structure, leaves)
        total = 0.0
        for start in range(0, self._sequences, self._batch_size):
            count = min(self._batch_size, self._sequences - start)
            total += count * float(self._loss(params, self._task.held_out(start, count)))
        return total / self._sequences


def sample(
    task: Any, named: weights.Named, prompt: bytes, length: int, temperature: float, top_k: int, seed: int
) -> bytes:
    """Let the task continue a prompt by `length` bytes. Raises ValueError if the parameters do not fit the task."""
    params = parameters(task, named)
    text: bytes = task.sample(params, prompt, length, temperature, top_k, jax.random.key(seed))
    return text
