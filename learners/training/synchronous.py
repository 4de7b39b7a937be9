"""Conventional data-parallel training: one model, replicated over the devices of all processes of one JAX program.

Each process takes its share of a step's samples; XLA averages the gradients. The step, the optimizer, the schedule and
the order of samples are a learner's. jax.distributed must be up, or there is one process.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from learners.config import InnerConfig, WarmStart
from learners.training import state_arrays
from learners.training.precision import precise
from learners.training.step import Batches, make_step, schedule, step_key, transformation
from learners.training.task import Task
from learners.training.trainer import InFlight
from learners.training.tree import Flat, ParameterTree, deal, initial_parameters, unsent
from outer.config import SyncConfig
from outer.journal.framing import pack, unpack

_SPEC: Any = PartitionSpec  # JAX leaves its constructor untyped
WHOLE = SyncConfig(P=1, H=1, tau=0)  # the model as one fragment


class SynchronousTrainer:
    """This process's part of the training. Every process makes the same calls in the same order.

    `batch_size`: samples of a step of all processes. Raises ValueError if they cannot share it equally.
    """

    def __init__(
        self, task: Task, inner: InnerConfig, seed: int, batch_size: int, warm_start: WarmStart | None = None
    ) -> None:
        self._task = task = precise(task, inner)
        self._inner, self._seed, self._batch_size = inner, seed, batch_size
        self.fragments = deal(task, WHOLE)
        self._tree = ParameterTree.of(task)
        mesh = Mesh(np.array(jax.devices()), ("batch",))
        processes, ways = jax.process_count(), mesh.size
        if batch_size % (ways * inner.microbatches):
            raise ValueError(f"{batch_size} samples cannot be shared equally by {ways} devices")
        self._share = batch_size // processes
        self._first = jax.process_index() * self._share
        self._replicated, self._split = NamedSharding(mesh, _SPEC()), NamedSharding(mesh, _SPEC("batch"))
        first = initial_parameters(task, self.fragments, seed, warm_start)
        params = self._tree.params(self.fragments, first, unsent(task, seed, warm_start))
        opt_state = transformation(task, inner).init(self._tree.merged(params))
        self._params, self._opt_state = jax.tree.map(self._everywhere, (params, opt_state))
        self._batches = Batches(self._build)
        self._step = self._compiled()

    def _everywhere(self, leaf: Any) -> Any:
        """A copy on every device of every process, each from its own memory."""
        array = np.array(leaf)
        return jax.make_array_from_callback(array.shape, self._replicated, lambda index: array[index])

    def _compiled(self) -> Any:
        step = make_step(self._task, self._inner)

        def whole(params: Any, opt_state: Any, batch: Any, key: Any, scale: Any) -> Any:
            return step(params, opt_state, batch, jax.random.wrap_key_data(key), scale)

        results = jax.tree.map(lambda leaf: leaf.sharding, (self._params, self._opt_state))
        program = jax.jit(whole, donate_argnums=(0, 1), out_shardings=(*results, self._replicated, self._replicated))
        return program.lower(self._params, self._opt_state, *self._inputs(0, 0.0)).compile()

    def _build(self, start: int, count: int) -> Any:
        """This process's share of a step's samples, as part of the whole batch."""
        placed: Any = jax.make_array_from_process_local_data
        share = self._task.batch(start + self._first, self._share)
        return jax.tree.map(lambda leaf: placed(self._split, np.array(leaf), (count, *leaf.shape[1:])), share)

    def _inputs(self, start: int, progress: float) -> tuple[Any, Any, Any]:
        key = np.asarray(jax.random.key_data(step_key(self._seed, start)))
        scale = np.float32(schedule(self._inner, progress))
        return self._batches.take(start, self._batch_size), key, scale

    def dispatch(self, start: int, progress: float) -> InFlight:
        """Enqueue the step on samples [start, start + batch_size) of the endless order; `progress` in [0, 1]."""
        inputs = self._inputs(start, progress)
        self._params, self._opt_state, loss, aux = self._step(self._params, self._opt_state, *inputs)
        self._batches.expect([start + self._batch_size], self._batch_size)
        return InFlight(loss, aux)

    def thetas(self) -> list[Flat]:
        """The parameters, float32[n] for the one fragment. Waits for the devices."""
        leaves = jax.tree.leaves(self._params)
        return [self._tree.read(leaves, fragment) for fragment in self.fragments]

    def save(self) -> bytes:
        """Parameters and optimizer state. Waits for the devices."""
        return b"".join(pack({}, state_arrays.pack(jax.tree.leaves((self._params, self._opt_state))))[0])

    def restore(self, content: bytes) -> None:
        """Take over what `save` returned, in any process. Raises ValueError for damage, or another task's state."""
        old, structure = jax.tree.flatten((self._params, self._opt_state))
        _, arrays, _ = unpack(content)
        if found := state_arrays.defect(arrays, old):
            raise ValueError(f"the checkpoint's state cannot be used: {found}")
        new = [self._everywhere(array.view(np.dtype(leaf.dtype))) for array, leaf in zip(arrays, old, strict=True)]
        self._params, self._opt_state = jax.tree.unflatten(structure, new)
