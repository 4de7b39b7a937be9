"""The decoder: its parts against plain formulas, in pieces, and in bfloat16."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from learners.config import DataConfig, InnerConfig
from learners.training.models import decoder, layers
from learners.training.models.causal_lm import CausalLM
from learners.training.precision import precise
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.validation import problems

SMALL = {"layers": 1, "width": 16, "heads": 4, "kv_heads": 2, "hidden": 24}


def task(**model: Any) -> CausalLM:
    return CausalLM(DataConfig(path="/no/such/text", sequence_length=12), 0, **(SMALL | model))


def fresh(model: CausalLM) -> Any:
    """Parameters like those of init, without compiling it."""
    drawn = np.random.default_rng(0)

    def leaf(like: Any) -> jax.Array:
        values = np.ones(like.shape) if len(like.shape) == 1 else drawn.normal(size=like.shape, scale=0.25)
        return jnp.asarray(values, jnp.float32)

    return jax.tree.map(leaf, jax.eval_shape(model.init, jax.random.key(0)))


def tokens(vocabulary: int = 256) -> Any:
    return np.random.default_rng(0).integers(0, vocabulary, (4, 13)).astype(np.uint16)


def differ(one: Any, other: Any) -> float:
    """The largest difference of two trees, relative to the largest element of each leaf."""
    pairs = zip(jax.tree.leaves(jax.device_get(one)), jax.tree.leaves(jax.device_get(other)), strict=True)
    return max(float(np.abs(a - b).max() / (np.abs(b).max() + 1e-9)) for a, b in pairs)


# ------------------------------------------------------------------ cross-entropy


@pytest.mark.parametrize("most", [1, 4 * 50 * 3, 4 * 50 * 5])
def test_cross_entropy_in_pieces_is_that_of_the_whole_with_its_gradients(most: int) -> None:
    x = jax.random.normal(jax.random.key(0), (4, 13, 3))
    head, targets = jax.random.normal(jax.random.key(1), (3, 50)), jnp.asarray(tokens(50), jnp.int32)

    def nats(x: Any, head: Any, most: int) -> jax.Array:
        return decoder.cross_entropy(x, head, targets, most)

    both = jax.jit(jax.value_and_grad(nats, argnums=(0, 1)), static_argnums=2)
    whole, pieces = both(x, head, 1 << 30), both(x, head, most)
    picked = jnp.take_along_axis(jax.nn.log_softmax(x @ head), targets[..., None], axis=-1)
    assert whole[0] == pytest.approx(float(-jnp.mean(picked)), rel=1e-5)
    assert differ(pieces, whole) < 1e-5
    made = jax.make_jaxpr(both, static_argnums=2)(x, head, most)
    sizes = {int(np.prod(size)) for size in _shapes(made.jaxpr) if size[-1:] == (50,)}
    assert max(sizes) <= max(most, 4 * 50), "no array of logits is larger than a piece, of one position at least"


def _shapes(jaxpr: Any) -> set[tuple[int, ...]]:
    """The shapes of all values of a program and of those inside it."""
    found = {tuple(value.aval.shape) for equation in jaxpr.eqns for value in equation.outvars}
    for equation in jaxpr.eqns:
        for inner in jaxprs_in_params(equation.params):
            found |= _shapes(inner)
    return found


# ------------------------------------------------------------------ attention


def test_a_token_sees_none_after_it_and_groups_of_queries_share_keys() -> None:
    model = task()
    params = fresh(model)
    given = jnp.asarray(tokens()[:, :-1], jnp.int32)
    seen = jax.jit(lambda given: decoder.features(params, given, model.config))
    plain, changed = np.asarray(seen(given)), np.asarray(seen(given.at[:, 7].set(3)))
    np.testing.assert_array_equal(changed[:, :7], plain[:, :7])
    assert np.abs(changed[:, 7:] - plain[:, 7:]).max() > 1e-3
    shared = dict(params["blocks"][0]["attention"])
    repeated = shared | {
        name: jnp.repeat(shared[name].reshape(16, 2, 4), 2, axis=1).reshape(16, 16) for name in ("key", "value")
    }
    x, angles = jax.random.normal(jax.random.key(1), (2, 12, 16)), layers.rotary(12, 4, 1e4)
    attend = jax.jit(layers.attention, static_argnums=(2, 3))
    np.testing.assert_allclose(attend(shared, x, 4, 1e-6, angles), attend(repeated, x, 4, 1e-6, angles), atol=1e-5)


# ------------------------------------------------------------------ precision, memory


@pytest.mark.full
def test_computing_activations_again_changes_nothing_and_bfloat16_little() -> None:
    model: dict[str, Any] = {"architecture": "qwen3", "tied": False}
    plain, again = task(**model), task(**model, remat=True)
    params = fresh(plain)
    loss = lambda one: jax.jit(jax.value_and_grad(lambda params: one.loss(params, tokens(), None)[0]))(params)  # noqa: E731
    assert differ(loss(again), loss(plain)) < 1e-5
    narrow = precise(plain, InnerConfig(compute="bfloat16"))
    found, _ = jax.jit(narrow.loss)(params, tokens(), jax.random.key(0))
    assert found.dtype == jnp.float32
    assert float(found) == pytest.approx(float(loss(plain)[0]), rel=0.02)


# ------------------------------------------------------------------ the recipe's words


def found(**model: Any) -> list[tuple[str, str]]:
    recipe = {"name": "a", "task": "learners.training.models.causal_lm:CausalLM", "pools": [{"name": "a"}]}
    recipe |= {"budget": {"tokens": 10**6}, "model": model}
    return [(each.field, each.message) for each in problems(Recipe.model_validate(recipe))]


def test_sizes_that_do_not_fit_are_all_named() -> None:
    assert found(**SMALL) == []
    ((field, message),) = found(vocabulary=100)
    assert field == "model.vocabulary" and "256 tokens" in message
    ((_, message),) = found(width=20, heads=4, kv_heads=3)
    assert all(words in message for words in ("width = 20", "kv_heads = 3"))
    assert [field for field, _ in found(depth=3, layers=0)] == ["model.layers", "model.depth"]
