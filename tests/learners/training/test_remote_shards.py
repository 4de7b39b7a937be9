"""Token shards in object storage: copied once for a host as they are needed, and never trusted unchecked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learners.config import DataConfig
from learners.training.data import corpus, manifest
from learners.training.data.shard_folder import CACHE
from learners.training.data.token_corpus import TokenCorpus
from outer.journal.object_store import objects
from tests.learners.training.test_token_corpus import folder


@pytest.fixture(params=["door", "s3"])
def away(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Gives the URI of a place on another host."""
    place: Callable[[], str] = request.getfixturevalue(request.param)
    return place


@pytest.fixture
def remote(away: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[DataConfig, DataConfig]:
    """The [data] of a local folder, and of its copy elsewhere."""
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    local, uri = folder(tmp_path / "local"), away()
    for file in (tmp_path / "local").iterdir():
        put(uri, file.name, file.read_bytes())
    return local, local.model_copy(update={"path": uri})


def put(uri: str, name: str, content: bytes) -> None:
    objects(uri).remove(name)
    objects(uri).create(name, [content])


def copied(tmp_path: Path) -> set[str]:
    return {file.name for file in (tmp_path / "cache").rglob("*.tokens")}


def test_samples_are_those_of_the_folder_and_only_what_they_need_is_copied(remote: Any, tmp_path: Path) -> None:
    local, data = remote
    corpus.check(data)
    assert copied(tmp_path) == set(), "checking copies no shard"
    here, there = TokenCorpus(local, 0), TokenCorpus(data, 0)
    assert there.digest == here.digest
    np.testing.assert_array_equal(there.held_out_batch(0, 4), here.held_out_batch(0, 4))
    assert copied(tmp_path) == {"held_out-00000.tokens"}
    np.testing.assert_array_equal(there.batch(0, 64), here.batch(0, 64))


def test_of_many_readers_of_a_host_one_copies_each_file(remote: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, data = remote
    asked: list[str] = []
    kind: Any = type(objects(data.path))
    fetch = kind.fetch
    monkeypatch.setattr(kind, "fetch", lambda self, name, *rest: (asked.append(name), fetch(self, name, *rest)))
    readers = [threading.Thread(target=lambda: TokenCorpus(data, 0).batch(0, 500)) for _ in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert len(asked) == len(set(asked)) > 10


def test_a_shard_that_changed_in_the_store_is_named_and_not_kept(remote: Any, tmp_path: Path) -> None:
    local, data = remote
    content = bytearray((Path(local.path) / "train-00001.tokens").read_bytes())
    content[5] ^= 1
    put(data.path, "train-00001.tokens", bytes(content))
    corpus.check(data)
    with pytest.raises(ValueError, match=r"data.path = '(s3|https)://.*train-00001.tokens.*has changed.*restore it"):
        TokenCorpus(data, 0).batch(0, 500)
    assert "train-00001.tokens" not in copied(tmp_path)


def test_a_shard_that_is_missing_and_a_store_that_has_nothing_are_named(remote: Any, away: Callable[[], str]) -> None:
    _, data = remote
    objects(data.path).remove("train-00002.tokens")
    with pytest.raises(ValueError, match=r"train-00002.tokens is missing; copy or prepare"):
        corpus.check(data)
    with pytest.raises(ValueError, match=r"manifest.json cannot be read there .*; give a folder"):
        corpus.check(data.model_copy(update={"path": f"{away()}/empty"}))
    with pytest.raises(ValueError, match=r"manifest.json cannot be read there .*nosuch"):
        corpus.check(data.model_copy(update={"path": "nosuch://x/y"}))


def test_a_manifest_cannot_name_files_elsewhere(remote: Any, tmp_path: Path) -> None:
    _, data = remote
    made = json.loads((tmp_path / "local" / manifest.FILE).read_text())
    made["train"][0]["name"] = "../../train-00000.tokens"
    put(data.path, manifest.FILE, json.dumps(made).encode())
    with pytest.raises(ValueError, match=r"names the file '../../train-00000.tokens'"):
        corpus.check(data)
