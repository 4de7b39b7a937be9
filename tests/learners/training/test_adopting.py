"""Adoption by a user's own rule: what a learner then holds, and what is refused."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learners.config import InnerConfig
from learners.training.adopting import check
from learners.training.trainer import Trainer
from learners.training.tree import deal
from outer.config import SyncConfig
from tests.learners.training.test_trainer import Half

HERE = "tests.learners.training.test_adopting"


def keep_half(local: jax.Array, theta: jax.Array, base: jax.Array) -> Any:
    return theta + 0.5 * (local - base)


def in_half(local: Any, theta: Any, base: Any) -> Any:
    return theta.astype(jnp.bfloat16)


def flat(local: Any, theta: Any, base: Any) -> Any:
    return theta.reshape(-1)


def on_the_host(local: Any, theta: Any, base: Any) -> Any:
    return np.asarray(theta)


def centred(local: Any, theta: Any, base: Any) -> Any:
    return theta + (local - base) - jnp.mean(local - base)


def drifting(local: Any, theta: Any, base: Any) -> Any:
    return theta + base


def ratio(local: Any, theta: Any, base: Any) -> Any:
    return theta / (local - base)


CALLS = itertools.count(1)


def of_its_own_mind(local: Any, theta: Any, base: Any) -> Any:
    return theta + next(CALLS) * (local - base)


@pytest.mark.parametrize("name", ["overwrite", f"{HERE}:keep_half"])
def test_a_mode_and_a_sound_rule_pass(name: str) -> None:
    check(name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (f"{HERE}:nobody", "does not import"),
        (f"{HERE}:HERE", "not callable"),
        (f"{HERE}:in_half", "returns bfloat16"),
        (f"{HERE}:flat", r"returns float32\[12\]"),
        (f"{HERE}:on_the_host", "fails under jax.jit: TracerArrayConversionError"),
        (f"{HERE}:centred", "is not elementwise"),
        (f"{HERE}:drifting", "return theta then"),
        (f"{HERE}:ratio", "not finite"),
        (f"{HERE}:of_its_own_mind", "other values for the same arrays"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(name: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check(name)


def test_a_rule_decides_what_a_learner_holds_and_rounding_is_no_progress() -> None:
    """With a bfloat16 leaf of 6 elements, and one of float32."""
    fragments = deal(Half(), SyncConfig.model_validate({"P": 1}))
    trainer = Trainer(Half(), fragments, InnerConfig(), 0)
    drawn = np.random.default_rng(1)
    base, theta = (drawn.normal(size=fragments[0].size).astype(np.float32) for _ in range(2))
    trainer.adopt(0, base, "overwrite")
    moved = trainer.adopt(0, theta, f"{HERE}:keep_half", base, 0.0, base)
    assert moved is not None and np.asarray(moved).tobytes() == theta.tobytes()  # nothing but rounding to keep
    trainer.load(0, local := trainer.read(0) + np.float32(1.0))
    held = local - (np.asarray(trainer.rounding(0, theta)))
    again = trainer.adopt(0, base, f"{HERE}:keep_half", theta, 0.0, theta)
    np.testing.assert_allclose(np.asarray(again), base + 0.5 * (held - theta), rtol=1e-2, atol=1e-2)
