"""`diloco checkpoint` and `diloco export --checkpoint`: what is asked for, what is told, with which code."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from orchestrator.cli import checkpoint
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import CheckpointFailed
from orchestrator.eventlog.log_writer import LogWriter
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.toml_text import dump
from orchestrator.store import watch
from orchestrator.store.checkpoints import REQUEST_FILE
from orchestrator.store.run_store import RunStore
from outer.journal.journal import StoredJournal
from outer.journal.object_store import Folder
from outer.protocol.fragments import Fragment, Tensor
from tests.orchestrator import taking
from tests.orchestrator.calling import invoke
from tests.waiting import DEADLINE_S, until

FRAGMENTS = (
    Fragment(0, (Tensor("blocks/0/up", (2, 3), "float32"), Tensor("scale", (), "float32"))),
    Fragment(1, (Tensor("embed", (4,), "bfloat16"),)),
)
INITIAL = {0: np.zeros(7, np.float32), 1: np.full(4, 0.1, np.float32)}
THETA = np.arange(7, dtype=np.float32)


RECIPE = {"name": "demo", "pools": [{"name": "a"}], "budget": {"tokens": 10}}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> RunStore:
    monkeypatch.setattr(checkpoint, "POLL_S", 0.01)
    made = RunStore.named("demo")
    made.write_text("config.toml", dump(Recipe.model_validate(RECIPE)))
    status(made, "running")
    return made


def status(store: RunStore, state: str, age_s: float = 0.0) -> None:
    store.write_json("status.json", {"run": {"name": "demo", "state": state}, "written_at": time.time() - age_s})


def take(store: RunStore, snapshot: int, journaled: StoredJournal | None = None) -> None:
    kept = Folder(store.root)
    journaled = journaled or StoredJournal(kept, "journal", 99, len(FRAGMENTS))
    taking.take(kept, snapshot, journaled, FRAGMENTS, INITIAL)


@pytest.fixture
def taken(store: RunStore) -> RunStore:
    """With checkpoints 1 and 2, and a journal in which fragment 0 has committed."""
    journaled = taking.journal(Folder(store.root), len(FRAGMENTS), [THETA])
    for snapshot in (1, 2):
        take(store, snapshot, journaled)
    return store


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


# ------------------------------------------------------------------ now


def answering(store: RunStore, answer: Callable[[], None]) -> threading.Thread:
    """Does what an orchestrator would, once it is asked."""

    def wait() -> None:
        until(lambda: store.read_json(REQUEST_FILE) is not None, "a request", pause_s=0.005)
        answer()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_now_asks_and_tells_of_the_one_that_was_cut_since(taken: RunStore) -> None:
    for _ in range(3):
        taken.grant("checkpoint", "run")  # the third was being taken already

    def answer() -> None:
        take(taken, 3)
        take(taken, 4)

    thread = answering(taken, answer)
    result = invoke("checkpoint", "now", "demo", "--json")
    thread.join()
    told = json.loads(result.stdout)
    assert (result.exit_code, told["snapshot"], told["syncer_step"]) == (0, 4, 5)
    assert abs(taken.read_json(REQUEST_FILE)["at"] - time.time()) < DEADLINE_S


def test_now_says_why_it_failed(taken: RunStore) -> None:
    writer = LogWriter(Folder(taken.root), "orchestrator", 1)
    writer.write([Event("orchestrator", 1, 0, 0.0, CheckpointFailed(2, "an older one"))])
    for _ in range(2):
        taken.grant("checkpoint", "run")

    def answer() -> None:
        writer.write([Event("orchestrator", 1, 1, 1.0, CheckpointFailed(3, "No space left"))])

    thread = answering(taken, answer)
    result = invoke("checkpoint", "now", "demo", "--json")
    thread.join()
    writer.close()
    assert result.exit_code == 4
    assert json.loads(result.stdout)["error"]["message"] == "checkpoint 3 failed: No space left"
    assert "the run trains on" in result.stderr


def test_now_is_refused_of_a_run_that_has_ended_or_is_dead(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    status(store, "finished")
    assert "has finished" in invoke("checkpoint", "now").stderr
    monkeypatch.setattr(watch, "NEWS_S", 0.0)
    status(store, "running", age_s=watch.SILENT_S + 1)
    dead = invoke("checkpoint", "now")
    assert dead.exit_code == 2 and "starting, ending or dead" in dead.stderr
    assert not store.path(REQUEST_FILE).exists()


def test_now_gives_up_in_time_and_when_the_run_ends(store: RunStore) -> None:
    late = invoke("checkpoint", "now", "--timeout", "1")
    assert late.exit_code == 2 and "no checkpoint was whole in time" in late.stderr
    store.path(REQUEST_FILE).unlink()
    thread = answering(store, lambda: status(store, "stopped"))
    ended = invoke("checkpoint", "now")
    thread.join()
    assert ended.exit_code == 2 and "ended meanwhile" in ended.stderr


# ------------------------------------------------------------------ list


def test_list_shows_all_that_are_there_and_what_is_damaged(taken: RunStore) -> None:
    flip(taken.path("checkpoints/000001/manifest"))
    taken.write_text("checkpoints/000003/syncer", "being written")
    shown = invoke("checkpoint", "list")
    assert shown.exit_code == 5
    first, second, last = shown.stdout.splitlines()
    assert "1  DAMAGED: manifest: its checksum" in first
    assert "2  step 5, 8 tokens, " in second and "DAMAGED" not in second
    assert last.startswith("2 checkpoints in ")
    told = json.loads(invoke("checkpoint", "list", "--json").stdout)["checkpoints"]
    assert [(each["snapshot"], bool(each["damage"])) for each in told] == [(1, True), (2, False)]


def test_verify_passes_what_is_whole_and_names_what_is_damaged_with_the_code_of_a_failed_check(taken: RunStore) -> None:
    shown = invoke("checkpoint", "list", "--verify")
    assert shown.exit_code == 0 and "DAMAGED" not in shown.stdout and shown.stdout.endswith("journal: whole\n")
    told = json.loads(invoke("checkpoint", "list", "demo", "--verify", "--json").stdout)
    assert [each["damage"] for each in told["checkpoints"]] == [[], []] and told["journal"] == {"damage": []}
    for victim, words in (
        ("checkpoints/000002/manifest", "2  DAMAGED: manifest: its checksum"),
        ("journal/identity", "journal: DAMAGED; identity: its checksum"),
        ("journal/000000000001", "journal: DAMAGED; group 1: its checksum"),
        ("checkpoints/000001/syncer", "DAMAGED: syncer: its checksum"),
    ):
        flip(taken.path(victim))
        shown = invoke("checkpoint", "list", "--verify")
        assert (shown.exit_code, shown.stdout.count("DAMAGED")) == (5, 1) and words in shown.stdout
        flip(taken.path(victim))


def test_a_store_that_is_away_is_an_error_in_words(store: RunStore) -> None:
    away = RECIPE | {"durability": {"store": "no://a/b"}}
    store.write_text("config.toml", dump(Recipe.model_validate(away)))
    result = invoke("checkpoint", "list")
    assert result.exit_code == 2 and 'durability.store = "no://a/b": cannot be read' in result.stderr


# ------------------------------------------------------------------ export


@pytest.mark.parametrize("which", ["1", "newest"])
def test_export_takes_a_checkpoints_parameters_where_it_is_told_to(taken: RunStore, which: str) -> None:
    told = json.loads(invoke("export", "demo", "--checkpoint", which, "--json").stdout)
    assert told["metadata"]["checkpoint"] == {"1": "1", "newest": "2"}[which]
    assert (told["metadata"]["syncer_step"], told["metadata"]["tokens"]) == ("5", "8")
    tensors = load_file("model.safetensors")
    assert set(tensors) == {"blocks/0/up", "scale", "embed"}
    np.testing.assert_array_equal(tensors["blocks/0/up"], THETA[:6].reshape(2, 3))
    assert tensors["scale"].shape == () and tensors["scale"] == 6.0
    np.testing.assert_array_equal(tensors["embed"], INITIAL[1], "it had not committed")


def test_export_of_a_checkpoint_that_is_not_there_or_damaged_names_those_that_are_whole(taken: RunStore) -> None:
    for which in ("7", "0", "old", "-1", ""):
        result = invoke("export", "demo", f"--checkpoint={which}")
        assert result.exit_code == 2 and "there are 1, 2" in result.stderr
    for part in ("syncer", "manifest"):
        flip(taken.path(f"checkpoints/000002/{part}"))
        result = invoke("export", "demo", "--checkpoint", "newest")
        assert result.exit_code == 2
        assert "checkpoint 2 is damaged" in result.stderr and "give another: 1" in result.stderr
    shutil.rmtree(taken.path("checkpoints"))
    assert json.loads(invoke("checkpoint", "list", "--json").stdout) == {"checkpoints": []}
    assert "diloco checkpoint now" in invoke("export", "demo", "--checkpoint", "newest").stderr
    assert not Path("model.safetensors").exists()
