"""Task, the interface to a model. Bring your own by its import path.

Every process that needs the task builds it with its factory, `factory(data: DataConfig, seed: int, **model)`, so the
task must depend on these arguments alone.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax
import optax

from learners.config import DataConfig, InnerConfig

Params = Any  # a pytree of jax.Array
Batch = Any  # a pytree of numpy or jax arrays; the leading axis is the sample


@runtime_checkable
class Task(Protocol):
    """A model with its data, loss and inner optimizer.

    A task may also have
    - `merge_rules`, a mapping of tensor path patterns (fnmatch) to merge rules (outer/numeric/rules.py), which
      overrides the default ones;
    - `kinds`, a mapping of such patterns to the kind of a parameter, "merged" (the default), "mean", "local" or
      "frozen" (learners/training/kinds.py). Only merged and frozen leaves are constant in a step: for each mean and
      local one, the auxiliary values of `loss` have the new value, as aux["state"][path], in its dtype and shape;
    - `held_out_loss(params, batch)`, the loss of held-out samples, float32 scalar, where it is not that of `loss`,
      for example because it uses running statistics in place of the batch's;
    - `sharding(mesh)`, a mapping of such patterns to PartitionSpecs over the axes "batch" and "model", for learners
      with several devices (learners/training/devices/mesh.py); without it, parameters are replicated;
    - `loss_unit`, what its loss is measured in, such as "nats/token"; without it, a loss is shown without a unit.
    """

    def init(self, rng: jax.Array) -> Params:
        """Fresh parameters: a pytree of floating-point arrays; local and frozen ones may be integers."""
        ...

    def loss(self, params: Params, batch: Batch, rng: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        """(mean loss, float32 scalar; auxiliary scalars by name, {} for none). Traced by jax.jit."""
        ...

    def optimizer(self, inner: InnerConfig) -> optax.GradientTransformation:
        """The inner optimizer at its peak learning rate; the trainer scales its updates by the schedule."""
        ...

    def batch(self, start: int, count: int) -> Batch:
        """Samples [start, start + count) of the task's deterministic, endless order.

        Called ahead of the step, in one thread at a time, not always the same. Its arrays are copied at once.
        """
        ...

    def tokens(self, count: int) -> int:
        """Tokens in that many samples."""
        ...

    def held_out(self, start: int, count: int) -> Batch:
        """Samples [start, start + count) for evaluation; disjoint from every training sample."""
        ...


def load(path: str, data: DataConfig, seed: int, model: dict[str, Any]) -> Task:
    """Import `package.module:factory` and build the task.

    Raises ValueError, with what is wrong and the fix, when it does not import, is not callable, refuses the
    [model] keys, or builds something that is not a Task.
    """
    module_name, _, attribute = path.partition(":")
    try:
        factory: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            factory = getattr(factory, part)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"{path!r} does not import: {error}; modules are looked for in {Path.cwd()}, where the command is started, "
            "not beside the recipe: start it where `package.module:factory` imports, or name another"
        ) from error
    if not callable(factory):
        raise ValueError(f"{path!r} is not callable; name a class or a function that builds the task")
    task = factory(data=data, seed=seed, **model)
    if not isinstance(task, Task):
        missing = [
            name for name in ("init", "loss", "optimizer", "batch", "tokens", "held_out") if not hasattr(task, name)
        ]
        raise ValueError(
            f"{path!r} builds a {type(task).__name__} without {', '.join(missing)}; diloco.Task says what each one does"
        )
    return task


def loss_unit(task: Task) -> str:
    """Return the unit of the task's loss; empty where it does not say."""
    return str(getattr(task, "loss_unit", ""))
