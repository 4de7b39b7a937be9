"""Held-out losses and metrics of trained parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from learners.config import WarmStart
from learners.training.devices.mesh import layout
from learners.training.kinds import Leaves, state_of
from learners.training.step import reported
from learners.training.task import Batch, Params, Task
from learners.training.tree import Flat, ParameterTree, unsent
from outer.protocol.fragments import Fragment


class Measurement:
    """Measures a task's loss and metrics on its held-out samples; compiled once for all parameters."""

    def __init__(self, task: Task, devices: int | None = 1) -> None:
        """`devices`: local ones that the parameters and each batch are spread over, as a learner's; None: all."""
        self.task = task
        self._layout = layout(task, Leaves.of(task).tensors, devices, 1)
        held_out: Any = getattr(task, "held_out_loss", None)

        def of_batch(params: Params, batch: Batch) -> dict[str, jax.Array]:
            loss, aux = task.loss(params, batch, jax.random.key(0))
            return reported(state_of(aux)[0]) | {"loss": held_out(params, batch) if held_out else loss}

        self._of_batch = jax.jit(of_batch)

    @property
    def shardings(self) -> Sequence[Any] | None:
        """Return the sharding of each leaf of the parameters, in tree order; None for one device."""
        return None if self._layout is None else self._layout.leaves

    def means(self, params: Params, samples: int, batch_size: int) -> dict[str, float]:
        """Over the first held-out samples: "loss", `held_out_loss` where the task has one, and the auxiliary scalars.

        `params`: placed as `shardings`.
        """
        totals: dict[str, float] = {}
        for start in range(0, samples, batch_size):
            count = min(batch_size, samples - start)
            for name, value in self._of_batch(params, self._spread(self.task.held_out(start, count), count)).items():
                totals[name] = totals.get(name, 0.0) + count * float(value)
        return {name: total / samples for name, total in totals.items()}

    def _spread(self, batch: Batch, count: int) -> Batch:
        if self._layout is None:
            return batch
        if count % self._layout.mesh.shape["batch"]:
            return jax.device_put(batch, self._layout.replicated)  # the rest of the samples: each device computes all
        return self._layout.split(batch)


class Evaluator:
    """Measures the global parameters: on the task's own held-out samples, and on those of other sets."""

    def __init__(
        self,
        task: Task,
        fragments: Sequence[Fragment],
        sequences: int,
        batch_size: int = 32,
        seed: int = 0,
        warm_start: WarmStart | None = None,
        sets: Mapping[str, Task] | None = None,
        devices: int | None = 1,
    ) -> None:
        """`seed`, `warm_start`: the run's, from which local and frozen leaves have their initial values.

        `sets`: by name, the same task with other held-out samples. `devices`: as of a Measurement.
        """
        self.fragments = tuple(fragments)
        self._sequences, self._batch_size = sequences, batch_size
        self._tree = ParameterTree.of(task)
        self._unsent = unsent(task, seed, warm_start)
        self._own = Measurement(task, devices)
        self._sets = {name: Measurement(other, devices) for name, other in (sets or {}).items()}

    def loss(self, thetas: Sequence[Flat]) -> float:
        """Mean loss of thetas, float32[n] per fragment, over the first of the task's own held-out samples."""
        return self._own.means(self._placed(thetas), self._sequences, self._batch_size)["loss"]

    def measure(self, thetas: Sequence[Flat]) -> tuple[float, dict[str, float]]:
        """(`loss`, metrics): the task's own, and those of the other sets and their losses as "SET/loss"."""
        params = self._placed(thetas)
        metrics = self._own.means(params, self._sequences, self._batch_size)
        loss = metrics.pop("loss")
        for name, measurement in self._sets.items():
            found = measurement.means(params, self._sequences, self._batch_size)
            metrics |= {f"{name}/{metric}": value for metric, value in found.items()}
        return loss, metrics

    def unsent(self) -> dict[str, NDArray[np.float32]]:
        """The initial values, float32, of the floating-point leaves that are in no fragment, by path."""
        floating = {name: value for name, value in self._unsent.items() if jnp.issubdtype(value.dtype, jnp.floating)}
        return {name: np.asarray(value, dtype=np.float32) for name, value in floating.items()}

    def _placed(self, thetas: Sequence[Flat]) -> Params:
        return self._tree.params(self.fragments, thetas, self._unsent, self._own.shardings)
