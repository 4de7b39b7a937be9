"""Outer optimizers of a user's own: what they compute, and what is refused."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.typing import NDArray

from outer.config import OuterConfig
from outer.numeric.optimizer import OuterOptimizer, check
from outer.numeric.parameters import GlobalParameters
from outer.numeric.rules import rules
from outer.protocol.fragments import Tensor, balanced

HERE = "tests.outer.numeric.test_momentum"
Floats = NDArray[np.float64]


def stepped(config: OuterConfig, gradients: list[Floats]) -> list[NDArray[np.float32]]:
    optimizer, theta = OuterOptimizer(config), np.zeros(6, np.float32)
    state, found = optimizer.init(theta), []
    for gradient in gradients:
        theta, state = optimizer.step(theta, gradient, state)
        found.append(theta)
    return found


def test_every_fragment_has_a_state_of_its_own_that_a_later_epoch_restores() -> None:
    tensors = (Tensor("up", (4, 8), "float32"), Tensor("down", (8, 4), "float32"), Tensor("norm", (8,), "float32"))
    fragments = balanced(tensors, 2)

    def made() -> GlobalParameters:
        initial = [np.ones(each.size, np.float32) for each in fragments]
        return GlobalParameters(
            fragments, initial, OuterConfig(optimizer=f"{HERE}:heavy_ball"), "fp32", rules(tensors, "rda")
        )

    def commit(held: GlobalParameters, fragment: int, version: int) -> None:
        moves = np.random.default_rng(version).normal(size=(2, fragments[fragment].size)).astype(np.float32)
        held.install(held.propose(fragment, list(held.thetas[fragment] + moves), [0.5, 0.5]), version)

    before, untouched = made(), made()
    for version in range(1, 7):
        commit(before, 0, version)
    assert [leaf.tobytes() for leaf in before.arrays(1)] == [leaf.tobytes() for leaf in untouched.arrays(1)]
    after = made()
    after.restore(0, 6, [np.array(leaf) for leaf in before.arrays(0)])
    for held in (before, after):
        commit(held, 0, 7)
    assert before.digest() == after.digest()


# ------------------------------------------------------------------ of one's own


def heavy_ball(learning_rate: float, momentum: float = 0.9) -> optax.GradientTransformation:
    return optax.chain(optax.trace(momentum), optax.scale(-learning_rate))


def without_rate(rate: float) -> Any:
    return optax.sgd(rate)


def of_no_kind(learning_rate: float) -> Any:
    return learning_rate


def _made(update: Any, init: Any = lambda params: ()) -> optax.GradientTransformation:
    return optax.GradientTransformation(init, lambda gradient, state, params=None: update(gradient, state))


def on_the_host(learning_rate: float) -> Any:
    return _made(lambda gradient, state: (np.asarray(gradient), state))


def that_grows(learning_rate: float) -> Any:
    return _made(lambda gradient, state: (gradient, (gradient,) * (len(state) + 1)))


def that_widens(learning_rate: float) -> Any:
    return _made(lambda gradient, state: (gradient, (jnp.tile(state[0], 2),)), lambda params: (params,))


def of_other_shape(learning_rate: float) -> Any:
    return _made(lambda gradient, state: (gradient[:, None] * jnp.ones(12), state))


def not_finite(learning_rate: float) -> Any:
    return _made(lambda gradient, state: (gradient / jnp.linalg.norm(gradient), state))


def with_words(learning_rate: float) -> Any:
    return _made(lambda gradient, state: (gradient, state), lambda params: ("words",))


CALLS = itertools.count(1)


def of_its_own_mind(learning_rate: float) -> Any:
    by = float(next(CALLS))
    return _made(lambda gradient, state: (jax.tree.map(lambda g: -by * g, gradient), state))


def test_a_sound_optimizer_passes_and_takes_lr_momentum_and_options() -> None:
    check(OuterConfig(optimizer=f"{HERE}:heavy_ball"))
    [first, second] = stepped(OuterConfig(optimizer=f"{HERE}:heavy_ball", lr=1.0, momentum=0.25), [np.ones(6)] * 2)
    assert (first[0], second[0]) == (-1.0, -2.25)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        (f"{HERE}:nobody", {}, "does not import"),
        (f"{HERE}:heavy_ball", {"dampening": 1}, "has no such option"),
        (f"{HERE}:without_rate", {}, "takes no learning_rate"),
        (f"{HERE}:of_no_kind", {}, "returns float; return an optax.GradientTransformation"),
        (f"{HERE}:on_the_host", {}, "fails in a step under jax.jit: TracerArrayConversionError"),
        (f"{HERE}:that_grows", {}, "changes its state's structure"),
        (f"{HERE}:that_widens", {}, "changes its state's structure, shapes"),
        (f"{HERE}:of_other_shape", {}, "updates of another shape|fails in a step"),
        (f"{HERE}:not_finite", {}, "not finite"),
        (f"{HERE}:with_words", {}, "fails in a step|no array"),
        (f"{HERE}:of_its_own_mind", {}, "other bits the second time"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check(OuterConfig(optimizer=name, options=options))
