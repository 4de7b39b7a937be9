"""The checks of a task's training: loss, gradients, steps, fragments, merge rules, and another process."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from learners.config import InnerConfig
from learners.conformance import tree_diff as trees
from learners.conformance.check import CheckFailed, Subject, check, finding_of, fresh, some
from learners.conformance.fingerprint import fingerprint
from learners.training import kinds, step, trainer, tree
from learners.training.precision import precise
from learners.training.task import Task
from outer.config import SyncConfig
from outer.numeric import rules

STEPS = 3
LOSS_TOLERANCE = 1e-4  # relative: compiled programs may round differently
FAR_OFF = 0.05  # relative: a loss in other dtypes, or of parts of a batch


# ------------------------------------------------------------------ loss and steps


@check("loss", "loss(params, batch, rng) must return (scalar, dict) under jax.jit", ("init", "batch"))
def _loss(subject: Subject, task: Task) -> str:
    params, batch = fresh(task, subject.seed), task.batch(0, subject.batch_size)
    key = jax.random.key(0)
    before = trees.state(task)
    shapes: Any = jax.eval_shape(task.loss, params, batch, key)
    if not (isinstance(shapes, tuple) and len(shapes) == 2 and isinstance(shapes[1], Mapping)):
        raise CheckFailed(f"loss returns {type(shapes).__name__}", "return (loss, aux), aux a dict, {} for none")
    if not (hasattr(shapes[0], "shape") and shapes[0].shape == () and shapes[0].dtype == jnp.float32):
        raise CheckFailed(f"the loss is {shapes[0]}", "return the mean over the batch as a float32 scalar")
    if not isinstance(unit := getattr(task, "loss_unit", ""), str):
        raise CheckFailed(f"loss_unit is {unit!r}", "make it a string, such as 'nats/token', or leave it out")
    if bad := [repr(name) for name in shapes[1] if not isinstance(name, str)]:
        raise CheckFailed(f"auxiliary values whose names are no strings: {some(bad)}", "name each with a string")
    scalars, _ = kinds.state_of(shapes[1])
    finding_of(lambda: _new_values(task, params, batch))
    if bad := [name for name, value in scalars.items() if not _is_real_scalar(value)]:
        raise CheckFailed(f"auxiliary values that are no real scalars: {some(bad)}", "reduce each to a scalar")
    loss = float(jax.jit(lambda *given: task.loss(*given))(params, batch, key)[0])
    if changed := trees.differing(before, trees.state(task)):
        raise CheckFailed(
            f"loss changes the task itself: {some(changed)}",
            "return what you want to keep as an auxiliary value: under jit an attribute is set once, to a tracer",
        )
    again = float(jax.jit(lambda *given: task.loss(*given))(params, batch, key)[0])
    if not np.isfinite(loss):
        raise CheckFailed(
            f"the first loss is {loss}", "look for log(0), a division by zero, or an overflow at the start"
        )
    if abs(loss - again) > LOSS_TOLERANCE * abs(loss):
        raise CheckFailed(
            f"compiled twice, the same loss is {loss} and {again}",
            "draw random numbers with jax.random from the key that loss is given, not with NumPy's",
        )
    if len(scalars) > step.AUX_MAX:
        names = sorted(scalars)[step.AUX_MAX :]
        raise CheckFailed(f"{len(scalars)} auxiliary values", f"not reported: {some(names)}; return fewer", "warn")
    return f"{loss:.3f} at the start"


@check("gradients", "the loss must be differentiable with respect to every parameter", ("loss",))
def _gradients(subject: Subject, task: Task) -> str:
    params, batch = fresh(task, subject.seed), task.batch(0, subject.batch_size)
    leaves = kinds.Leaves.of(task)
    merged = [tensor.name for tensor in leaves.tensors if tensor.kind == "merged"]
    loss_of = lambda part, *given: task.loss(leaves.joined(params, part), *given)  # noqa: E731
    part = leaves.merged(params)
    gradients = jax.jit(jax.grad(loss_of, has_aux=True))(part, batch, jax.random.key(0))[0]
    named = dict(zip(merged, jax.tree.leaves(gradients), strict=True))
    values = {name: np.asarray(leaf, dtype=np.float32) for name, leaf in named.items()}
    if bad := [name for name, value in values.items() if not np.isfinite(value).all()]:
        raise CheckFailed(
            f"not finite for {some(bad)}",
            "look for sqrt, log, norm or where at a point without a derivative, for example sqrt(0)",
        )
    still = [name for name, value in values.items() if not value.any()]
    if len(still) == len(values):
        raise CheckFailed(
            "all are zero", "the loss does not depend on the parameters: look for stop_gradient, argmax, round"
        )
    if still:
        raise CheckFailed(
            f"all zero for {some(still)}", "take parameters that the loss does not use out of the tree", "warn"
        )
    return f"finite for all {len(values)} tensors"


@check("optimizer", "optimizer(inner) must return an optax.GradientTransformation")
def _optimizer(subject: Subject, task: Task) -> str:
    made = task.optimizer(subject.inner)
    if not isinstance(made, optax.GradientTransformation):
        raise CheckFailed(f"optimizer returns {type(made).__name__}", "return an optax.GradientTransformation")
    return f"takes [inner] with {subject.inner.optimizer}"


@check("precision", "the loss must work in the dtypes and microbatches that [inner] asks for", ("gradients",))
def _precision(subject: Subject, task: Task) -> str:
    inner, count = subject.inner, subject.batch_size
    if count % inner.microbatches:
        raise CheckFailed(
            f"inner.microbatches = {inner.microbatches} does not divide the batch of {count} samples",
            f"give a divisor of {count}, or another batch_size",
        )
    if precise(task, inner) is task and inner.microbatches == 1 and _all_float32(task):
        return "float32 throughout"
    wide = inner.model_copy(update={"parameters": "float32", "compute": "float32", "microbatches": 1})
    loss, exact = (
        _first_loss(subject, task, inner.model_copy(update={"microbatches": 1})),
        _first_loss(subject, task, wide),
    )
    asked = f"parameters in {inner.parameters}, loss in {inner.compute}"
    if not np.isfinite(loss):
        raise CheckFailed(
            f"the first loss is {loss} with {asked}; in float32 it is {exact:.4g}",
            "widen what overflows inside the loss with astype(float32), or leave inner.compute as it is",
        )
    if abs(loss - exact) > FAR_OFF * abs(exact):
        raise CheckFailed(
            f"the first loss is {loss:.4g} with {asked}, and {exact:.4g} in float32",
            "compute sums, norms, softmax and the loss itself in float32",
            "warn",
        )
    if inner.microbatches > 1 and not _is_random(subject, task):
        parts = _first_loss(subject, task, inner)
        if abs(parts - loss) > FAR_OFF * abs(loss):
            raise CheckFailed(
                f"the first loss is {loss:.4g} for a batch, {parts:.4g} as the mean over {inner.microbatches} parts",
                "return the mean over samples: neither a sum nor what depends on the other samples",
                "warn",
            )
    return f"{loss:.4g} with {asked}; {exact:.4g} in float32"


@check("steps", "loss and optimizer must work together in a compiled step", ("precision", "optimizer"))
def _steps(subject: Subject, task: Task) -> str:
    first, losses = _trained(subject, task)
    again, _ = _trained(subject, subject.build())
    if not all(map(np.isfinite, losses)) or not all(np.isfinite(np.asarray(x)).all() for x in jax.tree.leaves(first)):
        raise CheckFailed(
            f"not finite after {STEPS} steps, losses {losses}", "lower inner.lr, or keep inner.clip_norm on"
        )
    merged = kinds.Leaves.of(task).merged
    if not trees.differing(merged(fresh(task, subject.seed)), merged(first)):
        raise CheckFailed(
            "parameters stay as they were", "look at the optimizer: its learning rate, masks and freezing"
        )
    if differing := trees.differing(first, again):
        raise CheckFailed(
            f"the same {STEPS} steps give other parameters in {some(differing)}",
            "use no random numbers but those of the keys that init and loss are given",
        )
    return f"{STEPS} of them repeat to the bit; losses {', '.join(f'{loss:.3f}' for loss in losses)}"


# ------------------------------------------------------------------ how it is merged, and elsewhere


@check("fragments", "the parameters must deal into sync.P fragments", ("init",))
def _fragments(subject: Subject, task: Task) -> str:
    fragments = finding_of(lambda: tree.deal(task, subject.sync))
    sizes = [fragment.size for fragment in fragments]
    largest = max(sizes) / (sum(sizes) / len(sizes))
    if largest > 3.0:
        raise CheckFailed(
            f"P = {len(sizes)}, and the largest fragment is {largest:.1f} times the mean",
            "one tensor outweighs the others: set sync.split, or lower sync.P",
            "warn",
        )
    return f"P = {len(sizes)}, the largest {largest:.1f} times the mean"


@check("merge-rules", "merge_rules must map patterns of tensor paths to merge rules", ("init",))
def _merge_rules(subject: Subject, task: Task) -> str:
    patterns: Mapping[str, str] = getattr(task, "merge_rules", {})
    names = [tensor.name for tensor in tree.tensors_of(task)]
    for pattern, rule in patterns.items():
        try:
            rules.check(rule)
        except ValueError as error:
            raise CheckFailed(f"{pattern!r}: {error}", "outer/numeric/rules.py says what a rule is") from error
        if not any(fnmatchcase(name, pattern) for name in names):
            raise CheckFailed(f"{pattern!r} matches no tensor", f"the tensors are {some(names)}")
    return f"{len(patterns)} patterns, each matches" if patterns else "none: the default rules apply"


@check("fresh-process", "the task must build from the same arguments in every process", ("init", "batch", "loss"))
def _fresh_process(subject: Subject, task: Task) -> str:
    here, there = fingerprint(task, subject.seed, subject.batch_size), subject.elsewhere()
    differing = [name for name in here if name != "loss" and here[name] != there[name]]
    if abs(here["loss"] - there["loss"]) > LOSS_TOLERANCE * abs(here["loss"]):
        differing.append("loss")
    if differing:
        raise CheckFailed(
            f"another process gives another {', '.join(differing)}",
            "look for hash(), the order of a set or of os.listdir, the time, or a generator without a seed",
        )
    return "init, batch, held_out and loss are the same there"


def _trained(subject: Subject, task: Task) -> tuple[Any, list[float]]:
    """The parameters after STEPS steps, and the loss before each step."""
    fragments = tree.deal(task, SyncConfig(P=1))
    learner = trainer.Trainer(task, fragments, subject.inner, subject.seed)
    count = subject.batch_size
    losses = [learner.step(step * count, count, progress=0.5) for step in range(STEPS)]
    return learner.params, losses


def _first_loss(subject: Subject, task: Task, inner: InnerConfig) -> float:
    """The loss of the first batch in the dtypes and microbatches of `inner`."""
    learner = trainer.Trainer(task, tree.deal(task, SyncConfig(P=1)), inner, subject.seed)
    return learner.step(0, subject.batch_size, progress=0.5)


def _all_float32(task: Task) -> bool:
    return all(tensor.dtype == "float32" for tensor in tree.tensors_of(task))


def _is_random(subject: Subject, task: Task) -> bool:
    """Whether the loss depends on its random key."""
    params, batch = fresh(task, subject.seed), task.batch(0, subject.batch_size)
    loss = jax.jit(lambda *given: task.loss(*given)[0])
    return float(loss(params, batch, jax.random.key(0))) != float(loss(params, batch, jax.random.key(1)))


def _new_values(task: Task, params: Any, batch: Any) -> None:
    """Check the loss's new values of mean and local leaves by their shapes. Raises ValueError, CheckFailed."""
    leaves = kinds.Leaves.of(task)
    _, state = kinds.state_of(jax.eval_shape(task.loss, params, batch, jax.random.key(0))[1])
    leaves.updated(params, state)
    if still := [each.name for each in leaves.tensors if each.kind in kinds.WRITTEN and each.name not in state]:
        raise CheckFailed(
            f"aux[{kinds.STATE!r}] has no value for {some(still)}",
            "return a new value for every leaf of the kind mean or local, or make its kind frozen",
        )


def _is_real_scalar(value: Any) -> bool:
    return getattr(value, "shape", None) == () and not jnp.issubdtype(value.dtype, jnp.complexfloating)


CHECKS = (_loss, _gradients, _precision, _optimizer, _steps, _fragments, _merge_rules, _fresh_process)
