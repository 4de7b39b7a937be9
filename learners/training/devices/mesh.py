"""The device mesh of one learner, over all of its processes: where its parameters and batches are placed.

Axis "batch" splits the samples of a step; the task decides the use of axis "model". XLA inserts the communication.
Fragments are read and written as whole arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from learners.training.devices.placement import own
from learners.training.task import Batch, Task
from outer.protocol.fragments import Tensor

_SPEC: Any = PartitionSpec  # JAX leaves its constructor untyped


@dataclass(frozen=True)
class Layout:
    """The placement of one learner's arrays on its devices."""

    mesh: Mesh
    leaves: tuple[NamedSharding, ...]  # of each parameter, in tree order

    @property
    def batch(self) -> NamedSharding:
        return NamedSharding(self.mesh, _SPEC("batch"))

    @property
    def replicated(self) -> NamedSharding:
        return NamedSharding(self.mesh, _SPEC())

    def split(self, batch: Batch) -> Batch:
        """Spread a batch's samples over the axis "batch". Raises ValueError if their number is not a multiple of it."""
        ways = self.mesh.shape["batch"]
        counts = {len(leaf) for leaf in jax.tree.leaves(batch)}
        if any(count % ways for count in counts):
            raise ValueError(f"a batch of {max(counts)} samples cannot be split over {ways} devices; use a multiple")
        if self.batch.is_fully_addressable:
            return jax.device_put(batch, self.batch)
        # Each process makes the whole batch and places its part: device_put would compare the processes' batches.
        return jax.tree.map(
            lambda leaf: jax.make_array_from_callback(leaf.shape, self.batch, lambda index: leaf[index]), batch
        )

    def state(self, opt_state: Any) -> Any:
        """Place the inner optimizer's state: leaves sharded like parameters stay so, all others are replicated."""
        return jax.tree.map(lambda leaf: leaf if _on(leaf, self.mesh) else put(leaf, self.replicated), opt_state)


def layout(task: Task, tensors: Sequence[Tensor], devices: int | None, model_parallel: int) -> Layout | None:
    """The layout of a task's tensors on the devices of all of a learner's processes; None for a single device.

    `devices`: how many of each process, None for all. `model_parallel`: how many share one copy of the model. A task's
    `sharding(mesh)`, if it has one, maps tensor path patterns (fnmatch) to PartitionSpecs; the first match decides, and
    tensors without a match are replicated. Raises ValueError for missing devices, and for a tensor that cannot be
    sharded as the task asks.
    """
    ranks = [jax.local_devices(process) for process in range(jax.process_count())]
    if len({len(rank) for rank in ranks}) > 1:
        each = ", ".join(f"rank {number} has {len(rank)}" for number, rank in enumerate(ranks))
        raise ValueError(f"the processes of a learner need the same number of devices each: {each}")
    local = len(ranks[0]) if devices is None else devices
    if local > len(ranks[0]):
        raise ValueError(
            f"devices = {local}: this process has {len(ranks[0])}; request as many in the pool's resources"
        )
    found = [device for rank in ranks for device in rank[:local]]
    if (count := len(found)) % model_parallel:
        raise ValueError(f"model_parallel = {model_parallel} does not divide the {count} devices; use a divisor")
    if count == 1:
        return None
    mesh = Mesh(np.array(found).reshape(count // model_parallel, model_parallel), ("batch", "model"))
    patterns: Mapping[str, PartitionSpec] = task.sharding(mesh) if hasattr(task, "sharding") else {}
    return Layout(mesh, tuple(_placed(tensor, patterns, mesh) for tensor in tensors))


def _placed(tensor: Tensor, patterns: Mapping[str, PartitionSpec], mesh: Mesh) -> NamedSharding:
    spec = next((spec for pattern, spec in patterns.items() if fnmatchcase(tensor.name, pattern)), _SPEC())
    try:
        sharding = NamedSharding(mesh, spec)
        sharding.check_compatible_aval(tensor.shape)  # its rank
        sharding.shard_shape(tensor.shape)  # and that the axes divide it
    except ValueError as error:
        axes = dict(mesh.shape)
        raise ValueError(
            f"{tensor.name} of shape {list(tensor.shape)} cannot be sharded as {spec} on a mesh of {axes}: "
            f"{' '.join(str(error).split())}; change the task's sharding or the pool's devices"
        ) from error
    return sharding


def put(leaf: Any, sharding: NamedSharding) -> Any:
    """Place a value that each process has. Between processes device_put would compare them, and has failed."""
    if sharding.is_fully_addressable:
        return jax.device_put(leaf, sharding)
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        data = own(np.asarray(jax.random.key_data(leaf)), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    return own(np.asarray(leaf), sharding)


def _on(leaf: Any, mesh: Mesh) -> bool:
    return isinstance(leaf, jax.Array) and isinstance(leaf.sharding, NamedSharding) and leaf.sharding.mesh == mesh
