"""Token shards: the same samples everywhere, each window once an epoch, and damage is named before it is trained on."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from learners.config import DataConfig
from learners.training.data import corpus, manifest, token_corpus
from learners.training.data.mixture import Permutation
from learners.training.data.token_corpus import TokenCorpus
from learners.training.models.causal_lm import CausalLM
from orchestrator.prepare import shards
from orchestrator.prepare.shards import TokenSpan

LENGTH = 16
TOKENS = 5000


def folder(
    root: Path, tokens: int = TOKENS, shard_tokens: int = 700, vocabulary: int = 60_000, dtype: str = "uint16"
) -> DataConfig:
    """Shards of tokens that tell their place: token i is i, and the held-out ones begin at 50,000."""
    root.mkdir(exist_ok=True)
    files = {}
    for name, first, count in (("train", 0, tokens), ("held_out", 50_000, 200)):
        (root / "all").write_bytes(np.arange(first, first + count).astype(dtype).tobytes())
        span = TokenSpan(root / "all", 0, count)
        files[name] = shards.write(root, name, [span], dtype, shard_tokens, lambda count: None)
    made = manifest.Manifest(1, dtype, vocabulary, 0, None, files["train"], files["held_out"], {})
    (root / manifest.FILE).write_text(made.text())
    return DataConfig(kind="tokens", path=str(root), sequence_length=LENGTH)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 63, 64, 65, 1000, 4097])
def test_a_permutation_takes_each_place_once_and_one_place_costs_no_others(n: int) -> None:
    order = Permutation(n, b"key")
    found = order(np.arange(n))
    assert sorted(found.tolist()) == list(range(n))
    assert order(np.array([n // 2])) == found[n // 2]
    if n >= 63:
        assert (Permutation(n, b"other")(np.arange(n)) != found).mean() > 0.8
        assert abs(np.corrcoef(np.arange(n), found)[0, 1]) < 0.3


def test_a_permutation_of_billions_has_no_memory_of_them() -> None:
    n = 5 * 10**9 + 7
    places = np.arange(10**5) * 49_999
    found = Permutation(n, b"key")(places)
    assert len(set(found.tolist())) == len(places) and found.min() >= 0 and found.max() < n
    counts = np.bincount(found // (n // 10 + 1), minlength=10)
    assert counts.min() > 9_500 and counts.max() < 10_500


def test_samples_depend_on_manifest_seed_and_index_alone(tmp_path: Path) -> None:
    data = folder(tmp_path / "a")
    whole = TokenCorpus(data, seed=3).batch(0, 1000)  # several epochs
    assert whole.shape == (1000, LENGTH + 1) and whole.dtype == np.uint16
    other = TokenCorpus(data, seed=3)
    assert (other.batch(700, 200) == whole[700:900]).all()
    assert (other.batch(7, 1) == whole[7:8]).all()
    assert (TokenCorpus(folder(tmp_path / "b"), seed=3).batch(0, 100) == whole[:100]).all()  # another place
    assert (TokenCorpus(data, seed=4).batch(0, 100) != whole[:100]).any()
    assert other.digest == hashlib.sha256((tmp_path / "a" / manifest.FILE).read_bytes()).hexdigest()


def test_an_epoch_takes_each_window_once_across_the_ends_of_shards(tmp_path: Path) -> None:
    found = TokenCorpus(folder(tmp_path, shard_tokens=7), seed=0)  # a sample lies in three shards
    phases = set()
    for epoch in range(3):
        samples = found.batch(epoch * found.windows, found.windows).astype(int)
        assert (np.diff(samples, axis=1) == 1).all()
        first = sorted(samples[:, 0].tolist())
        assert first == list(range(first[0], first[0] + found.windows * LENGTH, LENGTH)) and first[0] < LENGTH
        phases.add(first[0])
    assert len(phases) > 1


def test_held_out_samples_are_other_tokens_and_come_again(tmp_path: Path) -> None:
    found = TokenCorpus(folder(tmp_path), seed=0)
    windows = 199 // LENGTH
    samples = found.held_out_batch(0, 2 * windows)
    assert samples.min() >= 50_000 and (samples[:windows] == samples[windows:]).all()
    assert len(np.unique(samples[:windows, 0])) == windows


def test_many_shards_need_few_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_corpus, "SHARDS_OPEN_MAX", 3)
    found = TokenCorpus(folder(tmp_path, shard_tokens=100), seed=0)
    assert (np.diff(found.batch(0, found.windows).astype(int), axis=1) == 1).all()
    assert len(found.train._open) == 3


@pytest.mark.parametrize(
    ("file", "harm", "said"),
    [
        ("train-00003.tokens", "remove", "train-00003.tokens is missing"),
        ("held_out-00000.tokens", "cut", "held_out-00000.tokens has 399 bytes instead of 400"),
        ("train-00000.sums", "cut", "train-00000.sums has 7 bytes instead of 8"),
        (manifest.FILE, "cut", "is damaged"),
        (manifest.FILE, "remove", "cannot be read there"),
    ],
)
def test_a_folder_that_is_not_whole_is_refused_at_the_start(tmp_path: Path, file: str, harm: str, said: str) -> None:
    data = folder(tmp_path)
    path = tmp_path / file
    content = path.read_bytes()
    path.unlink() if harm == "remove" else path.write_bytes(content[:-1])
    for ask in (lambda: corpus.check(data), lambda: corpus.corpus(data, 0)):
        if file != manifest.FILE or harm != "cut":
            with pytest.raises(ValueError, match=f"data.path = .*{said}.*; "):
                ask()
    if file == manifest.FILE and harm == "cut":
        path.write_bytes(content[: len(content) // 2])
        with pytest.raises(ValueError, match=said):
            corpus.check(data)


def test_a_changed_shard_is_named_when_it_is_read_and_the_others_are_not(tmp_path: Path) -> None:
    data = folder(tmp_path, tokens=60_000, shard_tokens=40_000, dtype="uint32")
    path = tmp_path / "train-00001.tokens"
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    corpus.check(data)
    found = TokenCorpus(data, seed=0).train
    assert (found.read(np.array([39_990]), 20) == np.arange(39_990, 40_010)).all()
    with pytest.raises(ValueError, match=r"data.path = .*train-00001.tokens has changed.*; .*SHA-256"):
        found.read(np.array([59_990]), 10)


def test_a_token_outside_the_vocabulary_is_named(tmp_path: Path) -> None:
    data = folder(tmp_path, vocabulary=4000)
    found = TokenCorpus(data, seed=0).train
    with pytest.raises(ValueError, match=r"train-00005.tokens has tokens outside the vocabulary of 4,000"):
        found.read(np.array([4100]), 10)


def test_too_few_tokens_and_no_folder_are_told_with_the_fix(tmp_path: Path) -> None:
    data = folder(tmp_path)
    with pytest.raises(ValueError, match=r"5,000 tokens, and 200 held out, are too few .* = 300 .*; prepare more"):
        corpus.check(data.model_copy(update={"sequence_length": 300}))
    with pytest.raises(ValueError, match=r"data.path = None: .*diloco data prepare"):
        corpus.check(DataConfig(kind="tokens"))
    later = json.loads((tmp_path / manifest.FILE).read_text()) | {"format": 2}
    (tmp_path / manifest.FILE).write_text(json.dumps(later))
    with pytest.raises(ValueError, match=r"format 2 .* reads format 1"):
        corpus.check(data)


def test_the_decoder_takes_shards_of_bytes(tmp_path: Path) -> None:
    data = folder(tmp_path / "bytes", vocabulary=256, dtype="uint8")
    task = CausalLM(data, 0, layers=1, width=16, heads=2)
    assert (np.diff(task.batch(0, 4), axis=1) == 1).all()
