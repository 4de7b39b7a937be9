"""The trainer: a learner's parameters, inner optimizer and compiled step (paper section 2).

Fragments are read and written as flat float32 arrays on the host; the model keeps its own dtypes. The evaluator, sizes
from shapes, and sampling from trained parameters are here too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from learners.config import InnerConfig, WarmStart
from learners.training import weights
from learners.training.mesh import layout
from learners.training.task import Batch, Params, Task
from outer.config import SyncConfig
from outer.protocol.fragments import Fragment, Tensor, balanced, default_count

Flat = NDArray[np.float32]
Aux = dict[str, jax.Array]  # scalars
TrainStep = Callable[[Params, Any, Batch, jax.Array, jax.Array], tuple[Params, Any, jax.Array, Aux]]
AUX_MAX = 16  # auxiliary values of a step that are reported
AUX_LEFT_OUT = "not reported"  # under this name: how many there are beyond


# ------------------------------------------------------------------ the model as fragments


def tensors_of(task: Task) -> tuple[Tensor, ...]:
    """Every leaf of the task's parameters in tree order, named by its path, such as "blocks/0/mlp/up".

    Uses shapes alone. Raises ValueError for a leaf that is not floating-point.
    """
    return _Tree.of(task).tensors


def deal(task: Task, sync: SyncConfig) -> tuple[Fragment, ...]:
    """Deal the task's tensors into P fragments. Raises ValueError if P exceeds the number of tensors."""
    tensors = tensors_of(task)
    count = sync.fragments or default_count(len(tensors), sync.round_steps)
    if count > len(tensors):
        raise ValueError(
            f"sync.P = {count}: the model has {len(tensors)} tensors, and a fragment needs at least one; "
            f"the largest P is {len(tensors)}"
        )
    return balanced(tensors, count)


def initial_parameters(
    task: Task, fragments: Sequence[Fragment], seed: int, warm_start: WarmStart | None = None
) -> list[Flat]:
    """The parameters that a run starts from, float32[n] per fragment: fresh, or those of `warm_start`.

    Every process with the same seed and package versions gets the same bits. Raises ValueError if the warm-start file
    changed since the run began.
    """
    if warm_start is not None:
        return weights.start(warm_start, fragments)
    tree = _Tree.of(task)
    leaves = jax.tree.leaves(_initial(task, seed))
    return [tree.read(leaves, fragment) for fragment in fragments]


def parameters(task: Task, named: weights.Named) -> Params:
    """Build the task's parameter tree from float32 tensors by name. Raises ValueError, naming each misfit."""
    tree = _Tree.of(task)
    if found := weights.differences(named, tree.tensors):
        raise ValueError(f"these parameters do not fit the task: {', '.join(found)}; give parameters of the same model")
    leaves = [jnp.array(named[tensor.name], dtype=tensor.dtype) for tensor in tree.tensors]
    return jax.tree.unflatten(tree.structure, leaves)


def _initial(task: Task, seed: int) -> Params:
    return jax.jit(task.init)(jax.random.key(seed))


@dataclass(frozen=True)
class _Tree:
    """Maps the tensors of fragments to the leaves of the parameter tree."""

    structure: Any  # the pytree without its leaves
    tensors: tuple[Tensor, ...]  # one per leaf
    leaf_of: dict[str, int]  # tensor name -> leaf

    @staticmethod
    def of(task: Task) -> _Tree:
        shapes = jax.eval_shape(task.init, jax.random.key(0))
        paths, structure = jax.tree_util.tree_flatten_with_path(shapes)
        tensors = []
        for path, leaf in paths:
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            if not jnp.issubdtype(leaf.dtype, jnp.floating):
                raise ValueError(
                    f"parameter {name!r} is {leaf.dtype}, and only floating-point tensors can be averaged; "
                    "keep what is not trained out of the parameters"
                )
            tensors.append(Tensor(name, tuple(leaf.shape), str(leaf.dtype)))
        return _Tree(structure, tuple(tensors), {tensor.name: i for i, tensor in enumerate(tensors)})

    def read(self, leaves: Sequence[Any], fragment: Fragment) -> Flat:
        """Copy the fragment's tensors from the leaves to the host: float32[n]."""
        flat = np.empty(fragment.size, dtype=np.float32)
        for tensor, elements in fragment.slices():
            flat[elements] = np.asarray(leaves[self.leaf_of[tensor.name]]).reshape(-1)
        return flat

    def written(self, leaves: Sequence[Any], fragment: Fragment, flat: Flat) -> list[Any]:
        """The leaves, with the fragment's tensors replaced by flat float32[n]."""
        assert flat.shape == (fragment.size,)
        changed = list(leaves)
        for tensor, elements in fragment.slices():
            # jnp.array copies; on a CPU, device_put would share the caller's memory.
            values = jnp.array(flat[elements].reshape(tensor.shape), dtype=tensor.dtype)
            changed[self.leaf_of[tensor.name]] = values
        return changed


# ------------------------------------------------------------------ the step


def schedule(inner: InnerConfig, progress: float) -> float:
    """The learning rate at `progress` in [0, 1], as a share of its peak, in (0, 1].

    Progress is the run's, from the syncer, so a learner that joins late has the same rate as the others.
    """
    if progress < inner.warmup:
        # From a tenth: at zero the first steps would only fill the optimizer's averages.
        return 0.1 + 0.9 * progress / inner.warmup
    done = min(1.0, (progress - inner.warmup) / (1.0 - inner.warmup))
    shapes = {"cosine": 0.5 * (1.0 + math.cos(math.pi * done)), "linear": 1.0 - done, "constant": 1.0}
    return inner.final + (1.0 - inner.final) * shapes[inner.schedule]


def transformation(task: Task, inner: InnerConfig) -> optax.GradientTransformation:
    """The task's inner optimizer, preceded by gradient clipping."""
    if inner.clip_norm == 0.0:
        return task.optimizer(inner)
    return optax.chain(optax.clip_by_global_norm(inner.clip_norm), task.optimizer(inner))


def make_step(task: Task, inner: InnerConfig, placed: Any = None) -> TrainStep:
    """One inner step, compiled: (params, opt_state, batch, rng, scale) -> (params, opt_state, loss, aux).

    `scale`, float32 scalar, multiplies the optimizer's updates (see `schedule`). Nothing is donated: the
    parameters before a step stay whole, so that a fragment can be read while the next step runs. `placed`: the
    shardings that the results are to have, on several devices. `aux`: see `reported`.
    """
    optimizer = transformation(task, inner)

    def step(
        params: Params, opt_state: Any, batch: Batch, rng: jax.Array, scale: jax.Array
    ) -> tuple[Params, Any, jax.Array, Aux]:
        (loss, aux), gradients = jax.value_and_grad(task.loss, has_aux=True)(params, batch, rng)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        updates = jax.tree.map(lambda update: update * scale.astype(update.dtype), updates)
        return optax.apply_updates(params, updates), opt_state, loss, reported(aux)

    return jax.jit(step) if placed is None else jax.jit(step, out_shardings=placed)


def reported(aux: Any) -> Aux:
    """The auxiliary values of a task's loss: its scalars, the first AUX_MAX by name, as float32 scalars."""
    named = aux if isinstance(aux, Mapping) else {}
    scalars = {str(name): value for name, value in named.items() if jnp.shape(value) == () and jnp.isrealobj(value)}
    shown = {name: jnp.asarray(scalars[name], jnp.float32) for name in sorted(scalars)[:AUX_MAX]}
    if left_out := len(named) - len(shown):
        shown[AUX_LEFT_OUT] = jnp.float32(left_out)
    return shown


def step_key(seed: int, start: int) -> jax.Array:
    """The random key of the step that begins at sample `start`. Samples belong to one learner, so keys differ."""
    high, low = divmod(start, 1 << 32)
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), high), low)


class Trainer:
    """One learner's parameters and inner optimizer state.

    `step`, `load` and `adopt` belong to one thread; `read` may run in another and sees one completed step.
    Trainers of one process and recipe may share a compiled `train_step`, as from `make_step`.
    """

    def __init__(
        self,
        task: Task,
        fragments: Sequence[Fragment],
        inner: InnerConfig,
        seed: int,
        train_step: TrainStep | None = None,
        devices: int | None = 1,
        model_parallel: int = 1,
    ) -> None:
        """`devices`: how many local devices to step on, None for all; `model_parallel`: how many share one model.

        Raises ValueError, naming the tensor or the number, for a layout that the devices do not allow.
        """
        self.fragments = tuple(fragments)
        self._task, self._inner, self._seed = task, inner, seed
        self.aux: dict[str, float] = {}  # of the last step
        self._tree = _Tree.of(task)
        self.layout = layout(task, self._tree.tensors, devices, model_parallel)
        self._optimizer = transformation(task, inner)
        self._leaves: list[Any] = self._placed(jax.tree.leaves(_initial(task, seed)))
        self.reset_optimizer()
        self._train_step = train_step or make_step(task, inner, self._results)

    @property
    def params(self) -> Params:
        """The parameter tree as of the last completed step."""
        return jax.tree.unflatten(self._tree.structure, self._leaves)

    def reset_optimizer(self) -> None:
        """Start the inner optimizer with fresh state."""
        opt_state = self._optimizer.init(self.params)
        self.opt_state = self.layout.state(opt_state) if self.layout else opt_state

    def _placed(self, leaves: list[Any]) -> list[Any]:
        """Place parameters by the layout; on one device, leave them as they are."""
        return leaves if self.layout is None else list(map(jax.device_put, leaves, self.layout.leaves))

    @property
    def _results(self) -> Any:
        """The shardings of a step's results, equal to those of its arguments, so that it compiles only once."""
        if self.layout is None:
            return None
        params = jax.tree.unflatten(self._tree.structure, self.layout.leaves)
        replicated = self.layout.replicated
        return params, jax.tree.map(lambda leaf: leaf.sharding, self.opt_state), replicated, replicated

    def warm_up(self, batch_size: int) -> None:
        """Load the data and compile the step: run one and discard its result."""
        self._run(0, batch_size, progress=0.0)

    def step(self, start: int, count: int, progress: float) -> float:
        """One inner step on samples [start, start + count); returns the loss before it, in the task's unit.

        `progress` in [0, 1] is the run's, for the learning rate. Returns when the step has finished. A loss that
        is not finite is returned like any other. `aux` then has the step's auxiliary values.
        """
        params, self.opt_state, *results = self._run(start, count, progress)
        self._leaves = jax.tree.leaves(params)
        loss, aux = jax.device_get(results)  # together: one wait for the device
        self.aux = {name: float(value) for name, value in aux.items()}
        return float(loss)

    def _run(self, start: int, count: int, progress: float) -> tuple[Params, Any, jax.Array, Aux]:
        scale = jnp.float32(schedule(self._inner, progress))
        batch = self._task.batch(start, count)
        if self.layout is not None:
            batch = self.layout.split(batch)
        result = self._train_step(self.params, self.opt_state, batch, step_key(self._seed, start), scale)
        result[2].block_until_ready()  # one program: the other results are finished with the loss
        return result

    def read(self, index: int) -> Flat:
        """Copy one fragment, as of the last completed step, to the host: float32[n]."""
        return self._tree.read(self._leaves, self.fragments[index])

    def load(self, index: int, flat: Flat) -> None:
        """Set one fragment to flat float32[n]; the optimizer's moments stay."""
        self._leaves = self._placed(self._tree.written(self._leaves, self.fragments[index], flat))

    def adopt(self, index: int, theta: Flat, mode: str, anchor: Flat | None = None, alpha: float = 0.0) -> None:
        """Adopt the syncer's value theta float32[n] of one fragment; the optimizer's moments stay.

        overwrite: theta (paper section 3). rebase: local + theta - anchor, where anchor float32[n] is the value that
        was read if this learner took part in the merge, else its base. mix: (1 - alpha) theta + alpha local. Computed
        in float64, so rebasing without progress since the anchor, and mixing with alpha 0, equal overwriting bit for
        bit.
        """
        if mode == "overwrite":
            return self.load(index, theta)
        new, local = theta.astype(np.float64), self.read(index).astype(np.float64)
        if mode == "rebase":
            assert anchor is not None, "rebase needs an anchor"
            moved = local - anchor.astype(np.float64) + new
        else:
            assert mode == "mix", mode
            moved = (1.0 - alpha) * new + alpha * local
        self.load(index, moved.astype(np.float32))
        return None

    def state_leaves(self) -> list[Any]:
        """Every leaf of parameters and inner optimizer state as of the last completed step; copies nothing.

        JAX arrays never change, so another thread may pack them while the next step runs.
        """
        return [*self._leaves, *jax.tree.leaves(self.opt_state)]

    def inherit(self, leaves: Sequence[Any]) -> None:
        """Take over the `state_leaves` of another trainer of the same task."""
        count, structure = len(self._leaves), jax.tree.structure(self.opt_state)
        self._leaves = self._placed(list(leaves[:count]))
        state = jax.tree.unflatten(structure, leaves[count:])
        self.opt_state = self.layout.state(state) if self.layout else state


class Evaluator:
    """Computes the held-out loss of the global parameters."""

    def __init__(self, task: Task, fragments: Sequence[Fragment], sequences: int, batch_size: int = 32) -> None:
        self.fragments = tuple(fragments)
        self._task, self._sequences, self._batch_size = task, sequences, batch_size
        self._tree = _Tree.of(task)
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


# ------------------------------------------------------------------ sizes, from shapes alone


def parameter_bytes(task: Task) -> int:
    """Bytes of one copy of the parameters, in the model's own dtypes."""
    return _bytes(_parameter_shapes(task))


def inner_state_bytes(task: Task, inner: InnerConfig) -> int:
    """Bytes of the inner optimizer's state, including gradient clipping."""
    return _bytes(jax.eval_shape(transformation(task, inner).init, _parameter_shapes(task)))


def _parameter_shapes(task: Task) -> Any:
    return jax.eval_shape(task.init, jax.random.key(0))


def _bytes(shapes: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


# ------------------------------------------------------------------ sampling


def sample(
    task: Any, named: weights.Named, prompt: bytes, length: int, temperature: float, top_k: int, seed: int
) -> bytes:
    """Let the task continue a prompt by `length` bytes. Raises ValueError if the parameters do not fit the task."""
    params = parameters(task, named)
    text: bytes = task.sample(params, prompt, length, temperature, top_k, jax.random.key(seed))
    return text
