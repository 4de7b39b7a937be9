"""Mixtures of corpora: exact weights, and samples that follow from their number."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from learners.config import DataConfig
from learners.training.data import corpus
from learners.training.data.mixture import BLOCK, MixedCorpus, apportioned
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.validation import problems
from tests.learners.training.test_token_corpus import folder


class Numbers:
    """A corpus whose sample i is [name, i]."""

    vocabulary = 1 << 20

    def __init__(self, name: int) -> None:
        self.name = name
        self.calls = 0

    def batch(self, start: int, count: int) -> Any:
        self.calls += 1
        return np.array([[self.name, start + row] for row in range(count)])

    held_out_batch = batch

    def encode(self, text: bytes) -> Any:
        return np.frombuffer(text, np.uint8)

    def decode(self, tokens: Any) -> bytes:
        return bytes(tokens.astype(np.uint8))


def mixed(*weights: float, seed: int = 0) -> MixedCorpus:
    return MixedCorpus([Numbers(name) for name in range(len(weights))], weights, seed, "digest")


def test_every_block_has_its_shares_and_a_source_gives_each_sample_once_in_order() -> None:
    made = mixed(5, 0, 3, 2)
    rows = made.batch(0, 3 * BLOCK)
    for block in range(3):
        counted = Counter(rows[block * BLOCK : (block + 1) * BLOCK, 0].tolist())
        assert counted == {0: 500, 2: 300, 3: 200}
    for name, each in ((0, 1500), (2, 900), (3, 600)):
        assert rows[rows[:, 0] == name, 1].tolist() == list(range(each))


def test_a_sample_follows_from_its_number_however_it_is_asked_for() -> None:
    whole = mixed(2, 1).batch(0, 2500)
    again = mixed(2, 1)
    for start, stop in pairwise([1990, 2000, 2013, 2500, 2500 - 7][:4]):
        np.testing.assert_array_equal(again.batch(start, stop - start), whole[start:stop])
    np.testing.assert_array_equal(again.batch(3, 5), whole[3:8])
    assert (mixed(2, 1, seed=1).batch(0, 100) != whole[:100]).any(), "the seed decides the order"


def test_a_batch_reads_each_source_once() -> None:
    made = mixed(1, 1)
    made.batch(0, 64)
    assert [source.calls for source in made._sources] == [1, 1]  # type: ignore[attr-defined]


@pytest.mark.parametrize("weights", [(1.0,), (1e-9, 1.0), (1, 1, 1), (0.5, 0.25, 0.125), tuple([1e-6] * 40 + [1])])
def test_shares_add_up_and_leave_nobody_out(weights: tuple[float, ...]) -> None:
    counts = apportioned(weights)
    assert counts.sum() == BLOCK and counts.min() >= 1
    assert apportioned((0.0, *weights))[0] == 0


# ------------------------------------------------------------------ of files, in recipes


@pytest.fixture
def folders(tmp_path: Path) -> list[dict[str, Any]]:
    found = []
    for name, letter in (("a", "a"), ("b", "b")):
        folder = tmp_path / name
        folder.mkdir()
        for number in range(3):
            (folder / f"{number}.txt").write_text(f"{letter}" * 400)
        found.append({"name": name, "path": str(folder), "weight": 1.0})
    return found


def test_a_mixture_of_bytes_opens_and_mixes_held_out_samples_too(folders: list[dict[str, Any]]) -> None:
    data = DataConfig.model_validate({"mixture": folders, "sequence_length": 8})
    corpus.check(data)
    made = corpus.corpus(data, 0)
    assert (corpus.digest(data), corpus.vocabulary(data)) == (None, 256)
    for rows in (made.batch(0, BLOCK), made.held_out_batch(0, BLOCK)):
        assert rows.shape == (BLOCK, 9) and Counter(rows[:, 0].tolist()) == {ord("a"): 500, ord("b"): 500}


def test_what_cannot_be_mixed_is_refused_with_the_source(folders: list[dict[str, Any]], tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="own kind and path"):
        DataConfig.model_validate({"mixture": folders, "path": "elsewhere"})
    with pytest.raises(ValidationError, match="more than once"):
        DataConfig.model_validate({"mixture": [folders[0], folders[0]]})
    with pytest.raises(ValidationError, match="no weight above 0"):
        DataConfig.model_validate({"mixture": [folders[0] | {"weight": 0}]})
    gone = [folders[0] | {"path": str(tmp_path / "gone")}, folders[1] | {"path": str(tmp_path / "lost")}]
    with pytest.raises(ValueError, match=r"gone.*lost"):
        corpus.check(DataConfig.model_validate({"mixture": gone}))


def shards_of(*roots: Path) -> dict[str, Any]:
    return {
        "mixture": [{"name": root.name, "kind": "tokens", "path": str(root)} for root in roots],
        "sequence_length": 16,
    }


def test_sources_whose_tokens_mean_something_else_or_have_changed_are_refused(tmp_path: Path) -> None:
    one, two, odd = tmp_path / "one", tmp_path / "two", tmp_path / "odd"
    folder(one)
    folder(two, tokens=4000)
    folder(odd, vocabulary=50_300)
    data = DataConfig.model_validate(shards_of(one, two))
    kept = data.model_copy(update={"digest": corpus.digest(data)})
    assert corpus.corpus(kept, 0).batch(0, 10).shape == (10, 17)
    with pytest.raises(ValueError, match="tokens of odd do not mean what those of one do"):
        corpus.check(DataConfig.model_validate(shards_of(one, two, odd)))
    folder(two, tokens=4100)
    with pytest.raises(ValueError, match=r"data.mixture: its shards have digest .* the run began with"):
        corpus.corpus(kept, 0)


def test_a_held_out_set_that_cannot_be_used_is_named_with_the_fix(tmp_path: Path) -> None:
    def found(*sets: dict[str, Any]) -> list[Any]:
        tables = {"name": "r", "pools": [{"name": "a"}], "budget": {"tokens": 1}, "eval": {"sets": sets}}
        return problems(Recipe.model_validate(tables))

    [lost] = found({"name": "own"}, {"name": "lost", "path": str(tmp_path / "nowhere")})
    assert (lost.field, lost.value) == ("eval.sets.1", "lost") and "no such file or folder" in lost.message
    folder(tmp_path / "tokens", vocabulary=300)
    [odd] = found({"name": "odd", "kind": "tokens", "path": str(tmp_path / "tokens")})
    assert "do not mean what the run's do" in odd.message and "tokenizer.json" in odd.fix
    with pytest.raises(ValidationError, match="sets names twice more than once"):
        found({"name": "twice"}, {"name": "twice"})
