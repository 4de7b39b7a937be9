"""The corpus: the same samples everywhere, each once an epoch, none of them held out."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

from learners.config import DataConfig
from learners.training.data.byte_corpus import ByteCorpus, check

LENGTH = 16


def folder(root: Path, files: int = 30, size: int = 400) -> DataConfig:
    """Files whose bytes tell the file and the place: none repeats another's sequences."""
    random = np.random.default_rng(0)
    for index in range(files):
        path = root / f"part{index % 3}" / f"{index:02}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.integers(32, 127, size, dtype=np.uint8).tobytes())
    return DataConfig(path=str(root), sequence_length=LENGTH, held_out=0.2)


def test_samples_depend_on_seed_and_index_alone(tmp_path: Path) -> None:
    data = folder(tmp_path)
    whole = ByteCorpus(data, seed=3).batch(0, 3000)  # several epochs
    other = ByteCorpus(data, seed=3)
    assert (other.batch(2000, 500) == whole[2000:2500]).all()
    assert (other.batch(7, 1) == whole[7:8]).all()
    assert whole.dtype == np.uint8
    assert whole.shape == (3000, LENGTH + 1)
    assert (ByteCorpus(data, seed=4).batch(0, 100) != whole[:100]).any()


def test_an_epoch_takes_each_window_of_the_training_text_once(tmp_path: Path) -> None:
    corpus = ByteCorpus(folder(tmp_path), seed=0)
    text = corpus.train.tobytes()
    phases = set()
    for epoch in range(3):
        samples = corpus.batch(epoch * corpus.windows, corpus.windows)
        unsorted = [text.index(sample.tobytes()) for sample in samples]
        assert (np.diff(unsorted) == LENGTH).mean() < 0.05
        offsets = sorted(unsorted)
        assert offsets == list(range(offsets[0], offsets[0] + corpus.windows * LENGTH, LENGTH))
        assert offsets[0] < LENGTH
        phases.add(offsets[0])
    assert len(phases) > 1
    first, second = corpus.batch(0, corpus.windows), corpus.batch(corpus.windows, corpus.windows)
    assert (first != second).any(axis=1).mean() > 0.9


def test_no_training_sample_is_held_out(tmp_path: Path) -> None:
    corpus = ByteCorpus(folder(tmp_path), seed=0)
    train, held_out = corpus.train.tobytes(), corpus.held_out.tobytes()
    assert len(train) + len(held_out) == 30 * 400
    assert all(sample.tobytes() not in held_out for sample in corpus.batch(0, corpus.windows))
    assert all(sample.tobytes() in held_out for sample in corpus.held_out_batch(0, 50))
    assert all(sample.tobytes() not in train for sample in corpus.held_out_batch(0, 50))


def test_adding_a_file_moves_no_other_between_training_and_held_out(tmp_path: Path) -> None:
    data = folder(tmp_path, files=90)
    before = ByteCorpus(data, seed=0).held_out.tobytes()
    (tmp_path / "zz.txt").write_bytes(b"0123456789" * 40)
    after = ByteCorpus(data, seed=0).held_out.tobytes()
    assert after.startswith(before)


def test_one_single_file_is_cut_in_two(tmp_path: Path) -> None:
    path = tmp_path / "only.txt"
    path.write_bytes(bytes(range(32, 127)) * 20)
    corpus = ByteCorpus(DataConfig(path=str(path), sequence_length=LENGTH, held_out=0.1), seed=0)
    assert corpus.train.tobytes() + corpus.held_out.tobytes() == path.read_bytes()
    assert len(corpus.held_out) == 190


def test_what_is_held_out_is_near_its_share_whatever_the_sizes_of_files(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    for name, sizes in (
        ("one large", [300_000, *[200] * 40]),
        ("two", [4000, 4000]),
        ("many", random.pareto(1.0, 200) * 500),
    ):
        (tmp_path / name).mkdir()
        for number, size in enumerate(sizes):
            (tmp_path / name / f"{number}.txt").write_bytes(b"x" * int(size))
        for share in (0.01, 0.2, 0.9):
            corpus = ByteCorpus(DataConfig(path=str(tmp_path / name), sequence_length=LENGTH, held_out=share), seed=0)
            total = len(corpus.train) + len(corpus.held_out)
            assert total == sum(map(int, sizes))
            assert 0.5 * share <= len(corpus.held_out) / total <= 1.5 * share, (name, share)
    for share in (0.001, 0.999):  # of two files, enough for a sample on each side
        data = DataConfig(path=str(tmp_path / "two"), sequence_length=LENGTH, held_out=share)
        corpus = ByteCorpus(data, seed=0)
        assert min(len(corpus.train) - LENGTH, len(corpus.held_out)) > LENGTH - 1


def test_linked_folders_are_read_once_and_what_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    folder(tmp_path / "in", files=6)
    folder(tmp_path / "other", files=3)
    os.symlink(tmp_path / "other", tmp_path / "in" / "linked")
    os.symlink(tmp_path / "in", tmp_path / "other" / "back")
    data = DataConfig(path=str(tmp_path / "in"), sequence_length=LENGTH)
    corpus = ByteCorpus(data, seed=0)
    assert len(corpus.train) + len(corpus.held_out) == 9 * 400
    (tmp_path / "in" / os.fsdecode(b"\xff.txt")).write_bytes(b"a name that is no UTF-8 " * 9)
    grown = ByteCorpus(data, seed=0)
    assert len(grown.train) + len(grown.held_out) == 9 * 400 + 9 * 24
    os.symlink("nowhere", tmp_path / "in" / "broken.txt")
    os.mkfifo(tmp_path / "in" / "pipe.txt")
    (tmp_path / "in" / "pointer.txt").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    for refuse in (check, lambda data: ByteCorpus(data, 0)):
        with pytest.raises(
            ValueError, match=r"broken.txt is a broken link, pipe.txt is no regular.*pointer.txt is a g"
        ):
            refuse(data)


def test_a_folder_gives_its_sources_and_a_glob_whatever_it_matches(tmp_path: Path) -> None:
    text = b"some words, " * 30
    (tmp_path / "a.rst").write_bytes(text)
    (tmp_path / ".hidden.md").write_bytes(text * 9)
    with pytest.raises(ValueError, match="no text files there; give a folder with text files, or a glob"):
        ByteCorpus(DataConfig(path=str(tmp_path), sequence_length=LENGTH), seed=0)
    (tmp_path / "c.md").write_bytes(text * 2)
    corpus = ByteCorpus(DataConfig(path=str(tmp_path), sequence_length=LENGTH), seed=0)
    assert len(corpus.train) + len(corpus.held_out) == 2 * len(text)
    star = DataConfig(path=str(tmp_path / "*.rst"), sequence_length=LENGTH)
    assert len(ByteCorpus(star, seed=0).train) < len(text)


@pytest.mark.parametrize("name", ["missing", "empty", "small"])
def test_a_path_without_enough_text_is_refused_with_field_and_fix(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "a.txt").write_bytes(b"x" * 20)
    data = DataConfig(path=str(tmp_path / name), sequence_length=LENGTH)
    for build in (check, lambda data: ByteCorpus(data, 0)):
        with pytest.raises(ValueError, match=re.escape("data.path = ") + ".*give"):
            build(data)


def test_the_default_corpus_is_the_standard_library() -> None:
    check(DataConfig())
    corpus = ByteCorpus(DataConfig(), seed=0)
    assert len(corpus.train) > 5_000_000
    assert b"import" in corpus.held_out.tobytes()
