"""The outer optimizer, the syncer's numbers that it steps, optimizers by name and a user's own; Muon, an inner one."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from outer.config import OuterConfig
from outer.numeric import codec
from outer.numeric.formats import NAMES
from outer.numeric.optimizer import OuterOptimizer, check, resolve
from outer.numeric.parameters import GlobalParameters
from outer.numeric.rules import rules
from outer.protocol.fragments import Fragment, Tensor, balanced
from tests.property_settings import examples

# ------------------------------------------------------------------ SGD


@examples(60)
@given(seed=st.integers(0, 2**32 - 1), exponent=st.integers(-60, 60), ratio=st.integers(-25, 25))
def test_sgd_with_rate_one_gives_a_lone_learners_parameters_back_to_the_bit(
    seed: int, exponent: int, ratio: int
) -> None:
    random = np.random.default_rng(seed)
    base = (random.uniform(1, 2, 64) * random.choice([-1, 1], 64) * 2.0**exponent).astype(np.float32)
    theta = (random.uniform(1, 2, 64) * random.choice([-1, 1], 64) * 2.0 ** (exponent + ratio)).astype(np.float32)
    theta[:8], base[8:16] = 0.0, 0.0
    theta[16:24] = np.nextafter(base[16:24], np.float32(np.inf))  # one unit in the last place away
    optimizer = OuterOptimizer(OuterConfig(optimizer="sgd", lr=1.0, momentum=0.0))
    stepped, _ = optimizer.step(base, codec.decode("fp32", theta, base), optimizer.init(base))
    assert stepped.dtype == np.float32
    assert stepped.tobytes() == theta.tobytes()


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "nadam", "lion", "adafactor", "rmsprop", "lars"])
def test_states_are_float32_on_the_host(name: str) -> None:
    optimizer = OuterOptimizer(OuterConfig(optimizer=name, lr=0.1))
    theta = np.linspace(-1, 1, 24, dtype=np.float32)
    _, state = optimizer.step(theta, np.cos(theta.astype(np.float64)), optimizer.init(theta))
    for leaf in jax.tree.leaves(state):
        assert type(leaf) is np.ndarray
        assert leaf.dtype in (np.float32, np.int32)


# ------------------------------------------------------------------ names and options


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("inner", "adamW", {}), ["inner.optimizer = 'adamW'", "nearest", "adamw"]),
        (("outer", "qqqqqq", {}), ["outer.optimizer = 'qqqqqq'", "known are", "sgd"]),
        (("outer", "lbfgs", {}), ["outer.optimizer = 'lbfgs'"]),
        (("inner", "apply_updates", {}), ["inner.optimizer = 'apply_updates'"]),
        (("inner", "adamw", {"weight_decai": 0.1}), ["inner.options.weight_decai", "weight_decay"]),
        (("outer", "sgd", {"learning_rate": 1.0}), ["outer.options.learning_rate", "outer.lr"]),
        (("outer", "noisy_sgd", {}), ["outer.optimizer = 'noisy_sgd'"]),
    ],
)
def test_a_wrong_name_is_answered_with_the_field_and_the_nearest(arguments: Any, words: list[str]) -> None:
    section, name, options = arguments
    with pytest.raises(ValueError) as caught:
        resolve(section, name, 0.1, options)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_momentum_that_the_optimizer_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match=r"outer\.momentum = 0\.9.*adam has no momentum.*sgd"):
        OuterOptimizer(OuterConfig(optimizer="adam", momentum=0.9))
    with pytest.raises(ValueError, match=r"outer\.options\.momentum"):
        OuterOptimizer(OuterConfig(options={"momentum": 0.9}))


# ------------------------------------------------------------------ the syncer's numbers

TENSORS = (Tensor("embed", (6, 4), "float32"), Tensor("up", (4, 8), "float32"), Tensor("gain", (4,), "float32"))


def parameters(codec_name: str = "fp32", **outer: Any) -> GlobalParameters:
    fragments = balanced(TENSORS, 2)
    random = np.random.default_rng(5)
    initial = [random.normal(size=fragment.size).astype(np.float32) for fragment in fragments]
    return GlobalParameters(fragments, initial, OuterConfig(**outer), codec_name, rules(TENSORS, "rda"))


def payloads(held: GlobalParameters, fragment: int, count: int) -> list[NDArray[np.float32]]:
    random = np.random.default_rng(6)
    size = held.fragments[fragment].size
    moves = [(0.1 * random.normal(size=size)).astype(np.float32) for _ in range(count)]
    return [held.thetas[fragment] + move for move in moves]


def test_proposing_changes_nothing_and_installing_changes_one_fragment() -> None:
    held = parameters()
    before, other = held.digest(), held.thetas[1]
    proposal = held.propose(0, payloads(held, 0, 3), [0.5, 0.3, 0.2])
    assert held.digest() == before
    assert held.versions == [0, 0]
    held.install(proposal, 7)
    assert held.versions == [7, 0]
    assert held.thetas[0] is proposal.theta
    assert held.thetas[1] is other
    assert held.digest() != before
    assert proposal.digest == codec.digest(held.thetas[0])


def test_parameters_are_read_only() -> None:
    held = parameters()
    held.install(held.propose(0, payloads(held, 0, 1), [1.0]), 1)
    for theta in held.thetas:
        with pytest.raises(ValueError, match="read-only"):
            theta[0] = 0.0


def test_an_outer_step_that_overflows_is_marked() -> None:
    held = parameters(lr=1e30, momentum=0.0)
    payload = np.full(held.fragments[0].size, 1e20, np.float32)
    assert not held.propose(0, [payload], [1.0]).finite
    assert held.propose(0, [held.thetas[0]], [1.0]).finite
    adagrad = parameters(optimizer="adagrad")
    outlier = np.array(adagrad.thetas[0])
    outlier[0] = -1e20  # its square is beyond float32: the weight would never move again
    held_fast = adagrad.propose(0, [*payloads(adagrad, 0, 2), outlier], [0.3, 0.3, 0.4])
    assert np.isfinite(held_fast.theta).all() and not held_fast.finite and held_fast.outlier == 2
    assert adagrad.propose(0, payloads(adagrad, 0, 1), [1.0]).finite


@pytest.mark.parametrize("options", [{}, {"nesterov": False}])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("codec_name", NAMES)
def test_the_kernels_sgd_is_that_of_optax(codec_name: str, momentum: float, options: dict[str, Any]) -> None:
    """With a tensor of the kind mean between others, which has no velocity. Learners grew from another value."""
    tensors = (*TENSORS[:2], Tensor("seen", (5,), "float32", "mean"), TENSORS[2])
    fragment = Fragment(0, tensors)
    random = np.random.default_rng(7)
    initial = random.normal(size=fragment.size).astype(np.float32)
    config = OuterConfig(momentum=momentum, options=options)
    ours, plain = (GlobalParameters([fragment], [initial], config, codec_name, rules(tensors, "rda")) for _ in range(2))
    plain._optimizer.sgd = None
    for version in range(1, 5):
        theta = ours.exact[0]
        moves = [0.1 * random.normal(size=theta.size).astype(np.float32) for _ in range(3)]
        anchor = ours.thetas[0] = plain.thetas[0] = theta + 0.01 * random.normal(size=theta.size).astype(np.float32)
        given = [codec.encode(codec_name, anchor + move, anchor) for move in moves]
        found, wanted = (each.propose(0, given, [0.5, 0.3, 0.2]) for each in (ours, plain))
        for one, other in zip(found.arrays, wanted.arrays, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)
        assert found.norm == pytest.approx(wanted.norm, rel=1e-12)
        for each in (ours, plain):
            each.install(found, version)


@pytest.mark.parametrize("outer", [{}, {"optimizer": "adam"}])
def test_compiling_ahead_changes_nothing(outer: dict[str, Any]) -> None:
    held = parameters(**outer)
    before = [array.copy() for fragment in range(2) for array in held.arrays(fragment)]
    held.warm_up()
    after = [array for fragment in range(2) for array in held.arrays(fragment)]
    assert all(np.array_equal(one, other) for one, other in zip(before, after, strict=True))
    assert held.versions == [0, 0]


# ------------------------------------------------------------------ Muon, an inner optimizer


LR = 0.01


def _tree(seed: int) -> dict[str, jax.Array]:
    keys = jax.random.split(jax.random.key(seed), 4)
    return {
        "embed": jax.random.normal(keys[0], (20, 6)),
        "norm": jax.random.normal(keys[1], (6,)),
        "out": jax.random.normal(keys[2], (6, 10)),
        "experts": jax.random.normal(keys[3], (3, 6, 8)),
    }


def _update(name: str, **options: object) -> dict[str, jax.Array]:
    params, gradients = _tree(0), _tree(1)
    optimizer = resolve("inner", name, LR, options)
    updates, _ = jax.jit(optimizer.update)(gradients, optimizer.init(params), params)
    return dict(updates)


def test_matrices_move_along_orthogonal_ones_of_adams_size() -> None:
    found = _update("muon", weight_decay=0.0)
    for matrix in (found["out"], *found["experts"]):
        values = np.linalg.svd(matrix, compute_uv=False)
        assert values.max() < 2 * values.min(), "five steps of Newton and Schulz bring all singular values near 1"
        size = float(jnp.sqrt(jnp.mean(matrix**2)))
        assert 0.6 * 0.2 * LR < size < 1.4 * 0.2 * LR


def test_what_is_no_hidden_matrix_is_stepped_by_adamw() -> None:
    found, adam = _update("muon", weight_decay=0.0), _update("nadamw", weight_decay=0.0)
    for name in ("embed", "norm"):
        np.testing.assert_array_equal(found[name], adam[name])
    np.testing.assert_array_equal(_update("muon", weight_decay=0.0, adam=["o*"])["out"], adam["out"])


def test_it_is_no_outer_optimizer_and_takes_a_list_of_patterns() -> None:
    with pytest.raises(ValueError, match="muon"):
        OuterOptimizer(OuterConfig(optimizer="muon"))
    with pytest.raises(ValueError, match="a list"):
        resolve("inner", "muon", LR, {"adam": "embed"})


# ------------------------------------------------------------------ a user's own


HERE = "tests.outer.numeric.test_optimizer"
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
