"""The trainer: a learner's parameters, inner optimizer and compiled step (paper section 2).

Fragments are read and written as flat float32 arrays on the host; the model keeps its own dtypes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learners.config import InnerConfig, WarmStart
from learners.training.mesh import layout
from learners.training.step import Aux, TrainStep, make_step, schedule, step_key, transformation
from learners.training.task import Params, Task
from learners.training.tree import Flat, ParameterTree, fresh, unsent
from outer.protocol.fragments import Fragment


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
        warm_start: WarmStart | None = None,
    ) -> None:
        """`devices`: how many local devices to step on, None for all; `model_parallel`: how many share one model.
        `warm_start`: where local and frozen leaves start from; all others come from the syncer.

        Raises ValueError, naming the tensor or the number, for a layout that the devices do not allow.
        """
        self.fragments = tuple(fragments)
        self._task, self._inner, self._seed = task, inner, seed
        self.aux: dict[str, float] = {}  # of the last step
        self._tree = ParameterTree.of(task)
        self.layout = layout(task, self._tree.tensors, devices, model_parallel)
        self._optimizer = transformation(task, inner)
        self._leaves: list[Any] = self._placed(jax.tree.leaves(fresh(task, seed)))
        if warm_start is not None:
            given = unsent(task, seed, warm_start)
            named = zip(self._tree.tensors, self._leaves, strict=True)
            self._leaves = self._placed([given.get(tensor.name, leaf) for tensor, leaf in named])
        self.reset_optimizer()
        self._train_step = train_step or make_step(task, inner, self._results)

    @property
    def params(self) -> Params:
        """The parameter tree as of the last completed step."""
        return jax.tree.unflatten(self._tree.structure, self._leaves)

    def reset_optimizer(self) -> None:
        """Start the inner optimizer with fresh state."""
        opt_state = self._optimizer.init(self._tree.merged(self.params))
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

    def rounding(self, index: int, flat: Flat) -> Flat | None:
        """What rounding to the leaves' dtypes adds to a fragment's flat float32[n]; None if all are float32."""
        return self._tree.rounding(self.fragments[index], flat)

    def adopt(
        self,
        index: int,
        theta: Flat,
        mode: str,
        anchor: Flat | None = None,
        alpha: float = 0.0,
        offset: Flat | None = None,
    ) -> Flat:
        """Adopt the syncer's value theta float32[n] of one fragment; the optimizer's moments stay.

        overwrite: theta (paper section 3). rebase: local + theta - anchor, where anchor float32[n] is the value that
        was read if this learner took part in the merge, else its base. mix: (1 - alpha) theta + alpha local. Computed
        in float64, so rebasing without progress since the anchor, and mixing with alpha 0, equal overwriting bit for
        bit. `offset` float32[n] is what rounding added to the local value when it was adopted, and no progress.

        Returns the new value before it is rounded to the leaves' dtypes, float32[n].
        """
        if mode == "overwrite":
            self.load(index, theta)
            return theta
        held = self.read(index) if offset is None else self.read(index) - offset
        new, local = theta.astype(np.float64), held.astype(np.float64)
        if mode == "rebase":
            assert anchor is not None, "rebase needs an anchor"
            moved = local - anchor.astype(np.float64) + new
        else:
            assert mode == "mix", mode
            moved = (1.0 - alpha) * new + alpha * local
        adopted = moved.astype(np.float32)
        self.load(index, adopted)
        return adopted

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
