"""[inner] parameters, compute and microbatches: dtypes of masters, moments and loss; gradients of parts of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from learners.config import DataConfig, InnerConfig
from learners.training.models.causal_lm import CausalLM
from learners.training.precision import precise
from learners.training.step import make_step, transformation
from learners.training.task import Task
from learners.training.trainer import Trainer
from learners.training.tree import compute_bytes, deal, initial_parameters, inner_state_bytes, parameter_bytes
from outer.config import SyncConfig
from tests.learners.training.test_trainer import MODEL, Half


class Line(Half):
    """Least squares, in the dtype asked for; its loss notes the dtypes that it is given."""

    def __init__(self, dtype: Any = jnp.float32, noisy: bool = False) -> None:
        self.dtype, self.noisy = dtype, noisy
        self.seen: set[str] = set()

    def init(self, rng: jax.Array) -> Any:
        return {"w": jax.random.normal(rng, (4,)).astype(self.dtype), "b": jnp.zeros(())}

    def loss(self, params: Any, batch: Any, rng: jax.Array) -> Any:
        x, y, index = batch
        self.seen |= {str(params["w"].dtype), f"x {x.dtype}", f"index {index.dtype}"}
        error = x @ params["w"] + params["b"].astype(params["w"].dtype) - y
        if self.noisy:
            error = error + jax.random.normal(rng, ())
        return jnp.mean(error**2), {"bias": params["b"], "first": index[0]}

    def optimizer(self, inner: InnerConfig) -> optax.GradientTransformation:
        return optax.adam(inner.lr)

    def batch(self, start: int, count: int) -> Any:
        x = np.random.default_rng(start).normal(size=(count, 4)).astype(np.float32)
        return x, x @ np.arange(4, dtype=np.float32), np.arange(start, start + count)


def trainer_of(task: Task, **inner: Any) -> Trainer:
    config = InnerConfig.model_validate({"schedule": "constant", "warmup": 0.0, **inner})
    return Trainer(task, deal(task, SyncConfig(P=1)), config, 0)


def dtypes(tree: Any) -> set[str]:
    return {str(leaf.dtype) for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)}


# ------------------------------------------------------------------ dtypes


@pytest.mark.parametrize("own", [jnp.float32, jnp.bfloat16])
def test_masters_and_moments_are_float32_under_a_loss_in_bfloat16(own: Any) -> None:
    task = Line(own)
    trainer = trainer_of(task, parameters="float32", compute="bfloat16")
    trainer.step(0, 8, 0.5)
    assert dtypes(trainer.params) == dtypes(trainer.opt_state) == {"float32"}
    assert task.seen == {"bfloat16", "x bfloat16", "index int32"}


def test_the_loss_is_float32_and_sees_the_tasks_own_dtypes_by_default() -> None:
    inner = InnerConfig(parameters="float32")
    task = Line(jnp.bfloat16)
    made = precise(task, inner)
    assert jax.eval_shape(made.loss, made.init(jax.random.key(0)), task.batch(0, 2), jax.random.key(0))[0].dtype == (
        jnp.float32
    )
    assert "bfloat16" in task.seen and "x float32" in task.seen
    assert precise(task, InnerConfig()) is task and precise(made, inner) is made


def test_masters_begin_as_the_tasks_own_parameters_and_are_what_a_fragment_carries() -> None:
    task = Line(jnp.bfloat16)
    trainer = trainer_of(task, parameters="float32", compute="bfloat16")
    assert trainer.read(0).tobytes() == initial_parameters(task, trainer.fragments, 0)[0].tobytes()
    fine = np.linspace(1.0, 1.001, trainer.fragments[0].size, dtype=np.float32)
    trainer.load(0, fine)
    assert trainer.read(0).tobytes() == fine.tobytes(), "no rounding to bfloat16"
    assert trainer.rounding(0, fine) is None


def test_steps_below_a_unit_of_bfloat16_add_up_in_masters_and_are_lost_without() -> None:
    moved = {}
    for parameters in ("float32", "bfloat16"):
        trainer = trainer_of(Line(jnp.bfloat16), parameters=parameters, compute="bfloat16", lr=1e-4, clip_norm=0.0)
        trainer.load(0, np.full(trainer.fragments[0].size, 16.0, np.float32))
        for step in range(10):
            trainer.step(8 * step, 8, 0.5)
        moved[parameters] = 16.0 - np.sort(trainer.read(0))
    assert moved["float32"].min() > 5e-4
    assert np.count_nonzero(moved["bfloat16"] == 0.0) >= 4


@pytest.fixture(scope="module")
def language(foxes: str) -> CausalLM:
    return CausalLM(DataConfig(path=foxes, sequence_length=24, held_out=0.2), 0, **MODEL)


def test_the_built_in_model_computes_in_bfloat16_throughout(language: CausalLM) -> None:
    made = precise(language, InnerConfig(compute="bfloat16"))
    program = jax.make_jaxpr(made.loss)(made.init(jax.random.key(0)), language.batch(0, 2), jax.random.key(0))
    products = [equation for equation in _equations(program.jaxpr) if equation.primitive.name == "dot_general"]
    assert len(products) == 10  # query, key, value, scores, mixing, out, gate, up, down, logits
    assert {str(given.aval.dtype) for each in products for given in each.invars} == {"bfloat16"}


def _equations(program: Any) -> Iterator[Any]:
    for equation in program.eqns:
        yield equation
        for value in equation.params.values():
            if hasattr(value, "jaxpr"):
                yield from _equations(value.jaxpr)


# ------------------------------------------------------------------ microbatches


@pytest.mark.parametrize("clip_norm", [0.0, 0.1])
def test_microbatches_give_the_step_of_the_whole_batch(clip_norm: float) -> None:
    """Within float32's rounding: 1e-5 relative, after 5 steps; clipping is of the mean, not of each part."""
    whole, parts = (trainer_of(Line(), microbatches=count, clip_norm=clip_norm, lr=1e-2) for count in (1, 4))
    losses = [[trainer.step(8 * step, 8, 0.5) for step in range(5)] for trainer in (whole, parts)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    np.testing.assert_allclose(parts.read(0), whole.read(0), rtol=1e-5)
    assert parts.aux["bias"] == pytest.approx(whole.aux["bias"], rel=1e-4)
    assert parts.aux["first"] == pytest.approx(32 + 1.5), "the mean over the parts' first samples"


def test_microbatches_are_summed_in_float32(language: CausalLM) -> None:
    inner = InnerConfig(parameters="bfloat16", compute="bfloat16", microbatches=8)
    program = jax.make_jaxpr(make_step(language, inner))
    task = precise(language, inner)
    params = task.init(jax.random.key(0))
    state = transformation(task, inner).init(params)
    made = program(params, state, language.batch(0, 8), jax.random.key(0), jnp.float32(1.0))
    (scan,) = [each for each in _equations(made.jaxpr) if each.primitive.name == "scan" and each.params["length"] == 8]
    carried = scan.params["jaxpr"].out_avals[: scan.params["num_carry"]]
    assert {str(aval.dtype) for aval in carried} == {"float32"}
    assert dtypes(state) == {"bfloat16"}


def test_every_microbatch_has_a_random_key_of_its_own() -> None:
    """With one key for all, the noise of four parts would be that of one: their losses' mean then has its variance."""
    task = Line(noisy=True)
    keyed, single = (trainer_of(task, microbatches=count, lr=1e-9) for count in (4, 1))
    key, w = jax.random.key(3), np.array(keyed.params["w"])
    batch = jax.tree.map(lambda leaf: np.repeat(leaf, 8, axis=0), task.batch(0, 1))
    results = []
    for trainer in (keyed, single):
        step = trainer._train_step
        results.append(float(step(trainer.params, trainer.opt_state, batch, key, jnp.float32(1.0))[2]))
    noise = [float(jax.random.normal(jax.random.fold_in(key, part), ())) for part in range(4)]
    x, y, _ = batch
    error = x[0] @ w - y[0]
    assert results[0] == pytest.approx(np.mean([(error + each) ** 2 for each in noise]), rel=1e-3)


def test_a_batch_that_does_not_divide_is_refused_with_the_multiple() -> None:
    with pytest.raises(ValueError, match=r"batch of 6 samples .* 4 microbatches.*multiple of 4.*inner\.microbatches"):
        trainer_of(Line(), microbatches=4).step(0, 6, 0.5)


class Standardised(Line):
    """With the running mean of its samples, of the kind mean, a counter, and a frozen scale."""

    kinds: Mapping[str, str] = {"running": "mean", "count": "local", "scale": "frozen"}

    def init(self, rng: jax.Array) -> Any:
        held = {"running": jnp.zeros(4), "count": jnp.zeros((), jnp.int32), "scale": jnp.ones(())}
        return super().init(rng) | held

    def loss(self, params: Any, batch: Any, rng: jax.Array) -> Any:
        loss, _ = super().loss(params, batch, rng)
        self.seen |= {f"running {params['running'].dtype}", f"scale {params['scale'].dtype}"}
        state = {"running": batch[0].mean(axis=0), "count": params["count"] + 1}
        return loss * params["scale"], {"state": state}


def test_statistics_keep_their_dtype_under_a_loss_in_bfloat16() -> None:
    task = Standardised()
    trainer = trainer_of(task, compute="bfloat16", parameters="bfloat16")
    trainer.step(0, 8, 0.5)
    assert {"running float32", "scale bfloat16"} <= task.seen
    assert str(trainer.params["running"].dtype) == "float32" and str(trainer.params["w"].dtype) == "bfloat16"
    np.testing.assert_allclose(trainer.params["running"], task.batch(0, 8)[0].mean(axis=0), rtol=0.02, atol=1e-3)


def test_statistics_of_microbatches_are_averaged_and_whole_numbers_counted_once() -> None:
    task = Standardised()
    trainer = trainer_of(task, microbatches=4)
    trainer.step(0, 8, 0.5)
    np.testing.assert_allclose(trainer.params["running"], task.batch(0, 8)[0].mean(axis=0), rtol=1e-5)
    assert int(trainer.params["count"]) == 1


# ------------------------------------------------------------------ sizes


def test_sizes_count_masters_moments_and_the_copy_for_the_loss() -> None:
    task, elements = Line(jnp.bfloat16), 5
    own = InnerConfig(optimizer="adam")
    assert parameter_bytes(task, own) == 2 * 4 + 4
    masters = InnerConfig(parameters="float32")
    assert parameter_bytes(task, masters) == 4 * elements
    assert inner_state_bytes(task, masters) - inner_state_bytes(task, own) == 2 * 4 * 2
    assert compute_bytes(task, own) == 0
    assert compute_bytes(task, masters) == 2 * 4, "w in the task's own bfloat16"
    assert compute_bytes(task, InnerConfig(parameters="float32", compute="bfloat16")) == 2 * elements
