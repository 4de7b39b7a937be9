"""The held-out loss of the global parameters, and samples from trained ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from learners.config import WarmStart
from learners.training.kinds import state_of
from learners.training.step import reported
from learners.training.task import Batch, Params, Task
from learners.training.tree import Flat, ParameterTree, unsent
from outer.protocol.fragments import Fragment


class Evaluator:
    """Computes the held-out loss of the global parameters."""

    def __init__(
        self,
        task: Task,
        fragments: Sequence[Fragment],
        sequences: int,
        batch_size: int = 32,
        seed: int = 0,
        warm_start: WarmStart | None = None,
    ) -> None:
        """`seed`, `warm_start`: the run's, from which local and frozen leaves have their initial values."""
        self.fragments = tuple(fragments)
        self._task, self._sequences, self._batch_size = task, sequences, batch_size
        self._tree = ParameterTree.of(task)
        self._unsent = unsent(task, seed, warm_start)
        held_out: Any = getattr(task, "held_out_loss", None)
        by_loss = lambda params, batch: task.loss(params, batch, jax.random.key(0))[0]  # noqa: E731
        self._loss = jax.jit(held_out or by_loss)

    def loss(self, thetas: Sequence[Flat]) -> float:
        """Mean loss of thetas, float32[n] per fragment, over the first held-out samples."""
        params = self._tree.params(self.fragments, thetas, self._unsent)
        total = 0.0
        for start in range(0, self._sequences, self._batch_size):
            count = min(self._batch_size, self._sequences - start)
            total += count * float(self._loss(params, self._task.held_out(start, count)))
        return total / self._sequences

    def unsent(self) -> dict[str, NDArray[np.float32]]:
        """The initial values, float32, of the floating-point leaves that are in no fragment, by path."""
        floating = {name: value for name, value in self._unsent.items() if jnp.issubdtype(value.dtype, jnp.floating)}
        return {name: np.asarray(value, dtype=np.float32) for name, value in floating.items()}


class Measurement:
    """What a task measures on its held-out samples; compiled once for all parameters."""

    def __init__(self, task: Task) -> None:
        self.task = task
        held_out: Any = getattr(task, "held_out_loss", None)

        def of_batch(params: Params, batch: Batch) -> dict[str, jax.Array]:
            loss, aux = task.loss(params, batch, jax.random.key(0))
            return reported(state_of(aux)[0]) | {"loss": held_out(params, batch) if held_out else loss}

        self._of_batch = jax.jit(of_batch)

    def means(
        self, params: Params, samples: int, batch_size: int, on_done: Callable[[int], None] = lambda done: None
    ) -> dict[str, float]:
        """Over the first held-out samples: "loss", `held_out_loss` where the task has one, and the auxiliary scalars.

        `on_done` gets the samples so far.
        """
        totals: dict[str, float] = {}
        for start in range(0, samples, batch_size):
            count = min(batch_size, samples - start)
            for name, value in self._of_batch(params, self.task.held_out(start, count)).items():
                totals[name] = totals.get(name, 0.0) + count * float(value)
            on_done(start + count)
        return {name: total / samples for name, total in totals.items()}


def sample(task: Any, params: Params, prompt: bytes, length: int, temperature: float, top_k: int, seed: int) -> bytes:
    """Let the task continue a prompt by `length` bytes."""
    text: bytes = task.sample(params, prompt, length, temperature, top_k, jax.random.key(seed))
    return text
