"""Large tensors cut into pieces: fragments of one size, whole tensors again everywhere else, and the same training."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import outer.protocol.fragments
from benchmarks.harness.lockstep import LockStep
from examples.shapes.task import Shapes
from learners.config import DataConfig, InnerConfig
from learners.training import weights
from learners.training.evaluator import Evaluator
from learners.training.trainer import Trainer
from learners.training.tree import deal, initial_parameters, tensors_of
from outer import first_values
from outer.config import OuterConfig, SyncConfig
from outer.journal.object_store import Folder
from outer.numeric.rules import rules
from tests.learners.locked import trained
from tests.learners.training.test_trainer import Half

BATCH, SEED = 4, 3
CUT = SyncConfig(P=4, H=4, split=True)


class Wide(Half):
    """A table that outweighs the rest, beside statistics and a kernel with a short first axis."""

    kinds: ClassVar = {"seen": "mean"}
    merge_rules: ClassVar = {"table": "avg"}

    def __init__(self, data: DataConfig | None = None, seed: int = 0) -> None:
        del data, seed

    def init(self, rng: jax.Array) -> dict[str, jax.Array]:
        drawn = jnp.sin(jnp.arange(480.0))
        return {
            "b": drawn[:5],
            "kernel": drawn[:144].reshape(2, 2, 12, 3),
            "seen": drawn[:60],
            "table": drawn.reshape(80, 6),
        }

    def loss(self, params: Any, batch: Any, rng: jax.Array) -> Any:
        pulled = [params[name].astype(jnp.float32) - batch.mean() for name in ("b", "kernel", "table")]
        return sum(((leaf**2).sum() for leaf in pulled), jnp.float32(0)), {
            "state": {"seen": 0.9 * params["seen"] + 0.1 * batch.mean()}
        }

    def optimizer(self, inner: InnerConfig) -> optax.GradientTransformation:
        return optax.adam(inner.lr)

    def batch(self, start: int, count: int) -> Any:
        return np.sin(np.arange(start, start + count, dtype=np.float32))

    held_out = batch


class Plain(Wide):
    """All of it stepped, and merged by the recipe's rule."""

    kinds: ClassVar = {}
    merge_rules: ClassVar = {}

    def loss(self, params: Any, batch: Any, rng: jax.Array) -> Any:
        return super().loss(params, batch, rng)[0], {}


def sizes(sync: SyncConfig, task: Any) -> list[int]:
    return [fragment.size for fragment in deal(task, sync)]


def test_fragments_of_a_small_cnn_have_about_one_size() -> None:
    task = Shapes(DataConfig(sequence_length=1), 0)
    whole, cut = (sizes(SyncConfig(P=8, H=8, split=split), task) for split in (False, True))
    assert sum(whole) == sum(cut)
    assert max(whole) / np.mean(whole) > 6.0
    assert max(cut) / np.mean(cut) < 1.2


def test_a_split_model_may_have_more_fragments_than_tensors() -> None:
    assert len(deal(Wide(), SyncConfig(P=12, H=12, split=True))) == 12
    with pytest.raises(ValueError, match=r"4 tensors, and .* largest P is 4"):
        deal(Wide(), SyncConfig(P=12, H=12))


def test_pieces_are_named_by_their_places_and_have_the_rule_of_their_leaf() -> None:
    tensors = {tensor.name: tensor for fragment in deal(Wide(), CUT) for tensor in fragment.tensors}
    assert {name for name in tensors if "[" not in name} == {"b", "kernel", "seen"}
    assert sum(name.startswith("table[") for name in tensors) == 6
    assert {rules([each], "rda", Wide.merge_rules)[each.name] for each in tensors.values() if each.leaf} == {"avg"}
    finer = [t.name for fragment in deal(Wide(), SyncConfig(P=18, H=18, split=True)) for t in fragment.tensors]
    assert {"kernel[:,:,0:1]", "seen[0:15]"} <= set(finer), "the first axis that is long enough"


@pytest.fixture(scope="module", params=["task", "bfloat16"])
def pair(request: Any) -> tuple[Trainer, Trainer]:
    """Two trainers of one task, the second with pieces, stepped alike."""
    inner = InnerConfig(lr=1e-2, parameters=request.param)
    made = [Trainer(Wide(), deal(Wide(), sync), inner, 0) for sync in (SyncConfig(P=4, H=4), CUT)]
    for trainer in made:
        trainer.warm_up(BATCH)
        trainer.step(0, BATCH, 0.5)
    return made[0], made[1]


def joined(trainer: Trainer, thetas: list[Any]) -> dict[str, bytes]:
    return {name: values.tobytes() for name, values in weights.joined(trainer.fragments, thetas).items()}


@pytest.mark.parametrize("mode", ["overwrite", "rebase"])
def test_reading_and_every_way_to_adopt_do_with_pieces_what_they_do_with_leaves(
    pair: tuple[Trainer, Trainer], mode: str
) -> None:
    drawn = np.random.default_rng(1)
    shapes = {tensor.name: tensor.shape for tensor in tensors_of(Wide())}
    theta, anchor, before = (
        {name: drawn.normal(size=shape).astype(np.float32) for name, shape in shapes.items()} for _ in range(3)
    )
    found = []
    for trainer in pair:
        cut = [weights.dealt(values, trainer.fragments) for values in (theta, anchor, before)]
        count = range(len(trainer.fragments))
        moved = [trainer.adopt(at, cut[0][at], mode, cut[1][at], cut[2][at]) for at in count]
        exact = [cut[0][at] if moved[at] is None else np.asarray(moved[at]) for at in count]
        leaves = [leaf.tobytes() for leaf in jax.tree.leaves(trainer.params)]
        found.append((leaves, joined(trainer, [trainer.read(at) for at in count]), exact))
    assert found[0][:2] == found[1][:2]
    if pair[0]._inner.parameters == "bfloat16" and mode != "overwrite":  # else some fragments have nothing to round
        whole, cut = (joined(trainer, each[2]) for trainer, each in zip(pair, found, strict=True))
        assert whole["table"] == cut["table"] and whole["kernel"] == cut["kernel"]


def test_adopting_a_piece_writes_into_the_leaf_and_copies_of_it_are_no_larger(pair: tuple[Trainer, Trainer]) -> None:
    trainer = pair[1]
    index, tensor = next((f.index, t) for f in trainer.fragments for t in f.tensors if t.path == "table")
    leaf = trainer._tree.leaf_of["table"]
    at = trainer._leaves[leaf].unsafe_buffer_pointer()
    copy = trainer.copy(index)
    trainer.load(index, trainer.read(index) + np.float32(1.0))
    assert trainer._leaves[leaf].unsafe_buffer_pointer() == at, "its memory is used again"
    assert copy.size == trainer.fragments[index].size
    assert trainer._locals(index)[trainer.fragments[index].tensors.index(tensor)].shape == tensor.shape


def test_initial_values_a_warm_start_and_evaluation_have_whole_tensors(tmp_path: Path) -> None:
    task, uncut = Wide(), deal(Wide(), SyncConfig(P=4, H=4))
    fragments = deal(task, CUT)
    thetas, whole = (initial_parameters(task, each, SEED) for each in (fragments, uncut))
    tensors, same = weights.joined(fragments, thetas), weights.joined(uncut, whole)
    assert {name: each.tobytes() for name, each in tensors.items()} == {n: each.tobytes() for n, each in same.items()}
    for given, back in zip(thetas, weights.dealt(tensors, fragments), strict=True):
        assert given.tobytes() == back.tobytes()
    assert weights.differences(tensors, tensors_of(task)) == []
    assert Evaluator(task, fragments, 8).loss(thetas) == Evaluator(task, uncut, 8).loss(whole)
    store = Folder(tmp_path)
    first_values.save(store, 1, dict(enumerate(thetas)))
    first_values.finish(store, 1, first_values.ModelLayout(fragments, {}, {}))
    saved = first_values.load(store, 1, range(len(fragments)))
    assert saved is not None and saved[0] == fragments


# ------------------------------------------------------------------ whole runs


def cut_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors are cut far below the mean, so that a split run may have the schedule of one that is not split."""
    monkeypatch.setattr(outer.protocol.fragments, "LARGE", 0.2)
    monkeypatch.setattr(outer.protocol.fragments, "PIECE", 0.1)


def ours(shell: LockStep) -> dict[str, bytes]:
    return {name: values.tobytes() for name, values in weights.joined(shell.fragments, shell.parameters.thetas).items()}


def test_with_avg_a_split_run_has_the_bits_of_one_that_is_not_and_with_rda_it_has_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cut_much(monkeypatch)
    whole, cut = (SyncConfig(P=1, H=3, tau=1, split=split) for split in (False, True))
    for rule, same in (("avg", True), ("rda", False)):
        one, two = (trained(Plain(), sync, OuterConfig(merge=rule), 3, batch=BATCH) for sync in (whole, cut))
        assert len(two.fragments[0].tensors) > len(one.fragments[0].tensors)
        assert (ours(one) == ours(two)) is same, rule
