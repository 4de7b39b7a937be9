"""The checks of a task's parameters and samples: they repeat, and a sample depends on its position only."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from learners.conformance import tree_diff as trees
from learners.conformance.check import CheckFailed, Subject, check, finding_of, fresh, leading, some
from learners.training import tree
from learners.training.task import Task

DISJOINT_SAMPLES = 256  # held-out samples are compared with this many training samples
ROUNDING = 1e-5  # relative to the largest element: NumPy's matrix products depend on the batch size


# ------------------------------------------------------------------ parameters


@check("init", "init(rng) must return a pytree of floating-point arrays and be traceable by jax.jit")
def _init(subject: Subject, task: Task) -> str:
    tensors = finding_of(lambda: tree.tensors_of(task))
    if not tensors:
        raise CheckFailed("init returns no array at all", "return a pytree with at least one floating-point array")
    params = fresh(task, subject.seed)
    for tensor, leaf in zip(tensors, jax.tree.leaves(params), strict=True):
        if not np.isfinite(np.asarray(leaf, dtype=np.float32)).all():
            raise CheckFailed(f"init gives {tensor.name} elements that are not finite", "look for a division by zero")
    return f"{len(tensors)} tensors, {sum(tensor.size for tensor in tensors):,} elements"


@check("init-repeats", "init must use the key it is given, and nothing else that changes", ("init",))
def _init_repeats(subject: Subject, task: Task) -> str:
    first, again = fresh(task, subject.seed), fresh(subject.build(), subject.seed)
    if differing := trees.differing(first, again):
        raise CheckFailed(
            f"two calls with the same key differ in {some(differing)}",
            "draw every random number with jax.random from the key: learners and syncer must begin alike",
        )
    if not trees.differing(first, fresh(task, subject.seed + 1)):
        raise CheckFailed(
            "another key gives the same parameters",
            "draw the initial parameters from the key, unless they are constant on purpose",
            "warn",
        )
    return "equal to the bit for the same key, others for another"


# ------------------------------------------------------------------ data


@check("batch", "batch(start, count) must return a pytree of arrays whose leading axis is the sample")
def _batch(subject: Subject, task: Task) -> str:
    batch = task.batch(0, subject.batch_size)
    leading("batch", batch, subject.batch_size)
    leading("batch", task.batch(subject.batch_size, 1), 1)
    far = 10**9
    leading(f"batch({far}, 1)", task.batch(far, 1), 1)  # the order never ends
    shapes = [f"{leaf.dtype}{list(leaf.shape)}" for leaf in jax.tree.leaves(batch)]
    return f"{subject.batch_size} samples are {some(shapes)}"


@check("batch-repeats", "samples must follow from the factory's arguments and their position alone", ("batch",))
def _batch_repeats(subject: Subject, task: Task) -> str:
    count = subject.batch_size
    first = trees.copied(task.batch(count, count))
    batch = task.batch(0, count)
    before = trees.copied(batch)
    task.batch(5 * count, count)
    task.held_out(0, count)
    fix = "compute a sample from its position and the seed: draw with np.random.default_rng((seed, position))"
    if trees.differing(before, batch):
        raise CheckFailed("a batch changes when the next is asked for", "return arrays of its own from each call")
    if trees.differing(first, task.batch(count, count)):
        raise CheckFailed("the same samples differ when they are asked for again, after others", fix)
    if trees.differing(first, subject.build().batch(count, count)):
        raise CheckFailed("a second instance with the same arguments gives other samples", fix)
    return "the same in any order of calls and in a second instance"


@check("batch-splits", "batch(a, n + m) must be batch(a, n) followed by batch(a + n, m)", ("batch",))
def _batch_splits(subject: Subject, task: Task) -> str:
    count = subject.batch_size
    for start, left, right in ((0, count, count), (3, 1, 2), (7 * count + 1, 2, 1)):
        whole = task.batch(start, left + right)
        parts = jax.tree.map(
            lambda a, b: np.concatenate([a, b]), task.batch(start, left), task.batch(start + left, right)
        )
        if trees.differing(whole, parts, ROUNDING):
            raise CheckFailed(
                f"batch({start}, {left + right}) is not batch({start}, {left}) followed by "
                f"batch({start + left}, {right})",
                "make each sample a function of its own position: learners of other batch sizes, and restarted "
                "ones, take up where others stopped",
            )
    return "samples do not depend on how they are batched"


@check("tokens", "tokens(count) must return a whole number above 0")
def _tokens(subject: Subject, task: Task) -> str:
    one, many = task.tokens(1), task.tokens(subject.batch_size)
    if not all(isinstance(number, int) and number > 0 for number in (one, many)):
        raise CheckFailed(f"tokens(1) is {one!r}", "return a whole number above 0: weights and budgets are made of it")
    if many + one != task.tokens(subject.batch_size + 1):
        raise CheckFailed("tokens(n + 1) is not tokens(n) + tokens(1)", "count the same for every sample")
    return f"{one} in a sample"


@check("held-out", "held_out(start, count) must return what batch returns", ("init", "batch"))
def _held_out(subject: Subject, task: Task) -> str:
    count = subject.batch_size
    held_out = task.held_out(0, count)
    leading("held_out", held_out, count)
    if trees.kind(held_out) != trees.kind(task.batch(0, count)):
        raise CheckFailed(
            f"held_out gives {trees.kind(held_out)}, batch gives {trees.kind(task.batch(0, count))}",
            "return the same tree with the same dtypes and shapes: both go to the same loss",
        )
    if trees.differing(trees.copied(held_out), subject.build().held_out(0, count)):
        raise CheckFailed("a second instance gives other held-out samples", "compute them from position and seed alone")
    if hasattr(task, "held_out_loss"):
        loss: Any = jax.eval_shape(task.held_out_loss, fresh(task, subject.seed), held_out)
        if not (hasattr(loss, "shape") and loss.shape == () and loss.dtype == np.float32):
            raise CheckFailed(f"held_out_loss returns {loss}", "return the mean over the batch as a float32 scalar")
    return "like a batch, and the same every time"


@check("held-out-disjoint", "held_out(start, count) must return what batch returns", ("batch", "held-out"))
def _held_out_disjoint(subject: Subject, task: Task) -> str:
    trained = trees.samples(task.batch(0, DISJOINT_SAMPLES))
    shared = sum(sample in trained for sample in trees.samples(task.held_out(0, DISJOINT_SAMPLES)))
    if shared:
        raise CheckFailed(
            f"{shared} held-out samples are among the first {DISJOINT_SAMPLES} of training",
            "keep files, indices or seeds apart; the held-out loss is no measure otherwise",
            "warn",
        )
    return f"none of them is among the first {DISJOINT_SAMPLES} of training"


CHECKS = (_init, _init_repeats, _batch, _batch_repeats, _batch_splits, _tokens, _held_out, _held_out_disjoint)
