"""Sampling: what is drawn follows from the model's own next-token scores, within a window that moves along."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learners.config import DataConfig
from learners.training import evaluator, tree
from learners.training.models import language
from learners.training.models.language import ByteLanguageModel

LENGTH = 6  # of the window


@pytest.fixture(scope="module")
def task() -> ByteLanguageModel:
    return ByteLanguageModel(DataConfig(path="/no/such/text", sequence_length=LENGTH), 0, layers=1, width=16, heads=2)


@pytest.fixture(scope="module")
def params(task: ByteLanguageModel) -> Any:
    return jax.jit(task.init)(jax.random.key(1))


@pytest.fixture(scope="module")
def scores(task: ByteLanguageModel, params: Any) -> Any:
    """The next byte's logits after some bytes."""
    return jax.jit(lambda tokens: language.logits(params, tokens[None], task.config)[0, -1])


def drawn(task: ByteLanguageModel, params: Any, prompt: bytes = b"abc", **options: Any) -> bytes:
    given: dict[str, Any] = {"length": 16, "temperature": 1.0, "top_k": 0, "rng": jax.random.key(0)} | options
    return task.sample(params, prompt, **given)


@pytest.mark.parametrize("prompt", [b"abc", b"a prompt that is longer than the window", b""])
def test_the_likeliest_bytes_are_those_of_a_plain_loop_over_the_last_window(
    task: ByteLanguageModel, params: Any, scores: Any, prompt: bytes
) -> None:
    said = list(prompt or b"\n")
    for _ in range(16):
        said.append(int(jnp.argmax(scores(jnp.asarray(said[-LENGTH:])))))
    assert drawn(task, params, prompt, temperature=0.0) == bytes(said[-16:])


@pytest.mark.full
def test_a_seed_repeats_and_another_differs_and_few_choices_are_kept_to(
    task: ByteLanguageModel, params: Any, scores: Any
) -> None:
    assert drawn(task, params) == drawn(task, params)
    assert drawn(task, params) != drawn(task, params, rng=jax.random.key(1))
    assert drawn(task, params, top_k=1) == drawn(task, params, temperature=0.0)
    likeliest = set(np.argsort(scores(jnp.asarray(list(b"abc"))))[-3:].tolist())
    several = {drawn(task, params, top_k=3, rng=jax.random.key(seed))[0] for seed in range(6)}
    assert len(several) > 1 and several <= likeliest
    assert drawn(task, params, top_k=10_000) == drawn(task, params), "more than there are is all"


def test_parameters_by_name_are_put_where_they_belong_and_others_refused(task: ByteLanguageModel, params: Any) -> None:
    paths = jax.tree_util.tree_flatten_with_path(params)[0]
    named = {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in paths}
    said = evaluator.sample(task, tree.parameters(task, named), b"abc", 16, 1.0, 0, seed=0)
    assert said == drawn(task, params)
    with pytest.raises(ValueError, match="norm is missing"):
        tree.parameters(task, {name: leaf for name, leaf in named.items() if name != "norm"})
