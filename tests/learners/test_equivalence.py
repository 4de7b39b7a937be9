"""The lock-step shell against plain loops that know nothing of it, bit for bit.

The references share only the jitted inner step and the merge with the system; schedule, overlap, data order and
outer optimizer are written out here.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learners.config import DataConfig, InnerConfig
from learners.training import weights
from learners.training.models.causal_lm import CausalLM
from learners.training.precision import precise
from learners.training.step import make_step, schedule, step_key, transformation
from learners.training.tree import deal, initial_parameters, tensors_of
from outer.config import OuterConfig, SyncConfig
from tests.learners.locked import STRICT, trained
from tests.learners.training.test_pieces import Plain, cut_much
from tests.learners.training.test_precision import Line

STEPS, BATCH, SEED = 20, 2, 3


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    for number in range(4):
        (folder / f"{number}.txt").write_text(f"the {number} quick brown foxes jump over lazy dogs\n" * 60)
    return DataConfig(path=str(folder), held_out=0.25, sequence_length=16)


@pytest.fixture(scope="module")
def task(corpus):
    return CausalLM(data=corpus, seed=SEED, layers=1, width=16, heads=2)


def flat_of(task, fragment, params):
    leaves = dict(zip([t.name for t in tensors_of(task)], jax.tree.leaves(params), strict=True))
    return np.concatenate([np.asarray(leaves[t.name], np.float32).ravel() for t in fragment.tensors])


def with_fragment(task, fragment, params, theta):
    leaves = dict(zip([t.name for t in tensors_of(task)], jax.tree.leaves(params), strict=True))
    leaves |= {t.name: jax.numpy.asarray(theta[cut].reshape(t.shape).copy()) for t, cut in fragment.slices()}
    return jax.tree.unflatten(jax.tree.structure(params), list(leaves.values()))


@pytest.mark.parametrize(
    ("fragments_count", "round_steps", "overlap"), [pytest.param(6, 6, 2, marks=pytest.mark.full), (4, 4, 0), (3, 7, 3)]
)
def test_strict_overlap_with_everyone_is_synchronous_streaming_diloco_to_the_bit(
    task, fragments_count, round_steps, overlap
):
    inner = InnerConfig(schedule="constant", warmup=0.0)
    sync = SyncConfig(P=fragments_count, H=round_steps, tau=overlap, **STRICT)
    outer = OuterConfig(lr=0.7, momentum=0.9, merge="avg")
    shell = trained(task, sync, outer, 3, batch=BATCH, steps=STEPS, inner=inner, seed=SEED)
    ours, names = shell.parameters.thetas, ("l-0", "l-1", "l-2")

    fragments = deal(task, sync)
    thetas = initial_parameters(task, fragments, SEED)
    params = [jax.jit(task.init)(jax.random.key(SEED)) for _ in names]
    moments = [transformation(task, inner).init(params[0]) for _ in names]
    velocity = [np.zeros_like(theta) for theta in thetas]
    train_step = make_step(task, inner)
    starts = sample_starts(shell, names)
    arriving = {}
    for step in range(1, STEPS + 1):
        for index, name in enumerate(names):
            start = starts[name][step]
            scale = np.float32(schedule(inner, 0.0))
            params[index], moments[index], *_ = train_step(
                params[index], moments[index], task.batch(start, BATCH), step_key(SEED, start), scale
            )
        due = next((f for f in fragments if step % round_steps == f.index * round_steps // fragments_count), None)
        if due is not None:
            base = thetas[due.index].astype(np.float64)
            gradients = [base - flat_of(task, due, each) for each in params]
            merged = sum((1 / 3) * gradient for gradient in gradients)
            thetas[due.index], velocity[due.index] = nesterov(base, merged, velocity[due.index])
            arriving[step + overlap] = due
        if step in arriving:
            fragment = arriving[step]
            params = [with_fragment(task, fragment, each, thetas[fragment.index]) for each in params]

    assert [np.array_equal(a, b) for a, b in zip(ours, thetas, strict=True)] == [True] * len(fragments)


def nesterov(theta, gradient, velocity):
    """One step of Nesterov SGD in float64, rounded to float32."""
    speed = gradient + 0.9 * velocity.astype(np.float64)
    return (theta - 0.7 * (gradient + 0.9 * speed)).astype(np.float32), speed.astype(np.float32)


def sample_starts(shell, names):
    """Which samples each learner stepped on: spans of batches, lent in the order of asking."""
    starts = {name: {} for name in names}
    for said in shell.facts:
        if type(said.fact).__name__ == "StepFinished":
            starts[said.writer][said.fact.step] = said.fact.position
    used = sorted(start for each in starts.values() for start in each.values())
    assert len(set(used)) == len(used), "no sample is stepped on twice"
    return starts


@pytest.mark.parametrize("kind", ["language", "bfloat16", "masters", "pieces"])
def test_one_learner_that_syncs_everything_every_step_is_plain_training_to_the_bit(kind, request, monkeypatch):
    """Also of leaves in bfloat16, of float32 masters of such leaves, and of tensors in pieces."""
    if kind == "pieces":
        cut_much(monkeypatch)
    masters = {"parameters": "float32", "compute": "bfloat16"} if kind == "masters" else {}
    inner = InnerConfig(lr=0.05, **masters) if kind in ("bfloat16", "masters") else InnerConfig()
    task = {"language": lambda: request.getfixturevalue("task"), "pieces": Plain}.get(
        kind, lambda: Line(jnp.bfloat16)
    )()
    sync = SyncConfig(P=1, H=1, tau=0, split=kind == "pieces", **STRICT)
    outer = OuterConfig(optimizer="sgd", lr=1.0, momentum=0.0)
    shell = trained(task, sync, outer, batch=BATCH, steps=STEPS, inner=inner, seed=SEED)
    assert any(tensor.cut is not None for tensor in shell.fragments[0].tensors) == (kind == "pieces")

    made = precise(task, inner)
    params = jax.jit(made.init)(jax.random.key(SEED))
    moments = transformation(made, inner).init(params)
    train_step = make_step(task, inner)
    for step in range(STEPS):
        scale, start = np.float32(schedule(inner, step / STEPS)), step * BATCH
        params, moments, *_ = train_step(params, moments, task.batch(start, BATCH), step_key(SEED, start), scale)
    wanted = dict(zip([tensor.name for tensor in tensors_of(task)], jax.tree.leaves(params), strict=True))
    for name, values in weights.joined(shell.fragments, shell.parameters.thetas).items():
        assert np.array_equal(values, np.asarray(wanted[name], np.float32)), name
