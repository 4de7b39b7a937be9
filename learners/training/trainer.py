"""The trainer: a learner's parameters, inner optimizer and compiled step (paper section 2).

Fragments travel as flat float32 arrays; the model keeps its own dtypes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learners.config import InnerConfig, WarmStart
from learners.training import state_arrays
from learners.training.devices import placement
from learners.training.devices.mesh import layout, put
from learners.training.devices.placement import Placed
from learners.training.precision import precise
from learners.training.state_arrays import LeafPieces, here
from learners.training.step import Aux, Batches, TrainStep, make_step, schedule, step_key, transformation
from learners.training.task import Batch, Params, Task
from learners.training.tree import Flat, ParameterTree, initializer, unsent
from outer.protocol.fragments import Fragment

WARM_UPS = 3  # batches that warming up tries


class InFlight:
    """A step that runs on the devices."""

    def __init__(self, loss: jax.Array, aux: Aux) -> None:
        self._loss, self._aux = loss, aux

    def result(self) -> tuple[float, dict[str, float]]:
        """Wait for the step: its loss, in the task's unit, and its auxiliary values. A loss may be not finite."""
        loss, aux = jax.device_get((self._loss, self._aux))  # together: one wait for the device
        return float(loss), {name: float(value) for name, value in aux.items()}


class Trainer:
    """One learner's parameters and inner optimizer state.

    A step donates them: what has to outlive the next `dispatch` is copied before it, with `copy` or `capture`.
    `prepare` and `host` may run in any thread, everything else in one. Trainers of one process and recipe may share a
    compiled `train_step`, as from `make_step`.
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
        warm_start: WarmStart | None = None,
    ) -> None:
        """`devices`: how many local devices to step on, None for all; `model_parallel`: how many share one model.
        `warm_start`: where local and frozen leaves start from; all others come from the syncer.

        Raises ValueError, naming the tensor or the number, for a layout that the devices do not allow.
        """
        self.fragments = tuple(fragments)
        self._task = task = precise(task, inner)
        self._inner, self._seed, self._warm_start = inner, seed, warm_start
        self.aux: dict[str, float] = {}  # of the last step
        self.generation = 0  # grows with every change of parameters or optimizer state
        self._roomy: bool | None = None  # whether the devices have room for a copy of the state
        self._tree = ParameterTree.of(task)
        self.layout = layout(task, self._tree.tensors, devices, model_parallel)
        self._optimizer = transformation(task, inner)
        self._batches = Batches(self._batch)
        shardings = self.layout and jax.tree.unflatten(self._tree.structure, self.layout.leaves)
        self._initial = initializer(task, shardings)
        self._begin()
        self._train_step = train_step or make_step(task, inner, self._results)

    @property
    def params(self) -> Params:
        """The parameter tree after the last dispatched step."""
        return jax.tree.unflatten(self._tree.structure, self._leaves)

    def _begin(self) -> None:
        """Initial parameters, made shard by shard, and optimizer state; what is sent comes from the syncer later."""
        self._leaves: list[Any] = jax.tree.leaves(self._initial(jax.random.key(self._seed)))
        given = {} if self._warm_start is None else unsent(self._task, self._seed, self._warm_start)
        for name, values in given.items():
            leaf = self._tree.leaf_of[name]
            self._leaves[leaf] = put(values, self.layout.leaves[leaf]) if self.layout else values
        self.reset_optimizer()

    def reset_optimizer(self) -> None:
        """Start the inner optimizer with fresh state."""
        opt_state = self._optimizer.init(self._tree.merged(self.params))
        self._own(self._leaves, self.layout.state(opt_state) if self.layout else opt_state)

    def _own(self, leaves: list[Any], opt_state: Any) -> None:
        """Hold this state, no two leaves of it in the same memory."""
        self.generation += 1
        structure = jax.tree.structure(opt_state)
        owned = placement.distinct([*leaves, *jax.tree.leaves(opt_state)])
        self._leaves, self.opt_state = owned[: len(leaves)], jax.tree.unflatten(structure, owned[len(leaves) :])

    @property
    def _results(self) -> Any:
        """The shardings of a step's results, equal to those of its arguments, so that it compiles only once."""
        if self.layout is None:
            return None
        params = jax.tree.unflatten(self._tree.structure, self.layout.leaves)
        replicated = self.layout.replicated
        return params, jax.tree.map(lambda leaf: leaf.sharding, self.opt_state), replicated, replicated

    # -------------------------------------------------------------- stepping

    def warm_up(self, batch_size: int, compiled: Callable[[], None] | None = None) -> None:
        """Load the data and compile: run one step and begin anew. Call it before anything is loaded.

        On the first batches that can be read: a sample that cannot is met, and set aside, in its own step.
        `compiled` is called between compiling and the step.
        """
        self._first_step(batch_size, compiled).result()
        for index, fragment in enumerate(self.fragments):
            self.copy(index)
            if any(tensor.cut for tensor in fragment.tensors):
                self.load(index, np.zeros(fragment.size, np.float32))
        for leaf in self.state_leaves():
            placement.copied([leaf])
        self._leaves, self.opt_state = [], None  # or there would be two of each
        self._begin()
        del self._initial  # and what the task's init closes over

    def _first_step(self, batch_size: int, compiled: Callable[[], None] | None) -> InFlight:
        for attempt in range(WARM_UPS):
            try:
                given = self.inputs(attempt * batch_size, batch_size, progress=0.0)
                break
            except Exception:
                if attempt == WARM_UPS - 1:
                    raise
        if compiled is not None:
            self._train_step.lower(*given).compile()
            compiled()
        return self._enqueue(given)

    def expect(self, starts: Sequence[int], count: int) -> None:
        """Build the batches of the next steps, `count` samples from each of `starts`, in another thread."""
        self._batches.expect(starts, count)

    def ready(self, start: int, count: int, wait_s: float) -> bool:
        """Wait so long for the batch of the next step; returns whether it is there, or has failed."""
        return self._batches.ready(start, count, wait_s)

    def dispatch(self, start: int, count: int, progress: float) -> InFlight:
        """Enqueue one inner step on samples [start, start + count); parameters and optimizer state are donated to it.

        `progress` in [0, 1] is the run's, for the learning rate. An exception of the task's `batch` is raised here.
        """
        return self._enqueue(self.inputs(start, count, progress))

    def _enqueue(self, given: tuple[Any, ...]) -> InFlight:
        params, opt_state, loss, aux = self._train_step(*given)
        self._leaves, self.opt_state = jax.tree.leaves(params), opt_state
        self.generation += 1
        return InFlight(loss, aux)

    def inputs(self, start: int, count: int, progress: float) -> tuple[Params, Any, Batch, jax.Array, Any]:
        """Return a step's arguments, to be donated: (params, opt_state, batch, key, float32 learning rate)."""
        batch, key = self._batches.take(start, count)
        return self.params, self.opt_state, batch, key, np.float32(schedule(self._inner, progress))

    def step(self, start: int, count: int, progress: float) -> float:
        """`dispatch` a step and wait for it: its loss. `aux` then has the step's auxiliary values."""
        loss, self.aux = self.dispatch(start, count, progress).result()
        return loss

    def _batch(self, start: int, count: int) -> tuple[Batch, jax.Array]:
        """A batch on the devices, and the step's random key."""
        self._check_split(count)
        # Copied: the task may use its memory again while the step runs, and a CPU would share it.
        batch = jax.tree.map(
            lambda leaf: leaf if isinstance(leaf, jax.Array) else np.array(leaf), self._task.batch(start, count)
        )
        if odd := [np.shape(leaf) for leaf in jax.tree.leaves(batch) if np.shape(leaf)[:1] != (count,)]:
            raise ValueError(
                f"batch({start}, {count}) has an array of shape {list(odd[0])}, where the leading axis must be the "
                f"{count} samples; the order of samples has no end: begin anew behind the last one"
            )
        batch = jax.device_put(batch) if self.layout is None else self.layout.split(batch)
        return batch, step_key(self._seed, start)

    def _check_split(self, count: int) -> None:
        parts = self._inner.microbatches
        ways = 1 if self.layout is None else self.layout.mesh.shape["batch"]
        if parts > 1 and count % (parts * ways):
            over = f" over {ways} devices" if ways > 1 else ""
            raise ValueError(
                f"a batch of {count} samples cannot be split into {parts} microbatches{over}; "
                f"use a multiple of {parts * ways}, or another inner.microbatches"
            )

    # -------------------------------------------------------------- fragments

    def copy(self, index: int) -> jax.Array:
        """Copy one fragment, after the last dispatched step, on the devices: float32[n]. Does not wait."""
        tensors = self.fragments[index].tensors
        leaves = [self._leaves[self._tree.leaf_of[tensor.path]] for tensor in tensors]
        return placement.gathered(
            leaves, tuple(each.cut for each in tensors), self.layout.replicated if self.layout else None
        )

    def host(self, flat: jax.Array) -> Flat:
        """Bring a `copy` to the host: read-only float32[n]. Waits for the devices; any thread may call it."""
        return placement.to_host(flat)

    def read(self, index: int) -> Flat:
        """Copy one fragment, after the last dispatched step, to the host: float32[n]."""
        return np.array(self.host(self.copy(index)))

    def prepare(self, index: int, flat: Flat, exact: bool = False) -> Placed:
        """Put one fragment's value, flat float32[n], on the devices, shard by shard. Any thread may call it.

        In the model's dtypes, or as float32 if `exact`, which rebasing computes with.
        """
        dtypes = [np.float32 if exact else self._tree.dtype(tensor) for tensor in self.fragments[index].tensors]
        return placement.placed(self.fragments[index], flat, dtypes, self._shardings(index))

    def swap(self, index: int, placed: Placed) -> None:
        """Set one fragment to what `prepare` returned; the optimizer's moments stay. Use each Placed once.

        Leaves that it has pieces of are donated.
        """
        self.generation += 1
        for tensor, values in zip(self.fragments[index].tensors, placed.leaves, strict=True):
            leaf = self._tree.leaf_of[tensor.path]
            if tensor.cut is None:
                self._leaves[leaf] = values.astype(self._tree.dtype(tensor))
            else:
                sharding = self.layout and self.layout.leaves[leaf]
                self._leaves[leaf] = placement.with_part(self._leaves[leaf], tensor.cut, values, sharding)

    def load(self, index: int, flat: Flat) -> None:
        """Set one fragment to flat float32[n]; the optimizer's moments stay."""
        self.swap(index, self.prepare(index, flat))

    def rounding(self, index: int, flat: Flat) -> Flat | None:
        """Return what rounding to the leaves' dtypes adds to a fragment's flat float32[n]; None if all are float32."""
        return self._tree.rounding(self.fragments[index], flat)

    def adopt(
        self,
        index: int,
        theta: Flat | Placed,
        mode: str,
        anchor: Flat | None = None,
        adopted: Flat | jax.Array | None = None,
    ) -> jax.Array | None:
        """Adopt the syncer's value theta of one fragment, float32[n]; the optimizer's moments stay.

        overwrite: theta (paper section 3). rebase: theta + (local - anchor), where anchor float32[n] is the value that
        was read if this learner took part in the merge, else its base. It is computed on the devices in float32, and
        without progress since the anchor equals overwriting bit for bit. `adopted` float32[n] is what the local value
        grew from before it was rounded to the leaves' dtypes; where a leaf is narrower than float32, that rounding is
        no progress. A Placed theta is exact unless the mode is overwrite.

        Returns the new value before it is rounded, float32[n] on the devices; None if that is theta or has no rounding.
        """
        if not isinstance(theta, Placed):
            theta = self.prepare(index, theta, exact=mode != "overwrite")
        if mode == "overwrite":
            self.swap(index, theta)
            return None
        assert mode == "rebase" and anchor is not None, "rebase needs an anchor"
        narrow = self.narrow(index)
        assert not narrow or adopted is not None, "narrow leaves need what they grew from"
        grown_from = self._everywhere(adopted) if narrow else jnp.zeros(self.fragments[index].size, jnp.float32)
        placing = self.layout.replicated if self.layout else None, self._shardings(index)
        placed, moved = placement.rebased(self._locals(index), theta, self._everywhere(anchor), grown_from, *placing)
        self.swap(index, placed)
        return moved if narrow else None

    def narrow(self, index: int) -> bool:
        """Whether a fragment has leaves narrower than float32."""
        return any(self._tree.dtype(tensor) != np.float32 for tensor in self.fragments[index].tensors)

    def _everywhere(self, flat: Any) -> jax.Array:
        """float32[n] on every device."""
        return flat if isinstance(flat, jax.Array) else placement.own(flat, self.layout and self.layout.replicated)

    def _locals(self, index: int) -> list[jax.Array]:
        """The values of a fragment's tensors: leaves, and copies of pieces."""
        placed = zip(self.fragments[index].tensors, self._shardings(index), strict=True)
        return [placement.part(self._leaves[self._tree.leaf_of[t.path]], t.cut, sharding) for t, sharding in placed]

    def _shardings(self, index: int) -> list[Any]:
        if self.layout is None:
            return [None] * len(self.fragments[index].tensors)
        shardings = [
            (each, self.layout.leaves[self._tree.leaf_of[each.path]]) for each in self.fragments[index].tensors
        ]
        return [placement.of_part(held, each.axis) if each.cut else held for each, held in shardings]

    # -------------------------------------------------------------- the whole state

    def state_leaves(self) -> list[Any]:
        """Every leaf of parameters and inner optimizer state. The next step donates them: see `capture`."""
        return [*self._leaves, *jax.tree.leaves(self.opt_state)]

    def capture(self) -> list[Any]:
        """The `state_leaves` after the last dispatched step, copied: any thread may pack them at any time.

        On the devices if they have room for it beside a step, else on the host, for which it waits.
        """
        if self._roomy is None:  # decided once: afterwards the peak has a copy in it
            self._roomy = placement.has_room(self.state_leaves())
        return placement.copied(self.state_leaves()) if self._roomy else self._on_host()

    def captured_on_host(self) -> list[Any]:
        """Capture as `capture` does, on the host; waits for the devices."""
        return self._on_host()

    def _on_host(self) -> list[Any]:
        return [leaf if isinstance(leaf, LeafPieces) else np.array(leaf) for leaf in map(here, self.state_leaves())]

    def packed(self, leaves: Sequence[Any]) -> state_arrays.Arrays:
        """Pack what `capture` or `captured_on_host` returned, whole, as state_arrays.pack. Any thread may call it."""
        return state_arrays.pack(leaves)

    def restore(self, arrays: state_arrays.Arrays) -> None:
        """Take over a packed state, in which `defect` found nothing, leaf by leaf: there are never two of each."""
        old, structure = self.state_leaves(), jax.tree.structure(self.opt_state)
        count = len(self._leaves)
        self._leaves, self.opt_state = [], None
        for index, array in enumerate(arrays):
            old[index] = state_arrays.restored(array, old[index])
        self._own(old[:count], jax.tree.unflatten(structure, old[count:]))
