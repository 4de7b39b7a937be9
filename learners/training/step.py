"""The inner step as one compiled program: loss, gradients, clipping, optimizer, learning rate (paper section 2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from learners.config import InnerConfig
from learners.training.precision import precise
from learners.training.task import Batch, Params, Task

Aux = dict[str, jax.Array]  # scalars
TrainStep = Callable[[Params, Any, Batch, jax.Array, jax.Array], tuple[Params, Any, jax.Array, Aux]]
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

    `scale`, float32 scalar, multiplies the optimizer's updates (see `schedule`). Nothing is donated: the
    parameters before a step stay whole, so that a fragment can be read while the next step runs. `placed`: the
    shardings that the results are to have, on several devices. `aux`: see `reported`. Dtypes and microbatches are those
    of [inner].
    """
    optimizer = transformation(task, inner)
    gradients_of = _gradients_of(precise(task, inner), inner.microbatches)

    def step(
        params: Params, opt_state: Any, batch: Batch, rng: jax.Array, scale: jax.Array
    ) -> tuple[Params, Any, jax.Array, Aux]:
        (loss, aux), gradients = gradients_of(params, batch, rng)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        updates = jax.tree.map(lambda update: update * scale.astype(update.dtype), updates)
        return optax.apply_updates(params, updates), opt_state, loss, reported(aux)

    return jax.jit(step) if placed is None else jax.jit(step, out_shardings=placed)


def _gradients_of(task: Task, microbatches: int) -> Callable[[Params, Batch, jax.Array], tuple[Any, Params]]:
    """(params, batch, rng) -> ((loss, aux), gradients), over equal microbatches one after the other.

    Loss, reported auxiliaries and gradients are the means over the microbatches, accumulated in float32; gradients come
    in the dtypes of their parameters. Microbatch i of k has samples i, i + k, ..., so that each of several devices
    keeps its own, and the key folded with i.
    """
    whole = jax.value_and_grad(task.loss, has_aux=True)
    if microbatches == 1:
        return whole

    def widened(leaf: Any) -> jax.Array:
        return jnp.asarray(leaf, jnp.promote_types(leaf.dtype, jnp.float32))

    def part(params: Params, batch: Batch, rng: jax.Array) -> Any:
        (loss, aux), gradients = whole(params, batch, rng)
        return jax.tree.map(widened, (loss, reported(aux), gradients))

    def accumulated(params: Params, batch: Batch, rng: jax.Array) -> tuple[Any, Params]:
        def add(total: Any, each: Any) -> tuple[Any, None]:
            index, samples = each
            return jax.tree.map(jnp.add, total, part(params, samples, jax.random.fold_in(rng, index))), None

        parts = jax.tree.map(lambda leaf: _parts(leaf, microbatches), batch)
        shapes = jax.eval_shape(part, params, jax.tree.map(lambda leaf: leaf[0], parts), rng)
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        total, _ = jax.lax.scan(add, zeros, (jnp.arange(microbatches), parts))
        loss, aux, gradients = jax.tree.map(lambda leaf: leaf / microbatches, total)
        return (loss, aux), jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), gradients, params)

    return accumulated


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
