"""The checks of `diloco check-task`: whether a task fulfils the interface in learners/training/task.py.

Each check runs the task's own code; an exception becomes that check's finding, with a fix. fingerprint.py compares the
task with a new process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from learners.config import InnerConfig
from learners.conformance.fingerprint import fingerprint
from learners.training import kinds, step, trainer, tree
from learners.training.precision import precise
from learners.training.task import Batch, Task
from outer.config import SyncConfig
from outer.numeric import rules

DISJOINT_SAMPLES = 256  # held-out samples are compared with this many training samples
ROUNDING = 1e-5  # relative to the largest element: NumPy's matrix products depend on the batch size
STEPS = 3
LOSS_TOLERANCE = 1e-4  # relative: compiled programs may round differently
FAR_OFF = 0.05  # relative: a loss in other dtypes, or of parts of a batch

Status = Literal["pass", "warn", "fail", "skip"]


@dataclass(frozen=True)
class Finding:
    """The result of one check. `fix` is empty if nothing has to be done."""

    name: str
    status: Status
    message: str
    fix: str = ""


class CheckFailed(Exception):
    """The task fails a check: (what is wrong, the fix)."""

    def __init__(self, message: str, fix: str, status: Status = "fail") -> None:
        super().__init__(message)
        self.finding: tuple[Status, str, str] = (status, message, fix)


@dataclass(frozen=True)
class Subject:
    """The task to check: how to build it, how it would be trained, and its fingerprint from a new process."""

    build: Callable[[], Task]
    inner: InnerConfig
    batch_size: int
    seed: int
    elsewhere: Callable[[], Mapping[str, Any]]  # fingerprint.elsewhere


@dataclass(frozen=True)
class Check:
    """A check: its name, the fix if the task's own code raises, the checks it needs, and its code."""

    name: str
    fix: str
    needs: tuple[str, ...]
    run: Callable[[Subject, Task], str]


def check(name: str, fix: str, needs: tuple[str, ...] = ()) -> Callable[[Callable[[Subject, Task], str]], Check]:
    """Make a function that returns what it found, or raises CheckFailed, into a Check."""
    return lambda run: Check(name, fix, needs, run)


def finding_of(ask: Callable[[], Any]) -> Any:
    """Call `ask`. A ValueError of our own code, "what is wrong; the fix", becomes a CheckFailed."""
    try:
        return ask()
    except ValueError as error:
        message, separator, fix = str(error).rpartition("; ")
        if not separator:
            raise
        raise CheckFailed(message, fix) from error


def fresh(task: Task, seed: int) -> Any:
    """A task's initial parameters, compiled anew."""
    return jax.jit(lambda key: task.init(key))(jax.random.key(seed))  # a new function, so it is traced again each time


def leading(name: str, batch: Batch, count: int) -> None:
    leaves = jax.tree.leaves(batch)
    if not leaves or not all(hasattr(leaf, "dtype") and hasattr(leaf, "shape") for leaf in leaves):
        raise CheckFailed(
            f"{name} returns {type(batch).__name__} with leaves that are no arrays", "return NumPy arrays"
        )
    if bad := [str(list(leaf.shape)) for leaf in leaves if leaf.shape[:1] != (count,)]:
        raise CheckFailed(
            f"of {count} samples, {name} gives shapes {some(bad)}", "make the sample the leading axis of every array"
        )


def some(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


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
    first = copied(task.batch(count, count))
    batch = task.batch(0, count)
    before = copied(batch)
    task.batch(5 * count, count)
    task.held_out(0, count)
    fix = "compute a sample from its position and the seed: draw with np.random.default_rng((seed, position))"
    if differences(before, batch):
        raise CheckFailed("a batch changes when the next is asked for", "return arrays of its own from each call")
    if differences(first, task.batch(count, count)):
        raise CheckFailed("the same samples differ when they are asked for again, after others", fix)
    if differences(first, subject.build().batch(count, count)):
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
        if differences(whole, parts, ROUNDING):
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
    if form(held_out) != form(task.batch(0, count)):
        raise CheckFailed(
            f"held_out gives {form(held_out)}, batch gives {form(task.batch(0, count))}",
            "return the same tree with the same dtypes and shapes: both go to the same loss",
        )
    if differences(copied(held_out), subject.build().held_out(0, count)):
        raise CheckFailed("a second instance gives other held-out samples", "compute them from position and seed alone")
    if hasattr(task, "held_out_loss"):
        loss: Any = jax.eval_shape(task.held_out_loss, fresh(task, subject.seed), held_out)
        if not (hasattr(loss, "shape") and loss.shape == () and loss.dtype == np.float32):
            raise CheckFailed(f"held_out_loss returns {loss}", "return the mean over the batch as a float32 scalar")
    return "like a batch, and the same every time"


@check("held-out-disjoint", "held_out(start, count) must return what batch returns", ("batch", "held-out"))
def _held_out_disjoint(subject: Subject, task: Task) -> str:
    trained = samples(task.batch(0, DISJOINT_SAMPLES))
    shared = sum(sample in trained for sample in samples(task.held_out(0, DISJOINT_SAMPLES)))
    if shared:
        raise CheckFailed(
            f"{shared} held-out samples are among the first {DISJOINT_SAMPLES} of training",
            "keep files, indices or seeds apart; the held-out loss is no measure otherwise",
            "warn",
        )
    return f"none of them is among the first {DISJOINT_SAMPLES} of training"


# ------------------------------------------------------------------ loss and steps


@check("loss", "loss(params, batch, rng) must return (scalar, dict) under jax.jit", ("init", "batch"))
def _loss(subject: Subject, task: Task) -> str:
    params, batch = fresh(task, subject.seed), task.batch(0, subject.batch_size)
    key = jax.random.key(0)
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
    loss = _first_loss(subject, task, inner.model_copy(update={"microbatches": 1}))
    exact = _first_loss(subject, task, wide)
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


@check("steps", "loss and optimizer must work together in a compiled step", ("precision",))
def _steps(subject: Subject, task: Task) -> str:
    first, losses = _trained(subject, task)
    again, _ = _trained(subject, subject.build())
    if not all(map(np.isfinite, losses)) or not all(np.isfinite(np.asarray(x)).all() for x in jax.tree.leaves(first)):
        raise CheckFailed(
            f"not finite after {STEPS} steps, losses {losses}", "lower inner.lr, or keep inner.clip_norm on"
        )
    merged = kinds.Leaves.of(task).merged
    if not differences(merged(fresh(task, subject.seed)), merged(first)):
        raise CheckFailed(
            "parameters stay as they were", "look at the optimizer: its learning rate, masks and freezing"
        )
    if differing := differences(first, again):
        raise CheckFailed(
            f"the same {STEPS} steps give other parameters in {some(differing)}",
            "use no random numbers but those of the keys that init and loss are given",
        )
    return f"{STEPS} of them repeat to the bit; losses {', '.join(f'{loss:.3f}' for loss in losses)}"


# ------------------------------------------------------------------ how it is merged, and elsewhere


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


# ------------------------------------------------------------------ trees of arrays


def differences(one: Any, other: Any, tolerance: float = 0.0) -> list[str]:
    """Paths of the leaves that differ by more than the tolerance (0: in any bit), or that only one tree has."""
    left, right = _leaves(one), _leaves(other)
    if left.keys() != right.keys():
        return sorted(left.keys() ^ right.keys())
    return [
        name
        for name, leaf in left.items()
        if not (
            _bits(leaf) == _bits(right[name])
            or (tolerance and _near(np.asarray(leaf), np.asarray(right[name]), tolerance))
        )
    ]


def _near(one: NDArray[Any], other: NDArray[Any], tolerance: float) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape or not jnp.issubdtype(one.dtype, jnp.floating):
        return False
    scale = tolerance * float(np.abs(one).max(initial=0.0))
    return bool(np.allclose(one.astype(np.float64), other.astype(np.float64), rtol=0.0, atol=scale))


def _leaves(tree: Any) -> dict[str, Any]:
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in paths}


def _bits(leaf: Any) -> tuple[Any, ...]:
    array = np.asarray(leaf)
    return str(array.dtype), array.shape, array.tobytes()


def copied(batch: Batch) -> Batch:
    """A copy of the batch."""
    return jax.tree.map(lambda leaf: np.array(leaf), batch)


def form(batch: Batch) -> str:
    """The tree, dtypes and shapes of one sample, as text."""
    return str(jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape[1:])}", batch))


def samples(batch: Batch) -> set[bytes]:
    """The bytes of each sample."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(batch)]
    return {b"".join(leaf[index].tobytes() for leaf in leaves) for index in range(len(leaves[0]))}


# ------------------------------------------------------------------ all of them

CHECKS = (
    *(_init, _batch, _batch_repeats, _batch_splits, _tokens, _held_out, _held_out_disjoint),
    *(_loss, _gradients, _precision, _steps, _merge_rules, _fresh_process),
)


def run_checks(subject: Subject, names: Collection[str] = ()) -> Iterator[Finding]:
    """Run all checks, or those named, in order. A check that needs a failed one is skipped."""
    failed: set[str] = set()
    task = subject.build()
    for each in CHECKS:
        if names and each.name not in names:
            continue
        if missing := [need for need in each.needs if need in failed]:
            finding = Finding(each.name, "skip", f"needs {', '.join(missing)}")
        else:
            finding = _run_check(each, subject, task)
        if finding.status in ("fail", "skip"):
            failed.add(each.name)
        yield finding


def _run_check(each: Check, subject: Subject, task: Task) -> Finding:
    try:
        return Finding(each.name, "pass", each.run(subject, task))
    except CheckFailed as failure:
        status, message, fix = failure.finding
        return Finding(each.name, status, message, fix)
    except (Exception, SystemExit) as error:  # raised by the task's own code
        text = " ".join(str(error).split())
        return Finding(each.name, "fail", f"raises {type(error).__name__}: {text[:400]}", each.fix)
