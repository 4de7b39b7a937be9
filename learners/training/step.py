"""The inner step as one compiled program: loss, gradients, clipping, optimizer, learning rate (paper section 2)."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import optax

from learners.config import InnerConfig
from learners.training.devices import cores
from learners.training.kinds import Leaves, state_of
from learners.training.precision import precise
from learners.training.task import Batch, Params, Task

Aux = dict[str, jax.Array]  # scalars
TrainStep = jax.stages.Wrapped  # (params, opt_state, batch, rng, scale) -> (params, opt_state, loss, aux)
AUX_MAX = 16  # auxiliary values of a step that are reported
AUX_LEFT_OUT = "not reported"  # under this name: how many there are beyond


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

    `scale`, float32 scalar, multiplies the optimizer's updates (see `schedule`). Parameters and optimizer state
    are donated: the arrays before a step are gone after it. `placed`: the shardings that the results are to have, on
    several devices. `aux`: see `reported`. Dtypes and microbatches are those of [inner]. Gradients and optimizer see
    merged leaves alone; mean and local ones take the values that the loss returns for them.
    """
    task = precise(task, inner)
    optimizer, leaves = transformation(task, inner), Leaves.of(task)
    gradients_of = _gradients_of(task, leaves, inner.microbatches)

    def step(
        params: Params, opt_state: Any, batch: Batch, rng: jax.Array, scale: jax.Array
    ) -> tuple[Params, Any, jax.Array, Aux]:
        merged = leaves.merged(params)
        (loss, (aux, state)), gradients = gradients_of(merged, params, batch, rng)
        updates, opt_state = optimizer.update(gradients, opt_state, merged)
        updates = jax.tree.map(lambda update: update * scale.astype(update.dtype), updates)
        params = leaves.joined(leaves.updated(params, state), optax.apply_updates(merged, updates))
        return params, opt_state, loss, aux

    donated = ("params", "opt_state")
    if placed is None:
        return jax.jit(step, donate_argnames=donated)
    return jax.jit(step, donate_argnames=donated, out_shardings=placed)


def _gradients_of(task: Task, leaves: Leaves, microbatches: int) -> Callable[[Params, Params, Batch, jax.Array], Any]:
    """(merged leaves, params, batch, rng) -> ((loss, (reported aux, new values of leaves)), gradients).

    Over several microbatches, one after the other, every floating-point result is their mean, accumulated in float32;
    of any other it is the last. Microbatch i of k has samples i, i + k, ..., so that each of several devices keeps its
    own, the parameters from before the step, and the key folded with i.
    """

    def loss_of(merged: Params, params: Params, batch: Batch, rng: jax.Array) -> Any:
        loss, aux = task.loss(leaves.joined(params, merged), batch, rng)
        aux, state = state_of(aux)
        return loss, (reported(aux), state)

    whole = jax.value_and_grad(loss_of, has_aux=True)
    if microbatches == 1:
        return whole

    def accumulated(merged: Params, params: Params, batch: Batch, rng: jax.Array) -> Any:
        def add(total: Any, part: Any) -> tuple[Any, None]:
            index, samples = part
            new = whole(merged, params, samples, jax.random.fold_in(rng, index))
            return jax.tree.map(lambda all, one: all + one if _is_float(one) else one, total, new), None

        parts = jax.tree.map(lambda leaf: _parts(leaf, microbatches), batch)
        results = jax.eval_shape(whole, merged, params, jax.tree.map(lambda leaf: leaf[0], parts), rng)
        total, _ = jax.lax.scan(add, jax.tree.map(_zeros, results), (jnp.arange(microbatches), parts))
        return jax.tree.map(
            lambda all, one: (all / microbatches).astype(one.dtype) if _is_float(one) else all, total, results
        )

    return accumulated


def _is_float(leaf: Any) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jnp.floating))


def _zeros(leaf: Any) -> jax.Array:
    """Return the zero that the sum over microbatches begins with: at least float32."""
    return jnp.zeros(leaf.shape, jnp.promote_types(leaf.dtype, jnp.float32) if _is_float(leaf) else leaf.dtype)


def _parts(leaf: Any, count: int) -> jax.Array:
    """[samples, ...] -> [count, samples / count, ...]; part i has samples i, i + count, ..."""
    return jnp.moveaxis(jnp.reshape(leaf, (leaf.shape[0] // count, count, *leaf.shape[1:])), 1, 0)


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


AHEAD_MAX = 2  # batches that are built, or being built, and not yet taken


class Batches:
    """`build(start, count)` runs in one thread at a time. The methods belong to the training loop."""

    def __init__(self, build: Callable[[int, int], Any]) -> None:
        self._build = build
        self._building = threading.Lock()
        self._thread: ThreadPoolExecutor | None = None  # from the first prediction on
        self._ahead: dict[tuple[int, int], Future[Any]] = {}

    def expect(self, starts: Sequence[int], count: int) -> None:
        """Begin to build the batches of the next steps, in this order; what is no longer expected is dropped."""
        wanted = dict.fromkeys((start, count) for start in starts[:AHEAD_MAX])
        for key in [key for key in self._ahead if key not in wanted]:
            self._ahead.pop(key).cancel()
        for key in wanted:
            if key not in self._ahead:
                if self._thread is None:
                    self._thread = ThreadPoolExecutor(1, "batch", initializer=cores.leave)
                self._ahead[key] = self._thread.submit(self._one, *key)

    def ready(self, start: int, count: int, wait_s: float) -> bool:
        """Begin to build the batch of the next step, and wait so long for it. Returns whether it can be taken."""
        if (start, count) not in self._ahead:
            self.expect([start], count)
        return bool(futures.wait([self._ahead[start, count]], wait_s).done)

    def take(self, start: int, count: int) -> Any:
        """The batch of a step. An exception of `build` is raised here, at the step that needs the batch."""
        ahead = self._ahead.pop((start, count), None)
        return self._one(start, count) if ahead is None else ahead.result()

    def _one(self, start: int, count: int) -> Any:
        with self._building:
            return self._build(start, count)
