"""Kinds of parameters: merged, mean, local and frozen leaves, from the inner step to the syncer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from safetensors.numpy import save_file

from learners.config import InnerConfig, WarmStart
from learners.training import state_arrays, weights
from learners.training.evaluator import Evaluator
from learners.training.trainer import Trainer
from learners.training.tree import deal, inner_state_bytes, parameter_bytes, tensors_of, unsent
from outer.config import OuterConfig, SyncConfig
from outer.numeric.parameters import GlobalParameters, Proposal
from outer.protocol.fragments import Fragment
from tests.learners.locked import trained
from tests.learners.training.test_trainer import Half

KINDS = {"norm/*": "mean", "ema": "local", "seen": "local", "table": "frozen"}
IN, OUT = 6, 4


class Normed(Half):
    """Regression on features shifted by their running mean; has a leaf of every kind."""

    kinds: ClassVar[Any] = KINDS

    def __init__(self, seed: int = 0) -> None:
        self._truth = np.random.default_rng(seed).normal(size=(IN, OUT)).astype(np.float32)

    def init(self, rng: jax.Array) -> Any:
        return {
            "w": jax.random.normal(rng, (IN, OUT)),
            "b": jnp.zeros(OUT),
            "norm": {"shift": jnp.zeros(IN)},
            "ema": jnp.zeros((IN, OUT)),
            "seen": jnp.int32(0),
            "table": jax.random.normal(rng, (OUT,), jnp.bfloat16),
        }

    def loss(self, params: Any, batch: Any, rng: jax.Array) -> Any:
        x, y = batch
        guess = (x - params["norm"]["shift"]) @ params["w"] + params["b"] + params["table"]
        state = {
            "norm/shift": 0.9 * params["norm"]["shift"] + 0.1 * jnp.mean(x, axis=0),
            "ema": 0.5 * params["ema"] + 0.5 * params["w"],
            "seen": params["seen"] + len(x),
        }
        return jnp.mean((guess - y) ** 2), {"state": state, "size": jnp.mean(jnp.abs(params["w"]))}

    def optimizer(self, inner: InnerConfig) -> optax.GradientTransformation:
        return optax.adamw(inner.lr)

    def batch(self, start: int, count: int) -> Any:
        rows = [np.random.default_rng((7, i)).normal(size=IN) + 1.0 for i in range(start, start + count)]
        x = np.asarray(rows, np.float32)
        return x, x @ self._truth

    def held_out(self, start: int, count: int) -> Any:
        return self.batch(10**6 + start, count)


def where(fragment: Fragment, name: str) -> slice:
    return {tensor.name: elements for tensor, elements in fragment.slices()}[name]


def test_only_merged_and_mean_leaves_are_sent() -> None:
    sent = [tensor.name for fragment in deal(Normed(), SyncConfig(P=2)) for tensor in fragment.tensors]
    assert sorted(sent) == ["b", "norm/shift", "w"]
    assert {tensor.name: tensor.kind for tensor in tensors_of(Normed())} == {
        "w": "merged", "b": "merged", "norm/shift": "mean", "ema": "local", "seen": "local", "table": "frozen",
    }  # fmt: skip


@pytest.mark.parametrize(
    "sync", [{"codec": "int8"}, {"codec": "fp4"}, {"base_window": 1}, {"codec": "bf16", "error_feedback": 0.5}]
)
def test_what_could_make_a_statistic_negative_is_refused_with_the_fix(sync: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"norm/shift is of the kind mean.*set sync\.codec to fp32 or bf16"):
        deal(Normed(), SyncConfig(P=1, H=4, **sync))
    assert deal(Normed(), SyncConfig(P=1, H=4, codec="bf16", downlink="fp4"))


def test_the_inner_optimizer_has_moments_of_merged_leaves_alone() -> None:
    trainer = Trainer(Normed(), deal(Normed(), SyncConfig(P=1)), InnerConfig(), 0)
    shapes = [leaf.shape for leaf in jax.tree.leaves(trainer.opt_state)]
    assert sorted(shapes) == [(), (OUT,), (OUT,), (IN, OUT), (IN, OUT)]  # count, and two moments each of b and w
    sizes = [parameter_bytes(Normed(), InnerConfig(), kinds) for kinds in (("merged",), ("mean",), ("local", "frozen"))]
    assert sizes == [4 * (OUT + IN * OUT), 4 * IN, 4 * IN * OUT + 4 + 2 * OUT]
    assert inner_state_bytes(Normed(), InnerConfig()) == 4 + 2 * 4 * (OUT + IN * OUT)


def test_a_step_moves_merged_leaves_by_gradients_and_the_others_as_the_loss_says() -> None:
    task = Normed()
    trainer = Trainer(task, deal(task, SyncConfig(P=1)), InnerConfig(lr=1e-2), 0)
    before, x = jax.tree.map(np.array, trainer.params), task.batch(0, 8)[0]
    trainer.step(0, 8, 0.5)
    after = jax.tree.map(np.array, trainer.params)
    assert (after["w"] != before["w"]).all()
    assert after["table"].tobytes() == before["table"].tobytes()
    np.testing.assert_allclose(after["norm"]["shift"], 0.1 * x.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(after["ema"], 0.5 * before["w"], rtol=1e-6)
    assert after["seen"] == 8
    assert after["seen"].dtype == np.int32
    assert set(trainer.aux) == {"size"}  # new values of leaves are not reported


def test_each_kind_in_lock_step(monkeypatch: pytest.MonkeyPatch) -> None:
    commits = []
    propose = GlobalParameters.propose

    def noted(self: GlobalParameters, fragment: int, payloads: Any, *more: Any) -> Proposal:
        commits.append((payloads, propose(self, fragment, payloads, *more)))
        return commits[-1][1]

    monkeypatch.setattr(GlobalParameters, "propose", noted)
    sync, inner = SyncConfig(P=1, H=4, tau=0, quorum=2), InnerConfig(lr=1e-2, schedule="constant")
    shell = trained(Normed(), sync, OuterConfig(lr=0.7, momentum=0.9), 2, batch=8, inner=inner)
    place = where(shell.fragments[0], "norm/shift")
    assert len(commits) == 3
    for payloads, proposal in commits:
        average = (payloads[0][place].astype(np.float64) + payloads[1][place]) / 2
        assert (payloads[0][place] != payloads[1][place]).all()
        assert proposal.theta[place].tobytes() == average.astype(np.float32).tobytes()
    one, two = (jax.tree.map(np.array, unit.trainer.params) for unit in shell._units.values())
    fresh = jax.tree.map(np.array, jax.jit(Normed().init)(jax.random.key(0)))
    assert (one["ema"] != two["ema"]).any()
    assert one["seen"] >= 12 * 8
    assert two["seen"] >= 12 * 8
    assert one["table"].tobytes() == two["table"].tobytes() == fresh["table"].tobytes()


@pytest.mark.parametrize("outer", [{}, {"optimizer": "adam", "lr": 0.1}, {"optimizer": "lamb", "lr": 0.1}])
def test_with_one_learner_a_mean_leaf_is_its_value_to_the_bit(outer: dict[str, Any]) -> None:
    held = trained(Normed(), SyncConfig(P=1, H=4, tau=0), OuterConfig(**outer), batch=8).parameters
    place = where(held.fragments[0], "norm/shift")
    theirs = held.thetas[0].copy()
    theirs[place] = np.array([1e30, 1e-30, -0.1, 3e-45, 0.0, 1 / 3], np.float32)  # beyond the range of a difference
    assert held.propose(0, [theirs], [1.0]).theta[place].tobytes() == theirs[place].tobytes()


def test_a_joiner_has_a_peers_leaves_of_every_kind_or_the_syncers_beside_initial_ones() -> None:
    fragments = deal(Normed(), SyncConfig(P=1))
    donor, joiner, alone = (Trainer(Normed(), fragments, InnerConfig(), 0) for _ in range(3))
    for step in range(3):
        donor.step(8 * step, 8, 0.5)
    arrays = state_arrays.pack(donor.state_leaves())
    assert state_arrays.defect(arrays, joiner.state_leaves()) == ""
    joiner.restore(arrays)
    assert differing(joiner.params, donor.params) == set()
    alone.load(0, donor.read(0))
    assert differing(alone.params, donor.params) == {"ema", "seen"}  # table is frozen
    assert alone.params["seen"] == 0


def differing(one: Any, other: Any) -> set[str]:
    return {tensor.name for tensor, a, b in zip(tensors_of(Normed()), *map(jax.tree.leaves, (one, other)), strict=True)
            if np.asarray(a).tobytes() != np.asarray(b).tobytes()}  # fmt: skip


def test_held_out_loss_is_that_of_the_syncers_values_and_the_initial_others() -> None:
    class Shown(Normed):
        def held_out_loss(self, params: Any, batch: Any) -> jax.Array:
            return params["norm"]["shift"][0] + params["table"][0] + params["ema"][0, 0] + params["seen"]

    task = Shown()
    evaluator = Evaluator(task, deal(task, SyncConfig(P=1)), 16, seed=3)
    theta = np.zeros(evaluator.fragments[0].size, np.float32)
    theta[where(evaluator.fragments[0], "norm/shift")] = 7.0
    table = np.asarray(jax.jit(task.init)(jax.random.key(3))["table"][0], np.float32)
    assert evaluator.loss([theta]) == pytest.approx(7.0 + table, rel=1e-6)
    assert set(evaluator.unsent()) == {"ema", "table"}  # whole numbers stay out of files


def test_what_is_not_sent_starts_from_the_warm_start_where_it_has_it(tmp_path: Path) -> None:
    task = Normed()
    fragments = deal(task, SyncConfig(P=1))
    named = {t.name: np.full(t.shape, 0.5, np.float32) for t in tensors_of(task) if t.name not in ("ema", "seen")}
    save_file(named, tmp_path / "base.safetensors")
    assert weights.differences(named, tensors_of(task)) == []
    warm = WarmStart(str(tmp_path / "base.safetensors"), weights.digest(named))
    params = Trainer(task, fragments, InnerConfig(), 0, warm_start=warm).params
    assert (np.asarray(params["table"], np.float32) == 0.5).all()
    assert not np.asarray(params["ema"]).any()
    given, fresh = (np.asarray(unsent(task, 0, start)["table"], np.float32) for start in (warm, None))
    assert (given == 0.5).all() and not (fresh == 0.5).any()
    for content, said in (
        (b"", "not a safetensors file"),
        (b"version https://git-lfs.github.com/spec/v1", "git lfs pull"),
    ):
        (tmp_path / "base.safetensors").write_bytes(content)
        with pytest.raises(ValueError, match=said):
            Trainer(task, fragments, InnerConfig(), 0, warm_start=warm)


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        (["w"], "are a list"),
        ({"w": "still"}, "'w' is 'still'; the kinds are merged, mean, local, frozen"),
        ({"x/*": "frozen"}, r"'x/\*' matches no parameter; the parameters are b, ema"),
        ({"*": "frozen"}, "leave no parameter to train"),
        ({"seen": "mean"}, "'seen' is int32"),
        ({}, "'seen' is int32"),
    ],
)
def test_kinds_that_do_not_fit_are_refused(kinds: Any, said: str) -> None:
    task = Normed()
    vars(task)["kinds"] = kinds
    with pytest.raises(ValueError, match=said):
        deal(task, SyncConfig(P=1))


@pytest.mark.parametrize(
    ("params", "split", "path"),
    [
        ({"a": {"b/c": jnp.zeros(4)}, "a/b": {"c": jnp.zeros(4)}}, False, "a/b/c"),
        ({"l": [jnp.zeros(4)], "l/0": jnp.zeros(4)}, False, "l/0"),
        ({"a": jnp.zeros(4), "a/b": jnp.zeros(4)}, False, "a"),
        ({"w": jnp.zeros((8, 9)), "w[0:2]": jnp.zeros(4)}, True, "w[0:2]"),
    ],
)
def test_two_parameters_of_one_path_are_refused(params: Any, split: bool, path: str) -> None:
    class Doubled(Half):
        def init(self, rng: jax.Array) -> Any:
            return params

    with pytest.raises(ValueError, match=re.escape(f"the path {path!r} names more than one")):
        deal(Doubled(), SyncConfig(P=2, split=split))


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"w": jnp.zeros((IN, OUT))}, "has 'w', which is no leaf of the kind mean or local"),
        ({"table": jnp.zeros(OUT, jnp.bfloat16)}, "has 'table'"),
        ({"norm/shift": jnp.zeros(IN + 1)}, r"is float32\[7\]; give it .* float32\[6\]"),
        ({"seen": jnp.float32(1)}, r"is float32\[\]; give it .* int32\[\]"),
    ],
)
def test_new_values_that_do_not_fit_are_refused(state: Any, said: str) -> None:
    class Wrong(Normed):
        def loss(self, params: Any, batch: Any, rng: jax.Array) -> Any:
            return super().loss(params, batch, rng)[0], {"state": state}

    with pytest.raises(ValueError, match=said):
        Trainer(Wrong(), deal(Wrong(), SyncConfig(P=1)), InnerConfig(), 0).step(0, 8, 0.5)
