"""The model's parameters as fragments: tensors by name, their order, and their initial values.

Fragments are flat float32 arrays on the host; the model keeps its own dtypes. Sizes from shapes are here too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from learners.config import InnerConfig, WarmStart
from learners.training import weights
from learners.training.kinds import Leaves, check_paths
from learners.training.precision import loss_dtype, precise
from learners.training.step import transformation
from learners.training.task import Params, Task
from outer.config import SyncConfig
from outer.protocol.fragments import (
    FRAGMENTATIONS,
    KINDS,
    Fragment,
    Tensor,
    default_count,
    in_pieces,
    most_fragments,
)

Flat = NDArray[np.float32]


def tensors_of(task: Task) -> tuple[Tensor, ...]:
    """Every leaf of the task's parameters in tree order, named by its path, such as "blocks/0/mlp/up".

    Uses shapes alone. Raises ValueError as Leaves.of.
    """
    return Leaves.of(task).tensors


def left_out(task: Task) -> dict[str, str]:
    """The local and frozen leaves, which are in no fragment, as Tensor.described by path."""
    return {tensor.name: tensor.described for tensor in tensors_of(task) if not tensor.sent}


def deal(task: Task, sync: SyncConfig) -> tuple[Fragment, ...]:
    """Deal the merged and mean tensors of a task into P fragments as `sync.fragmentation` says.

    With `sync.split` large tensors are in pieces.

    Raises ValueError if P exceeds their number, or if mean tensors would arrive otherwise than the learners have them.
    """
    tensors = tuple(tensor for tensor in tensors_of(task) if tensor.sent)
    exact = sync.codec in ("fp32", "fp32_delta", "bf16") and not (sync.decay or sync.base_window)
    if not exact and (statistic := next((each.name for each in tensors if each.kind == "mean"), None)):
        raise ValueError(
            f"{statistic} is of the kind mean, and a variance could become negative: set sync.codec to fp32 or bf16, "
            "and leave out sync.error_feedback and sync.base_window"
        )
    whole = most_fragments(tensors, sync.fragmentation)
    count = sync.fragments or default_count(whole, sync.round_steps)
    tensors = in_pieces(tensors, count) if sync.split else tensors
    check_paths([tensor.name for tensor in tensors])
    if count > (most := most_fragments(tensors, sync.fragmentation)):
        units = "layers, counting what is outside them as one" if sync.fragmentation == "layer" else "tensors"
        pieces = f", {most} with pieces of large ones" if most > whole else ""
        raise ValueError(
            f"sync.P = {count}: the model has {whole} {units}{pieces}, and a fragment needs at least one; "
            f"the largest P is {most}"
        )
    return FRAGMENTATIONS[sync.fragmentation](tensors, count)


def initial_parameters(
    task: Task, fragments: Sequence[Fragment], seed: int, warm_start: WarmStart | None = None
) -> list[Flat]:
    """The parameters that a run starts from, float32[n] per fragment: fresh, or those of `warm_start`.

    Every process with the same seed and package versions gets the same bits. Raises ValueError if the warm-start file
    changed since the run began.
    """
    if warm_start is not None:
        return weights.dealt(weights.unchanged(warm_start), fragments)
    tree = ParameterTree.of(task)
    leaves = jax.tree.leaves(initializer(task)(jax.random.key(seed)))
    return [tree.read(leaves, fragment) for fragment in fragments]


def unsent(task: Task, seed: int, warm_start: WarmStart | None = None) -> dict[str, jax.Array]:
    """Initial values of the local and frozen leaves, by path: those of `warm_start` where it has them, else fresh.

    Whole numbers are always fresh. Raises ValueError if the warm-start file changed since the run began.
    """
    wanted = {index: tensor for index, tensor in enumerate(tensors_of(task)) if not tensor.sent}
    if not wanted:
        return {}
    given = {} if warm_start is None else weights.unchanged(warm_start)
    pick = jax.jit(
        lambda key: {tensor.name: jax.tree.leaves(task.init(key))[index] for index, tensor in wanted.items()}
    )
    whole = {tensor.name for tensor in wanted.values() if not jnp.issubdtype(tensor.dtype, jnp.floating)}
    return {
        name: jnp.array(given[name], value.dtype) if name in given.keys() - whole else value
        for name, value in pick(jax.random.key(seed)).items()
    }


def initializer(task: Task, shardings: Any = None) -> Callable[[jax.Array], Params]:
    """Makes a task's initial parameters, the same bits whatever the shardings: a tree of them, None for one device."""
    return jax.jit(task.init) if shardings is None else jax.jit(task.init, out_shardings=shardings)


@dataclass(frozen=True)
class ParameterTree(Leaves):
    """Maps the tensors of fragments to the leaves of the parameter tree."""

    leaf_of: dict[str, int]  # path -> leaf

    @staticmethod
    def of(task: Task) -> ParameterTree:
        leaves = Leaves.of(task)
        leaf_of = {tensor.name: index for index, tensor in enumerate(leaves.tensors)}
        return ParameterTree(leaves.structure, leaves.tensors, leaf_of)

    def read(self, leaves: Sequence[Any], fragment: Fragment) -> Flat:
        """Copy the fragment's tensors from the leaves to the host: float32[n]."""
        flat = np.empty(fragment.size, dtype=np.float32)
        for tensor, elements in fragment.slices():
            flat[elements] = np.asarray(leaves[self.leaf_of[tensor.path]])[tensor.index].reshape(-1)
        return flat

    def params(
        self,
        fragments: Sequence[Fragment],
        thetas: Sequence[Flat],
        unsent: Mapping[str, Any],
        shardings: Sequence[Any] | None = None,
    ) -> Params:
        """The parameter tree of float32[n] per fragment and of the leaves that are in none, by path; JAX arrays."""
        sent = weights.joined(fragments, thetas)
        return self.placed(
            [sent[each.name] if each.name in sent else unsent[each.name] for each in self.tensors], shardings
        )

    def placed(self, values: Sequence[Any], shardings: Sequence[Any] | None) -> Params:
        """The parameter tree of copies of the values of its leaves, in their dtypes.

        `shardings`: of each leaf; None for one device. No device holds more of a leaf than its sharding says.
        """
        if shardings is None:  # jnp.array copies; on a CPU, device_put would share the caller's memory
            leaves = [jnp.array(value, each.dtype) for value, each in zip(values, self.tensors, strict=True)]
        else:
            of = zip(values, self.tensors, shardings, strict=True)
            leaves = [jax.device_put(np.array(value, jnp.dtype(each.dtype)), where) for value, each, where in of]
        return jax.tree.unflatten(self.structure, leaves)

    def rounding(self, fragment: Fragment, flat: Flat) -> Flat | None:
        """Return what rounding to the leaves' dtypes adds to flat float32[n]: float32[n], exact for finite results.

        None if every leaf of the fragment is float32.
        """
        if all(self.dtype(tensor) == np.float32 for tensor in fragment.tensors):
            return None
        added = np.zeros_like(flat)
        with np.errstate(over="ignore", invalid="ignore"):  # too large for float16: not finite, and refused
            for tensor, elements in fragment.slices():
                added[elements] = flat[elements].astype(self.dtype(tensor)).astype(np.float32) - flat[elements]
        return added

    def dtype(self, tensor: Tensor) -> np.dtype[Any]:
        """The dtype of the tensor's leaf; a fragment's tensors may name that of another precision."""
        return jnp.dtype(self.tensors[self.leaf_of[tensor.path]].dtype)


def parameter_bytes(task: Task, inner: InnerConfig, kinds: Collection[str] = KINDS) -> int:
    """Bytes of one copy of the parameters of these kinds, in the dtypes that a learner keeps."""
    kept = (each for each in tensors_of(precise(task, inner)) if each.kind in kinds)
    return sum(each.size * jnp.dtype(each.dtype).itemsize for each in kept)


def compute_bytes(task: Task, inner: InnerConfig) -> int:
    """Bytes of the copy of the parameters that the loss is computed with; 0 if it is computed with the parameters."""
    kept, own = (Leaves.of(each).tensors for each in (precise(task, inner), task))
    dtypes = [loss_dtype(each, inner) for each in own]
    held = zip(kept, dtypes, strict=True)
    return sum(each.size * jnp.dtype(dtype).itemsize for each, dtype in held if each.dtype != dtype)


def summed_bytes(task: Task, inner: InnerConfig) -> int:
    """Bytes of the gradients that are summed over microbatches, float32; 0 without any."""
    return 0 if inner.microbatches == 1 else 4 * sum(each.size for each in tensors_of(task) if each.kind == "merged")


def inner_state_bytes(task: Task, inner: InnerConfig) -> int:
    """Bytes of the inner optimizer's state, including gradient clipping."""
    task = precise(task, inner)
    merged = Leaves.of(task).merged(jax.eval_shape(task.init, jax.random.key(0)))
    state = jax.eval_shape(transformation(task, inner).init, merged)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
