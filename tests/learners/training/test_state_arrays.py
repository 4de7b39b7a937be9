"""A learner's whole state on its way to a peer: nothing is changed, and nothing wrong is taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from learners.config import InnerConfig
from learners.fragment_io import FragmentIO
from learners.training import state_arrays
from learners.training.trainer import Trainer
from learners.training.tree import deal
from outer.config import SyncConfig
from outer.protocol.messages import StateRequest
from tests.learners.training.test_trainer import Half


class Mixed(Half):
    """bfloat16 and float32 parameters, and an optimizer that holds moments, a counter and a random key."""

    def init(self, rng: jax.Array) -> Any:
        return {"w": jax.random.normal(rng, (3, 2), jnp.bfloat16), "b": jnp.zeros((2,), jnp.float32)}

    def loss(self, params: Any, batch: Any, rng: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        out = batch @ params["w"].astype(jnp.float32) + params["b"]
        return jnp.mean((out - 1.0) ** 2), {}

    def optimizer(self, inner: InnerConfig) -> optax.GradientTransformation:
        return optax.chain(optax.add_noise(0.01, 0.5, 7), optax.adam(inner.lr))

    def batch(self, start: int, count: int) -> Any:
        return np.random.default_rng(start).normal(size=(count, 3)).astype(np.float32)


def trainer(steps: int = 0) -> Trainer:
    task = Mixed()
    made = Trainer(task, deal(task, SyncConfig.model_validate({"P": 1, "H": 1, "tau": 0})), InnerConfig(), seed=0)
    for step in range(steps):
        made.step(4 * step, 4, 0.0)
    return made


@pytest.fixture(scope="module")
def donor() -> Trainer:
    """It has stepped, and steps no more."""
    return trainer(3)


def test_only_arrays_of_numpys_own_dtypes_are_sent(donor: Trainer) -> None:
    sent = state_arrays.pack(donor.state_leaves())
    assert all(type(array) is np.ndarray and array.dtype.kind in "biuf" for array in sent)
    assert state_arrays.size(sent) == sum(array.nbytes for array in sent)


def fragment_io(of: Trainer) -> FragmentIO:
    return FragmentIO(of, SyncConfig(), 1)


REQUEST = StateRequest(1, "b", 2, "a", 1, 4, 60.0)


def test_what_a_donor_packs_its_joiner_finds_sound_and_goes_on_from(donor: Trainer) -> None:
    joiner = trainer()
    giving, taking = fragment_io(donor), fragment_io(joiner)
    state = giving.pack(giving.capture(), REQUEST, step=3, syncer_step=4)
    assert (state.donor, state.donor_incarnation, state.step, state.syncer_step) == ("a", 1, 3, 4)
    assert taking.state_defect(state) == ""
    taking.inherit(state)
    assert state_arrays.digest(state_arrays.pack(joiner.state_leaves())) == state.digest


def test_a_state_of_which_something_changed_on_its_way_is_not_taken(donor: Trainer) -> None:
    giving, taking = fragment_io(donor), fragment_io(trainer())
    state = giving.pack(giving.capture(), REQUEST, step=3, syncer_step=4)
    nudged = np.nextafter(state.payload[0], np.float32(1e9))  # as plausible as before
    spoiled = replace(state, payload=[nudged, *state.payload[1:]])
    assert state_arrays.defect(spoiled.payload, donor.state_leaves()) == ""
    assert taking.state_defect(spoiled) == "bad_digest"


def spoil(index: int, change: Callable[[Any], Any]) -> Callable[[list[Any]], list[Any]]:
    return lambda arrays: [change(array) if i == index else array for i, array in enumerate(arrays)]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda arrays: arrays[:-1], "wrong_shape"),
        (lambda arrays: tuple(arrays), "wrong_shape"),
        (spoil(0, lambda array: array[:1]), "wrong_shape"),
        (spoil(0, lambda array: array.astype(np.float64)), "wrong_shape"),
        (spoil(0, lambda array: "not an array"), "wrong_shape"),
        (spoil(0, lambda array: np.full_like(array, np.nan)), "non_finite"),
        (spoil(1, lambda array: np.full_like(array, 0x7F80)), "non_finite"),  # infinity in bfloat16
    ],
)
def test_a_state_that_cannot_be_ones_own_is_named_as_such(
    donor: Trainer, change: Callable[[list[Any]], Any], found: str
) -> None:
    sent = state_arrays.pack(donor.state_leaves())
    assert state_arrays.defect(change(sent), donor.state_leaves()) == found
