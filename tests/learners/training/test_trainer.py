"""The trainer: fragments in and out, the step, the schedule, evaluation, and the built-in model beneath."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.typing import NDArray

from learners.config import DataConfig, InnerConfig
from learners.training.evaluator import Evaluator
from learners.training.models.causal_lm import CausalLM
from learners.training.step import AUX_LEFT_OUT, AUX_MAX, make_step, schedule
from learners.training.task import Task
from learners.training.trainer import Trainer
from learners.training.tree import deal, initial_parameters, tensors_of
from outer.config import SyncConfig

MODEL = {"layers": 1, "width": 16, "heads": 2}


@pytest.fixture(scope="module")
def data(foxes: str) -> DataConfig:
    return DataConfig(path=foxes, sequence_length=24, held_out=0.2)


@pytest.fixture(scope="module")
def task(data: DataConfig) -> CausalLM:
    return CausalLM(data, 0, **MODEL)


@pytest.fixture(scope="module")
def train_step(task: CausalLM) -> Any:
    return make_step(task, InnerConfig())


@pytest.fixture
def trainer(task: CausalLM, train_step: Any) -> Trainer:
    return Trainer(task, deal(task, SyncConfig(P=4)), InnerConfig(), 0, train_step)


def everything(trainer: Trainer) -> list[NDArray[np.float32]]:
    return [trainer.read(index) for index in range(len(trainer.fragments))]


class Half:
    """A task with leaves of two dtypes and none of text, batches or training."""

    def init(self, rng: jax.Array) -> Any:
        return {"w": jnp.ones((3, 2), jnp.bfloat16), "b": jnp.zeros(4)}

    def loss(self, params: Any, batch: Any, rng: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        return jnp.sum(params["w"].astype(jnp.float32) ** 2) + jnp.mean(batch), {}

    def optimizer(self, inner: InnerConfig) -> optax.GradientTransformation:
        return optax.sgd(inner.lr)

    def batch(self, start: int, count: int) -> Any:
        return np.zeros((count, 1), np.float32)

    def tokens(self, count: int) -> int:
        return count

    def held_out(self, start: int, count: int) -> Any:
        return np.arange(start, start + count, dtype=np.float32)[:, None]


# ------------------------------------------------------------------ tensors and fragments


def test_the_built_in_model_is_a_task_that_reads_no_file_before_its_first_batch(tmp_path: Path) -> None:
    task = CausalLM(DataConfig(path=str(tmp_path / "missing")), 0)
    assert isinstance(task, Task)
    fragments = deal(task, SyncConfig())
    assert len(tensors_of(task)) == 29
    assert len(initial_parameters(task, fragments, 0)) == len(fragments) == 24
    with pytest.raises(ValueError, match=r"data\.path"):
        task.batch(0, 1)


@pytest.mark.parametrize("rows", [0, 7])
def test_a_batch_of_other_rows_than_asked_for_is_refused(rows: int) -> None:
    class Short(Half):
        def batch(self, start: int, count: int) -> Any:
            return super().batch(start, count if start < 1000 else rows)

    trainer = Trainer(Short(), deal(Short(), SyncConfig(P=1)), InnerConfig(), 0)
    trainer.dispatch(0, 8, 0.5)
    with pytest.raises(ValueError, match=rf"batch\(1000, 8\) has an array of shape \[{rows}, 1\].*8 samples"):
        trainer.dispatch(1000, 8, 0.5)


def test_too_many_fragments_are_refused_with_the_largest_number(task: CausalLM) -> None:
    with pytest.raises(ValueError, match=r"sync\.P = 24.*largest P is 11"):
        deal(task, SyncConfig(P=24))
    with pytest.raises(ValueError, match=r"sync\.P = 24.*layers.*largest P is 2"):
        deal(task, SyncConfig(P=24, fragmentation="layer"))


def test_fragments_by_layer_are_as_many_as_layers_and_one_unless_told(data: DataConfig) -> None:
    outside, *layers = deal(CausalLM(data, 0, **MODEL | {"layers": 2}), SyncConfig(fragmentation="layer"))
    assert {tensor.layer for tensor in outside.tensors} == {None}
    assert [{tensor.layer for tensor in each.tensors} for each in layers] == [{"blocks/0"}, {"blocks/1"}]


def aligned(size: int) -> NDArray[np.float32]:
    """Memory that begins at a multiple of 64 bytes, which JAX on a CPU uses in place instead of copying."""
    memory = np.empty(4 * size + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    return memory[begin : begin + 4 * size].view(np.float32)


def test_what_is_loaded_is_read_back_in_memory_of_its_own(trainer: Trainer) -> None:
    for index, fragment in enumerate(trainer.fragments):
        given = aligned(fragment.size)
        given[:] = np.random.default_rng(index).normal(size=fragment.size)
        kept = given.copy()
        trainer.load(index, given)
        given[:] = 0.0
        first = trainer.read(index)
        assert (first == kept).all()
        first[:] = 0.0
        assert (trainer.read(index) == kept).all()


def test_leaves_keep_their_dtype_and_travel_as_float32() -> None:
    trainer = Trainer(Half(), deal(Half(), SyncConfig(P=1)), InnerConfig(), 0)
    flat = np.linspace(-1, 1, 10, dtype=np.float32)
    trainer.load(0, flat)
    assert trainer.params["w"].dtype == jnp.bfloat16
    read = trainer.read(0)
    assert read.dtype == np.float32
    assert (read[:6] == flat[:6].astype(jnp.bfloat16).astype(np.float32)).all()
    assert (read[6:] == flat[6:]).all()
    trainer.step(0, 2, 0.5)
    assert trainer.params["w"].dtype == jnp.bfloat16


# ------------------------------------------------------------------ adoption


def test_a_reset_clears_the_moments(trainer: Trainer) -> None:
    trainer.step(0, 4, 0.5)
    assert any(np.asarray(leaf).any() for leaf in jax.tree.leaves(trainer.opt_state))
    trainer.reset_optimizer()
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(trainer.opt_state))


# ------------------------------------------------------------------ stepping


def test_warming_up_changes_nothing(trainer: Trainer) -> None:
    parameters = everything(trainer)
    moments = [np.array(leaf) for leaf in jax.tree.leaves(trainer.opt_state)]
    trainer.warm_up(4)
    assert all((a == b).all() for a, b in zip(parameters, everything(trainer), strict=True))
    after = jax.tree.leaves(trainer.opt_state)
    assert all((a == b).all() for a, b in zip(moments, after, strict=True))


def test_the_gradient_is_clipped_and_the_updates_are_scaled() -> None:
    def moved(inner: InnerConfig, progress: float) -> float:
        trainer = Trainer(Float(), deal(Float(), SyncConfig(P=1)), inner, 0)
        before = trainer.read(0)
        trainer.step(0, 1, progress)
        return float(np.linalg.norm(trainer.read(0) - before))

    class Float(Half):
        def init(self, rng: jax.Array) -> Any:
            return {"w": jnp.full((3, 2), 5.0)}  # a gradient of norm 2 * 5 * sqrt(6)

    plain = InnerConfig(lr=1e-2, clip_norm=0.0, schedule="linear", final=0.0, warmup=0.0)
    clipped = plain.model_copy(update={"clip_norm": 1.0})
    assert moved(plain, 0.0) == pytest.approx(1e-2 * 10 * math.sqrt(6), rel=1e-4)
    assert moved(clipped, 0.0) == pytest.approx(1e-2, rel=1e-4)
    assert moved(clipped, 0.75) == pytest.approx(0.25e-2, rel=1e-3)


def test_the_schedule_rises_to_one_and_falls_to_its_final_share() -> None:
    for shape, halfway in (("cosine", 0.55), ("linear", 0.55), ("constant", 1.0)):
        inner = InnerConfig(schedule=shape, warmup=0.2, final=0.1)
        rates = [schedule(inner, step / 1000) for step in range(1001)]
        assert all(0.0 < rate <= 1.0 for rate in rates)
        assert rates[200] == 1.0
        assert rates[:201] == sorted(rates[:201])
        assert rates[200:] == sorted(rates[200:], reverse=True)
        assert rates[600] == pytest.approx(halfway)
        assert rates[1000] == pytest.approx(1.0 if shape == "constant" else 0.1)
        assert schedule(inner, 1.5) == rates[1000]
        assert max(abs(a - b) for a, b in itertools.pairwise(rates)) < 0.006


# ------------------------------------------------------------------ evaluation


def test_evaluation_is_the_mean_over_all_samples_whatever_the_batch_size() -> None:
    fragments = deal(Half(), SyncConfig(P=2))
    thetas = [np.zeros(fragment.size, np.float32) for fragment in fragments]
    for batch_size in (1, 3, 10, 32):
        assert Evaluator(Half(), fragments, 10, batch_size).loss(thetas) == pytest.approx(4.5)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"width": 90}, ["width = 90", "heads = 4", "try width = 96"]),
        ({"widht": 96}, ["model.widht", "width"]),
        ({"layers": 0}, ["model.layers = 0"]),
    ],
)
def test_a_bad_model_table_is_refused_with_field_and_fix(model: dict[str, int], words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        CausalLM(DataConfig(), 0, **model)
    assert all(word in str(caught.value) for word in words), str(caught.value)


class Told(CausalLM):
    """The built-in model, with auxiliary values of every kind."""

    def loss(self, params: Any, batch: Any, rng: jax.Array) -> Any:
        loss, _ = super().loss(params, batch, rng)
        return loss, {f"v{index:02}": loss * index for index in range(17)} | {"a": True, "vector": batch[:, 0]}


def test_auxiliary_values_come_with_the_loss_and_change_no_number(task: CausalLM, data: DataConfig) -> None:
    silent, told = (
        Trainer(each, deal(each, SyncConfig(P=4)), InnerConfig(), 0) for each in (task, Told(data, 0, **MODEL))
    )
    losses = [trainer.step(0, 4, progress=0.5) for trainer in (silent, told)]
    assert losses[0] == losses[1]
    assert silent.aux == {}
    assert told.aux["a"] == 1.0 and told.aux["v14"] == pytest.approx(14 * losses[0])
    assert len(told.aux) == AUX_MAX + 1
    assert told.aux[AUX_LEFT_OUT] == 3, "two scalars too many, and one that is no scalar"
