"""The steps of several learners as one program: jax.vmap of the inner step over learners on one device.

XLA may order the sums of a stacked product differently from those of a single one, so the bits are not those of single
steps: a loss may differ in its last digits, and later steps by what grows out of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from learners.training.step import Aux, TrainStep
from learners.training.trainer import InFlight, Trainer


class StackedStep:
    """Steps trainers of one task, inner optimizer and batch size together, each on its own batch.

    Compiles once for each number of trainers and batch size.
    """

    def __init__(self, train_step: TrainStep) -> None:
        """`train_step`: of one learner, from `make_step`."""
        over_learners: Any = jax.vmap(train_step)

        def together(params: Any, states: Any, batches: Any, keys: Any, scales: Any) -> tuple[Any, Any, jax.Array, Aux]:
            joined = map(_joined, (params, states, batches, keys, scales))
            new_params, new_states, losses, aux = over_learners(*joined)
            return _apart(new_params, len(keys)), _apart(new_states, len(keys)), losses, aux

        self._together = jax.jit(together, donate_argnums=(0, 1))

    def dispatch(
        self, trainers: Sequence[Trainer], starts: Sequence[int], count: int, progress: Sequence[float]
    ) -> list[InFlight]:
        """Enqueue one step of each trainer, on samples [start, start + count); as Trainer.dispatch otherwise."""
        each = [one.inputs(start, count, at) for one, start, at in zip(trainers, starts, progress, strict=True)]
        params, states, losses, aux = self._together(*map(list, zip(*each, strict=True)))
        for one, new_params, new_state in zip(trainers, params, states, strict=True):
            one.accept(new_params, new_state)
        return [
            InFlight(losses[index], {name: values[index] for name, values in aux.items()})
            for index in range(len(trainers))
        ]


def _joined(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _apart(tree: Any, count: int) -> list[Any]:
    return [jax.tree.map(lambda leaf, index=index: leaf[index], tree) for index in range(count)]
